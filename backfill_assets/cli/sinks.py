"""The command that lists what runs can tell: `sinks`.

Put here arguments and output; what is shown is looked up by `operations.sinks`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from backfill_assets.cli.base import json_option, opened_platform, say, show

if TYPE_CHECKING:
    from backfill_assets.operations.sinks import SinkFacts

_WORDS = {"ALLOWED": "yes", "ALLOWED_ISOLATED": "yes, kept apart by run", "REFUSED": "no"}


@click.command()
@json_option
def sinks(as_json: bool) -> None:
    """List what runs can tell besides their target: each sink, its class, who declares it, what each mode may do and why.

    Of settings it is said whether they are set here, and never what they are.
    """
    from pydantic.alias_generators import to_camel

    from backfill_assets.cli.console import facts
    from backfill_assets.operations.sinks import facts_of_sinks
    from manifests.canonical import plain

    with opened_platform() as platform:
        found = facts_of_sinks(platform)
    if as_json:
        say([{to_camel(name): value for name, value in plain(one).items()} for one in found])
        return
    show(*(facts(_pairs(one), one.name) for one in found))


def _pairs(sink: SinkFacts) -> list[tuple[str, object]]:
    return [
        ("class", sink.sink_class),
        ("declared by", f"product {sink.product}" if sink.product else "the platform"),
        ("what it is", sink.description),
        ("owners", ", ".join(sink.owners)),
        ("adapter", sink.adapter),
        ("told of", ", ".join(sink.told_of) or "nothing: rows are published to it"),
        *((f"setting {name}", "set" if is_set else "missing here") for name, is_set in sink.settings.items()),
        *((f"LIVE of {target}", "tells it") for target in sink.live_of),
        *((mode, f"{_WORDS[may.decision]}: {may.why}") for mode, may in sink.modes.items()),
    ]
