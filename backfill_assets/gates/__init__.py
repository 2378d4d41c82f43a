"""Verdicts on staged chunks: the gates of each chunk and of the run, and the rows that break a rule or disagree.

Put here what judges and what is kept of a judgement. What is done to the rows of one chunk is `worker.chunk_gate`'s.
"""
