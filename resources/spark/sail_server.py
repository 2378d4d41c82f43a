"""The process that a Sail server runs in: `python -m resources.spark.sail_server`, started by `sail` and by nobody else.

Put here nothing that the process which starts it has to know. It serves on a free port of the loopback interface, says which in one
line of JSON, and ends as soon as its standard input does: with whoever has started it, however that ends.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from importlib.metadata import version

from resources import processes


def serve() -> None:
    """Serve until the standard input ends."""
    answer = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever else is said is the log's
    processes.give_way()
    from pysail.spark import SparkConnectServer  # type: ignore[import-untyped] # noqa: PLC0415 - it logs when imported

    server = SparkConnectServer("127.0.0.1", 0)
    server.start(background=True)
    _, port = server.listening_address
    os.write(answer, json.dumps({"port": port, "version": version("pysail")}).encode() + b"\n")
    os.close(answer)
    sys.stdin.buffer.read()
    os.kill(os.getpid(), signal.SIGKILL)  # what it computes is for nobody any more


if __name__ == "__main__":
    serve()
