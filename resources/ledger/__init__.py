"""The ledger: runs, chunks, verdicts, publications, decisions, leases, and the journal that vouches for each row.

Put here SQL and transactions. What may be done is for the packages above; `facade` is what they speak to.
"""
