"""Everything that imports Dagster: partitions, assets, checks, sensors, jobs and schedules, made from the declarations.

Put here what Dagster shows and launches. What is decided or done stays in the rooms below, which the command uses as well.
"""
