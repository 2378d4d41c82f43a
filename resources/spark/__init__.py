"""Spark sessions by execution mode, the daemon of Python workers, and the archive of classes that makes a JVM start sooner."""
