"""What an extraction is refused for, and what makes an answer none.

Put here the errors that several modules of this package raise. What is wrong with a setting or a file is refused as elsewhere.
"""

from __future__ import annotations

from manifests.errors import EnvironmentRefused, Refused


class ExtractionRefused(Refused):
    """A server did not answer, or said something else than its feed declares."""

    headline = "the extraction stops"


class TopicRefused(ExtractionRefused):
    """Brokers did not answer, or a topic or its records are not what was asked for."""

    headline = "the topic could not be read"


class ArchiveRefused(EnvironmentRefused):
    """What is kept of an extraction is gone, or not as it came."""


class MalformedAnswer(ValueError):  # noqa: N818 - whoever asked decides whether it is an error, or asked for again
    """An answer is not what was asked for: it is no JSON, or has no records where they are declared to be."""
