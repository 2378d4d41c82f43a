"""This machine's clock, held against everything else that keeps time, before something is removed because it is old.

Put here who else knows the time: the ledger's last record, the catalog's, the file system, a database server. None of
them proves it; a clock that disagrees with them is not believed. What is old enough to go is `garbage`'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from os import fstat
from tempfile import TemporaryFile

from backfill_assets.installation import Platform
from manifests.errors import EnvironmentRefused, Problem
from resources.lakehouse.metadata import updated_at

TOLERANCE = timedelta(days=1)
"""How far two clocks may lie apart."""
LONGEST_REST = timedelta(days=31)
"""How long an installation may have recorded nothing, and its clock still be believed without somebody who confirms it."""


def present_instants(platform: Platform) -> dict[str, datetime]:
    """Return what others say the time is now: the file system of the home folder, and the ledger's server if it has one.

    Raises:
        EnvironmentRefused: if nothing can be written below the home folder.
    """
    home = platform.settings.home
    try:
        with TemporaryFile(dir=home) as file:
            file.write(b"?")
            file.flush()
            found = {f"the file system of {home}": datetime.fromtimestamp(fstat(file.fileno()).st_mtime, UTC)}
    except OSError as error:
        raise EnvironmentRefused(
            Problem(
                f"the time of the file system of {home} cannot be asked: {error}",
                "what is removed because of its age is removed by a clock that others agree with",
                "make the folder writable",
            )
        ) from error
    if (at := platform.ledger.server_clock()) is not None:
        found["the ledger's server"] = at
    return found


def recorded_instants(platform: Platform, tables: list[str]) -> dict[str, datetime]:
    """Return the newest instants on record: of the ledger by table and column, and of the named tables of the catalog."""
    newest = dict(platform.ledger.repairs.newest_instants())
    for name in tables:
        if platform.lakehouse.exists(name):
            newest[f"table {name}"] = updated_at(platform.lakehouse.table(name))
    return newest


def require_believable(
    at: datetime, present: Mapping[str, datetime], recorded: Mapping[str, datetime], today: date | None = None
) -> None:
    """Refuse an instant that this machine's clock gave, if others say it is another time.

    `today` is the date that somebody has confirmed, who has seen another clock.

    Raises:
        EnvironmentRefused: if another clock differs, records lie in the future, the last one lies too far back for a
            clock that nobody has confirmed, or the confirmed date is not the clock's.
    """
    rule = "what is removed because of its age is removed by a clock that others agree with"
    problems = [
        Problem(f"this machine's clock says {_said(at)}, {name} says {_said(other)}", rule, "set this machine's clock")
        for name, other in present.items()
        if abs(other - at) > TOLERANCE
    ]
    ahead = {name: instant for name, instant in recorded.items() if instant > at + TOLERANCE}
    if ahead:
        name, newest = max(ahead.items(), key=lambda item: item[1])
        problems.append(
            Problem(
                f"this machine's clock says {_said(at)}, and there are records of {_said(newest)} ({name})",
                rule,
                "set this machine's clock, or find the machine whose clock was ahead; see `backfill doctor`",
            )
        )
    if today is not None and today != at.date():
        problems.append(Problem(f"today is {today}, and this machine's clock says {_said(at)}", rule, "set the clock"))
    name, newest = max(recorded.items(), key=lambda item: item[1], default=("", at))
    if not problems and today is None and at - newest > LONGEST_REST:
        problems.append(
            Problem(
                f"this machine's clock says {_said(at)}; the newest record of this installation is of {_said(newest)} "
                f"({name}), {(at - newest).days} days before",
                f"after more than {LONGEST_REST.days} days without a record a clock alone is not believed: it may have jumped",
                f"look at another clock; if it agrees, repeat the command with --today {at.date()}",
            )
        )
    if problems:
        raise EnvironmentRefused(problems)


def _said(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")
