"""What Spark's Python workers do to the rows of one chunk: digest, sums, gate, merge, comparison.

Put here code that gets files and returns figures. It imports neither Dagster nor PySpark, knows no installation and no ledger:
which files there are, and what follows from the figures, is for `staging`, `gates`, `review` and `reconciliation`, which send
the work out.
"""
