"""What is said of the work while it is done, for those who watch it: lines of a log, and traces.

Put here what a line or a span looks like and where it goes: `lines` has the log, which is what this package gives by its own
name; `traces` has spans, and `span_export` alone imports OpenTelemetry. What is worth either is said by the module that does it.
What must be known later is no matter of this package: the ledger and the evidence have that.
"""

from resources.logs.lines import (
    FIELDS,
    ROOT,
    JsonFormatter,
    TextFormatter,
    also_to,
    bound,
    configure,
    event,
    of_chunk,
    of_run,
    without_passwords,
)

__all__ = [
    "FIELDS",
    "ROOT",
    "JsonFormatter",
    "TextFormatter",
    "also_to",
    "bound",
    "configure",
    "event",
    "of_chunk",
    "of_run",
    "without_passwords",
]
