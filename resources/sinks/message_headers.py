"""The headers of a message, as the client has them; and how a name that is no text is told from any other failure.

Put here what landing and reading back share of that. What becomes of such a message is theirs to say. Imported by Spark's Python workers:
keep it light.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import methodcaller
from typing import Any

_HEADERS = methodcaller("headers")
"""The client may return as if nothing had happened with an error that it has raised. Python's own calls of a method look no more
once they have run often, and the error comes up in another line; this one looks each time."""


def headers_of(message: Any) -> Sequence[tuple[str, bytes | None]] | None:
    """Return the headers of a message of confluent-kafka; None if a name is no text: Kafka says that it is, and no broker looks.

    To be asked once of a message: the client keeps the list that it has made, with nothing where the name would be.
    """
    try:
        found: Sequence[tuple[str, bytes | None]] | None = _HEADERS(message)
    except UnicodeDecodeError:
        return None
    except SystemError as error:
        if isinstance(error.__cause__, UnicodeDecodeError):
            return None
        raise
    return found or ()
