"""Which code is running: the identity that a plan records, and whether Python would execute anything else."""
