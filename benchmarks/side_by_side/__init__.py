"""The same restatement by this project, SQLMesh, Dagster and a plain script: one package, `python -m benchmarks.side_by_side`.

Put here what one comparison needs. `data` writes the files that all contenders read, `model` has the model in SQL, `states` says
what a reader saw, `readers` look, `commands` start, time and kill; one module a contender, and `rounds` is what is done with each.
"""
