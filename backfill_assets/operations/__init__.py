"""For those who keep an installation healthy: doctor, garbage collection, metrics, the runbook of a run, the clock."""
