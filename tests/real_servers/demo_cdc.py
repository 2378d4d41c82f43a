"""`make demo-cdc`: the changes of a bank's PostgreSQL, captured by Debezium through kills, are landed, published, and held against the server.

Everything that a person would do with this project is done by the command, and shown. Server and engine live as long as the demo. How
the engine is run is `supervised.py`'s, what happens to the bank `bank.py`'s.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

from rich.rule import Rule

from real_servers.bank import Bank, Told
from real_servers.commands import Commands, out
from real_servers.debezium import Debezium
from real_servers.postgresql import LogicalPostgres, logical_postgres, lsn_text
from real_servers.processes import MissingServerError, wait_until
from real_servers.supervised import UNSUPERVISED, Supervised, reached_on_disk

TABLE, LANDED, CHANGELOG = "public.accounts", "bronze.account_changes", "bank_changes"
HISTORY, STATE, DAILY = "silver.account_history", "silver.account_state", "silver.account_daily"
_SMALL = {
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m",
}
"""A few thousand rows are computed soonest so."""
MANIFEST = """\
runId: {run}
kind: {kind}
requestedBy: ana
reason: {reason}
source:
  table: {source}{cut}
transform: {{name: {transform}, version: 1.0.0}}
target:
  table: {target}
  publishMode: REPLACE_PARTITIONS{days}
safety:
  sinks: [run_audit]
development: true
"""


class Demo(Commands):
    """The installation of the demo, beside the bank's server and the engine that captures it."""

    def __init__(self, folder: Path, bank: Bank) -> None:
        """Make nothing yet."""
        super().__init__(
            folder / "home",
            {
                "BACKFILL_PRODUCTS": json.dumps(["backfill_assets.products.accounts:PRODUCT"]),
                "BACKFILL_QUARANTINE_LIMIT": "0",
                "BACKFILL_SPARK": json.dumps(_SMALL),
            },
        )
        self.folder, self.bank = folder, bank
        self.engine = Supervised(bank.server, bank.database, [TABLE], folder / "engine", "bank")

    def publish(self, run: str, target: str, source: str, reason: str, *, cut: str = "", days: str = "") -> None:
        """Publish a table of the product: `cut` is the LSN that is not read any more, `days` the range that is published."""
        text = MANIFEST.format(
            run=run,
            kind="RESTATEMENT" if run.endswith("-anew") else "BACKFILL",
            reason=reason,
            source=source,
            cut=f"\n  log:\n    until: {cut}" if cut else "",
            transform=target.partition(".")[2],
            target=target,
            days=f"\n  publishRange: {days}" if days else "",
        )
        self.carry_out(run, text)

    def compare(self, told: Told, name: str, target: str, *more: str) -> None:
        """Hold what is published against what the server said, by the command."""
        file = told.write(self.folder / f"{name}.parquet")
        self.run("compare-source", target, str(file), "--key", "account_id", *more)


def main() -> None:
    """Run the demo; it ends with 2, and says which package is missing, where a server cannot be had."""
    folder = Path(tempfile.mkdtemp(prefix="backfill-demo-cdc-"))
    try:
        with logical_postgres() as server:
            _with_engine(server, folder)
    except MissingServerError as reason:
        out.print(f"the demo needs PostgreSQL and Debezium's engine: {reason}")
        raise SystemExit(2) from reason
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _with_engine(server: LogicalPostgres, folder: Path) -> None:
    demo = Demo(folder, Bank(server))
    try:
        told = _captured(demo)
        _published(demo, told)
        _rewound(demo)
        _lost(demo)
    finally:
        demo.engine.kill()
    out.print(
        "\nEverything held: each state is what the server said, nothing came twice, and the gap was refused.",
        style="bold",
    )


def _captured(demo: Demo) -> list[Told]:
    """Let accounts change while the engine captures; return what the server said they were at three LSNs."""
    out.print(
        Rule("1. A bank's accounts change while Debezium captures them; the engine and the server are killed meanwhile")
    )
    bank, engine, told = demo.bank, demo.engine, []
    engine.start()
    engine.until('"snapshot":"last"')
    bank.work(120)
    told.append(bank.told())
    engine.until('"END"')
    engine.kill()
    out.print("the engine was killed (kill -9), and transactions go on")
    bank.work(40)
    bank.add_tier()
    engine.start()
    bank.work(80)
    told.append(bank.told())
    bank.mark("the last before the server is killed")
    engine.until("the last before the server is killed")
    bank.server.restart(kill=True)
    bank.connect()
    out.print("the server was killed (kill -9), and came back; whoever supervises the engine starts it again")
    bank.rename_email()
    bank.work(80)
    told.append(bank.told())
    bank.work(20)  # what comes after the cut line
    bank.mark("the last of all")
    engine.until("the last of all")
    engine.until('"END"', after="the last of all")
    engine.stop()
    engine.name_log(bank.server, bank.database)
    ends = _ends(engine)
    again = sum(count - 1 for count in ends.values())
    out.print(
        f"{bank.committed:,} transactions committed, {bank.aborted:,} taken back; {len(ends):,} in the files, "
        f"{again:,} of them again after {engine.starts - 1} restarts: an overlap, by which the chain is proven"
    )
    if engine.starts < 3 or again < 1:
        raise SystemExit("the engine was not started again after each kill, or nothing overlaps")
    return told


def _ends(engine: Debezium) -> Counter[str]:
    """Count the ENDs in an engine's files, by transaction."""
    values = [json.loads(one["value"]) for one in engine.records() if one["value"]]
    return Counter(one["id"] for one in values if one.get("status") == "END")


def _published(demo: Demo, told: list[Told]) -> None:
    out.print(Rule("2. The snapshot and the changes after it are landed: whole transactions, each once"))
    demo.run("init")
    demo.run("land", CHANGELOG, str(demo.engine.landing))
    demo.run("loads", LANDED)
    out.print(Rule("3. History, current state and daily state are published up to a cut line, which is an LSN"))
    cut = lsn_text(told[-1].lsn + 1)
    demo.publish("history", HISTORY, LANDED, "What each account was, up to the cut line.", cut=cut)
    demo.publish(
        "state", STATE, HISTORY, "What each account is at the cut line.", days="{start: 2024-01-01, end: 2024-02-29}"
    )
    today = datetime.now(tz=UTC).date()
    days = f"{{start: {today}, end: {today}}}"
    demo.publish("daily", DAILY, LANDED, "What each account is at the end of today.", cut=cut, days=days)
    out.print(Rule("4. At three LSNs, the accounts are what the server said they were then"))
    for number, one in enumerate(told, 1):
        out.print(f"\nthe server said at {lsn_text(one.lsn)} ({one.lsn:,}): {one.rows.height:,} accounts")
        demo.compare(one, f"moment-{number}", HISTORY, "--lsn", str(one.lsn))
    demo.compare(told[-1], "state", STATE)
    demo.compare(told[-1], "daily", DAILY)


def _rewound(demo: Demo) -> None:
    out.print(Rule("5. A rewind that overlaps lands what is new, and nothing twice"))
    bank, engine = demo.bank, demo.engine
    before = _landed(demo)
    demo.run("land", CHANGELOG, str(engine.landing))
    if _landed(demo) != before:
        raise SystemExit("the same files were landed twice")
    there = len(_ends(engine))
    engine.start()
    bank.work(20)
    told = bank.told()  # before the last commit that is landed: beyond that nobody has read
    bank.mark("after the rewind")
    engine.until("after the rewind")
    engine.until('"END"', after="after the rewind")
    engine.stop()
    rewound = demo.folder / "rewound"
    rewound.mkdir()
    shutil.copy(engine.landing / "log.json", rewound)
    for file in engine.files()[len(engine.files()) // 2 :]:  # from amid a transaction on, perhaps
        shutil.copy(file, rewound)
    demo.run("land", CHANGELOG, str(rewound))
    out.print(
        f"{len(_ends(engine)) - there:,} new transactions; rows landed before and now: {before:,}, {_landed(demo):,}"
    )
    demo.publish("history-anew", HISTORY, LANDED, "The history up to everything that is landed.")
    demo.compare(told, "rewound", HISTORY, "--lsn", str(told.lsn))


def _landed(demo: Demo) -> int:
    """Return how many changes are landed by the loads that were not taken back."""
    return sum(int(one["rows"]) for one in demo.asked("loads", LANDED))


def _lost(demo: Demo) -> None:
    out.print(Rule("6. Somebody drops the slot: what was lost is named, by the rule of a start and by the landing"))
    bank, engine = demo.bank, demo.engine
    bank.drop_slot(engine.slot)
    bank.work(20)  # nobody captures these
    engine.start()
    wait_until(lambda: engine.refusal is not None, "a start that is refused")
    out.print(f"the engine is not started: {engine.refusal}", style="bold")
    out.print("somebody starts one without the rule all the same, and Debezium makes the slot anew without a word")
    careless = Debezium(
        bank.server,
        bank.database,
        [TABLE],
        demo.folder / "careless",
        "bank",
        UNSUPERVISED | {"snapshot.mode": "no_data"},
        "behind",
    )
    try:
        careless.start()
        wait_until(lambda: bank.slot_begins(careless.slot) is not None, "a new slot")
        created = bank.slot_begins(careless.slot)
        bank.work(10)
        bank.mark("with a slot made anew")
        careless.until("with a slot made anew")
        careless.until('"END"', after="with a slot made anew")
        careless.stop()
    finally:
        careless.kill()
    careless.name_log(bank.server, bank.database, slot_created_lsn=created)
    before = _landed(demo)
    demo.run("land", CHANGELOG, str(careless.landing), code=2)
    if _landed(demo) != before or reached_on_disk(careless.files()) is None:
        raise SystemExit("something was landed beside a gap, or the engine has captured nothing")


if __name__ == "__main__":
    main()
