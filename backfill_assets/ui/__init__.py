"""The pages beside Dagster's, the server that carries both, and the guard before them."""
