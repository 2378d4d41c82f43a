"""What a run can write to besides its target: which sinks there are, who may use them, and what is sent.

Put here `policy`, which opens nothing and is imported by declarations, and `adapters`, which stand on the ledger and the
lakehouse.
"""
