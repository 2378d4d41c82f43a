"""What a run changes, row by row, for those who decide, and the words and Markdown it is shown in.

Put here comparisons of before and after and how they are kept. The numbers by chunk come from `gates.chunk_changes`.
"""
