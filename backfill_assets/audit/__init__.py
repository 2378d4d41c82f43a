"""Questions asked later: does the evidence hold, does the same plan give the same rows, why does a row say what it says.

Put here what reads and proves. Nothing here changes a table or the ledger.
"""
