"""Spark sessions by execution mode, work on chunks by Python workers, their daemon, and the archive of classes that makes a JVM start sooner."""
