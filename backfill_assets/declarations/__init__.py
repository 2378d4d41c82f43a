"""What a team writes down: tables, models, quarantines, reconciliations and gates, and what can be said against a declaration.

Put here the vocabulary of products and what judges a declaration without opening a table. Nothing here imports Dagster, opens
anything or computes: Spark's workers import it. What is made of a declaration is made in the rooms above.
"""
