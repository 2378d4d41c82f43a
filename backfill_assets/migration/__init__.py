"""A read model that moves from one table to another: steps, what each asks, dual reads, and who reads which table.

What a step is and which one follows lies in `manifests.migration_steps`; what was done in the ledger's `migration_steps`.
"""
