"""What proves a run: records, seals and links, as this project writes them and holds them against the ledger.

Put here what evidence says. Where it lies, and that nothing there is rewritten, is `resources.evidence`'s.
"""
