"""`make demo-kafka`: a topic on a real broker is landed, restated, replayed once the broker has forgotten it, and told to a topic of its own.

Everything that a person would do is done by the command, and shown. The broker lives as long as the demo.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections import Counter
from datetime import date, timedelta
from pathlib import Path

from confluent_kafka import TopicPartition
from rich.rule import Rule
from topic_sender import Sender, read_topic

import backfill_assets as ba
from benchmarks.parcels import FIRST, LANDED, SCANS, TOPIC, expected, records
from real_servers.commands import Commands, out
from real_servers.kafka import Broker, kafka_broker
from real_servers.processes import MissingServerError

RECORDS, PARTITIONS, DAYS = 8_000, 3, 5
MANIFEST = """\
runId: {run}
kind: {kind}
requestedBy: ana
reason: {reason}
source:
  table: {landed}
  log:
    until: {until}
transform: {{name: scans, version: "{version}"}}
target:
  table: {table}
  publishRange: {{start: {start}, end: {end}}}
safety:
  sinks: [{sinks}]
limits: {{maxChunksPerJob: {together}}}
development: true
"""


class Demo(Commands):
    """The installation of the demo."""

    def __init__(self, home: Path, broker: Broker) -> None:
        self.broker = broker
        settings = {
            "BACKFILL_PRODUCTS": json.dumps(["benchmarks.parcels:PRODUCT"]),
            "BACKFILL_TOPICS__PARCELS__BOOTSTRAP_SERVERS": broker.bootstrap_servers,
            "BACKFILL_SINKS__SCAN_EVENTS__BOOTSTRAP_SERVERS": broker.bootstrap_servers,
        }
        super().__init__(home, settings)

    def publish(self, run: str, kind: str, reason: str, version: str, together: int, until: str, *, tell: bool) -> None:
        """Plan, approve, compute and publish a run over the complete days."""
        last = FIRST + timedelta(days=DAYS - 2)
        sinks = "scan_events" if tell else ""
        named = {"run": run, "kind": kind, "reason": reason, "version": version, "together": together, "until": until}
        self.carry_out(run, MANIFEST.format(landed=LANDED, table=SCANS, start=FIRST, end=last, sinks=sinks, **named))

    def digests(self, run: str) -> dict[str, str]:
        """Return the digests of a run's chunks."""
        return {one["chunk"]: one["digest"] for one in self.asked("status", run)["chunks"]}


def main() -> None:
    """Run the demo; it ends with 2, and says which package is missing, where no broker can be had."""
    folder = Path(tempfile.mkdtemp(prefix="backfill-demo-kafka-"))
    try:
        with kafka_broker() as broker:
            _shown(Demo(folder / "home", broker))
    except MissingServerError as reason:
        out.print(f"no Kafka broker can be had: {reason}")
        raise SystemExit(2) from reason
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _shown(demo: Demo) -> None:
    broker = demo.broker
    out.print(
        Rule(
            "1. A topic, as producers write it: transactions, some of them aborted, some records twice and out of order"
        )
    )
    broker.create(TOPIC, PARTITIONS, {"retention.ms": "-1"})
    sender = Sender(broker.bootstrap_servers)
    sender.send(records(RECORDS, PARTITIONS, 1, days=DAYS))
    out.print(f"{len(sender.committed):,} records committed, {sender.aborted:,} in aborted transactions")
    out.print(Rule("2. Its range is landed: no group, no offset committed, one snapshot"))
    demo.run("init")
    demo.run("land", "parcels", "--new")
    demo.run("logs", "parcels")
    landed = demo.asked("logs", "parcels")[0]["partitions"]
    until = json.dumps({str(one["partition"]): one["ranges"][-1][1] for one in landed})
    out.print(Rule("3. A run reads the offsets that its plan pins, and its rows go to a topic of its own"))
    demo.publish("history", "BACKFILL", "The days that are complete.", "1", 100, until, tell=True)
    out.print(Rule("4. The broker forgets the records; a replay in other chunks has the same digests"))
    admin = broker.admin()  # kept until it is answered
    for answer in admin.delete_records([TopicPartition(TOPIC, one, -1) for one in range(PARTITIONS)]).values():
        answer.result(30)
    demo.publish("replay", "REPLAY", "The same offsets once more, a day at a time.", "1", 1, until, tell=False)
    same = demo.digests("history") == demo.digests("replay")
    out.print(f"digests of {len(demo.digests('replay'))} chunks: {'equal' if same else 'DIFFERENT'}", style="bold")
    out.print(
        Rule("5. Consumers: who asks the guard acts upon no backfill, but on one that it has chosen, each event once")
    )
    told = _consumed(broker)
    right = _is_right(demo, sender, told)
    out.print(Rule("6. Undone: nothing is removed, retractions are added"))
    demo.run("rollback", "replay", "--by", "bob")
    demo.run("rollback", "history", "--by", "bob")
    _consumed(broker)
    demo.run("verify", "history", "--data")
    out.print(Rule("7. A topic that was made anew is another log"))
    broker.delete(TOPIC)
    broker.create(TOPIC, PARTITIONS)
    demo.run("land", "parcels", "--new", code=2)
    if not (same and right):
        raise SystemExit(1)


def _consumed(broker: Broker) -> Counter[str]:
    """Read the run's topic twice over, by a guard that has chosen nothing and by one that has chosen the run; return what the latter did."""
    done: Counter[str] = Counter()
    for runs in ((), ("history",)):
        guard = ba.ConsumerGuard(ba.SqliteEventIds(":memory:"), runs=runs)
        for _ in range(2):
            for message in read_topic(broker.bootstrap_servers, "parcels.clean.v1.backfill.history"):
                event = dict(message.headers())["x-event-id"].decode()
                guard.handle(message.headers(), lambda event=event: done.update([event]))
        out.print(f"runs={runs}: {dict(guard.counts)}", highlight=False)
    return done


def _is_right(demo: Demo, sender: Sender, told: Counter[str]) -> bool:
    """Hold what was published and told against what the producer knows to have committed."""
    last: date = FIRST + timedelta(days=DAYS - 2)
    wanted = expected(sender.committed, FIRST, last)
    right = len(told) == len(wanted) and set(told.values()) == {1}
    out.print(
        f"{len(wanted):,} scans by hand, {len(told):,} events, each once: {'right' if right else 'WRONG'}", style="bold"
    )
    return right


if __name__ == "__main__":
    main()
