"""What the products declare, held together when it is loaded: each mistake is a reason of one refusal.

Put here what can be said of a declaration without opening a table: names that must be columns, tables that must be
declared, types that a row digest or Iceberg has no encoding for. What needs the tables' state is the planner's. Nothing
here computes: Spark's workers are forked from processes that have imported this.
"""
