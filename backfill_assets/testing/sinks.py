"""An adapter of a product's own, held against the contract of `backfill_assets.SinkAdapter` and a receiver of its author's.

Put here what any adapter has to do, whatever it writes to. It is opened by the function that opens it for a run, with the same
time limit; only the policy is not asked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime

from backfill_assets.declarations.checking.sinks import of_sink
from backfill_assets.declarations.finding import imported_adapter
from backfill_assets.declarations.sinks import Sink, Told
from manifests.errors import Refused
from manifests.model import Mode
from manifests.text import words_of
from resources.sinks.opened import OpenedSink, open_own

_AT = datetime(2024, 5, 1, 12, 30, tzinfo=UTC)
_DETAILS = {
    "snapshot_id": 2**63 - 1,
    "base_snapshot_id": None,
    "files_added": 3,
    "files_removed": 0,
    "evidence_root": "0" * 64,
    "measured": [{"city": "Zürich \N{SNOWMAN} 'quoted' \"twice\"\n", "rows": 0}],
}


class SinkContractError(AssertionError):
    """An adapter does not do what its sink needs: `problems` are all that was found."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(["the adapter breaks its contract", *(f"  - {one}" for one in self.problems)]))


def require_sink_contract(
    sink: Sink,
    settings: Mapping[str, str],
    received: Callable[[], Iterable[tuple[str, str]]],
    *,
    away: Mapping[str, str] | None = None,
) -> None:
    """Hold an adapter of a product's own against what a run relies on.

    It is told of each action of two runs, then of all of them again by an adapter that was opened anew, as after a crash.

    Args:
        sink: the declaration, with the adapter as `module:ATTRIBUTE`.
        settings: a value for each setting that it names: of a receiver for tests.
        received: returns run and action of each record that the receiver has now, as often as it has it.
        away: settings with which no receiver is reached, to see that this is raised; None where there are none.

    Raises:
        SinkContractError: with everything that the adapter does otherwise.
    """
    problems = [one.what for one in of_sink(sink)]
    if not isinstance(sink.adapter, str):
        problems.append("the adapter is one that ships: its tests are the platform's")
    if problems:
        raise SinkContractError(problems)
    problems += _of_telling(sink, settings, received)
    if away is not None:
        problems += _of_an_absent_receiver(sink, away)
    if problems:
        raise SinkContractError(problems)


def _opened(sink: Sink, settings: Mapping[str, str]) -> OpenedSink:
    return open_own(sink, lambda: imported_adapter(str(sink.adapter), sink.name), settings)


def _records(sink: Sink) -> list[Told]:
    """Return what is told: each action of two runs, of which one has the other's id as its beginning."""
    actions = [action if number == 0 else f"{action}-{number + 1}" for number, action in enumerate(sink.told_of)]
    return [
        Told(run, action, _AT, _DETAILS, table="silver.contract", chunks=("2024-04", "2024-05"), mode=Mode.LIVE.value)
        for run in ("contract-1", "contract-12")
        for action in actions
    ]


def _of_telling(
    sink: Sink, settings: Mapping[str, str], received: Callable[[], Iterable[tuple[str, str]]]
) -> Iterator[str]:
    records = _records(sink)
    wanted = Counter((one.run_id, one.action) for one in records)
    before = Counter(received())
    for how in ("is told", "is told again, by an adapter that was opened anew"):
        try:
            opened = _opened(sink, settings)
            for one in records:
                opened.send(one)
        except Exception as error:  # noqa: BLE001 - whatever it raises is what its author has to see
            yield f"it {how}, and raises {type(error).__name__}: {words_of(error)}"
            return
        found = Counter(received()) - before
        for run_id, action in sorted(wanted.keys() | found.keys()):
            if (times := found[run_id, action]) != wanted[run_id, action]:
                yield f"it {how} of the {action} of {run_id}, and its receiver has it {times} times, not once"


def _of_an_absent_receiver(sink: Sink, away: Mapping[str, str]) -> Iterator[str]:
    try:
        _opened(sink, away).send(_records(sink)[0])
    except Refused as refused:
        if "took longer than" in refused.problems[0].what:
            yield f"its receiver is away, and it does not raise within {sink.time_limit_seconds} s: give it a limit of its own"
    except Exception:  # noqa: BLE001 - any error says that it has not told
        return
    else:
        yield "its receiver is away, and it says that it has told: it has to raise"
