"""The transform tested alone: rows in, rows out, with a Spark session of this process and nothing else."""

from datetime import UTC, datetime, timedelta

from metering import DAILY

from backfill_assets.testing import Trial

BEGIN = datetime(2024, 1, 1, tzinfo=UTC)
ROWS = [
    {"meter_id": meter, "read_at": BEGIN + timedelta(hours=7 * number), "watt_hours": number}
    for meter in ("m1", "m2")
    for number in range(300)
]
TRIAL = Trial(DAILY, "1.0.0", ROWS, publish_range=("2024-01-01", "2024-02-29"))


def by_hand(source, references):
    """Count reading by reading, without Spark."""
    days = {}
    for row in source:
        days.setdefault((row["meter_id"], row["read_at"].date()), []).append(row["watt_hours"])
    return [
        {"meter_id": meter, "day": day, "readings": len(energy), "watt_hours": sum(energy)}
        for (meter, day), energy in days.items()
    ]


def test_rows_are_what_counting_by_hand_gives():
    TRIAL.require_same_as(by_hand)


def test_rows_pass_the_rules_of_the_model():
    assert TRIAL.violations() == {}


def test_rows_depend_on_nothing_but_what_is_read():
    TRIAL.require_pure()


def test_no_row_depends_on_what_comes_later():
    TRIAL.require_no_look_ahead()
