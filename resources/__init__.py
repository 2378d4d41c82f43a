"""What holds a connection or a lock: settings, ledger, lakehouse, Spark, sinks, evidence, code identity."""
