"""A manifest made into a plan: what is looked up in tables, ledger and policy, before anything may be approved.

Put here lookups and what may be read. The rules, which need no table, are `manifests.planner`'s.
"""
