"""From an approved plan to files that no reader sees: the Spark job, merges and corrections, progress, and stopping.

Put here how a batch of chunks is computed and written. Whether what was written is right is for `gates`.
"""
