"""What a gate looks for by name, so that a name which is not there is refused when the declaration is loaded.

Put here a kind of name that a gate can look for. That it is there is asked by `checking.gates`.
"""

from __future__ import annotations

from dataclasses import dataclass

from backfill_assets.declarations.arguments import said_at_once


@said_at_once
@dataclass(frozen=True)
class Needs:
    """What a gate looks for by name, so that a name which is not there is refused when the declaration is loaded.

    Attributes:
        source: columns of the source's rows.
        target: columns of the staged rows: of the target's outline where it declares one.
        zone: a time zone.
        tolerances: names of tolerances; None where it does not say which.
        measured: columns of `context.measures`: those that the target's `measure` returns, and `chunk`.
        rows: columns of the target itself, whatever its outline leaves of a row.
    """

    source: tuple[str, ...] = ()
    target: tuple[str, ...] = ()
    zone: str = "UTC"
    tolerances: tuple[str, ...] | None = None
    measured: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()
