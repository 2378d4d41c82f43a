"""The rules of pauses that ship: which activity pauses and resumes which clock, as plain rows.

Put here the rows. What a pause does to a clock is the transform's, and told in docs/case-study.md. All of them are invented.
"""

from __future__ import annotations

from typing import Final

from backfill_assets.products.enforcement.reference import TIME_ZONES

_EVERYWHERE: Final = (
    # while the offender's address is looked for, nobody can be notified
    ("NOTIFICATION", "Escalate to Registry Office", "PAUSES"),
    ("NOTIFICATION", "Return from Registry Office", "RESUMES"),
    # who appeals need not pay before the result is known
    ("PAYMENT", "Insert Date Appeal to Prefecture", "PAUSES"),
    ("PAYMENT", "Notify Result Appeal to Offender", "RESUMES"),
    ("APPEAL", "Escalate to Legal Office", "PAUSES"),
    ("APPEAL", "Return from Legal Office", "RESUMES"),
)
_APPEAL_TO_JUDGE: Final = ("PAYMENT", "Appeal to Judge", "PAUSES")
_PAY_WHILE_JUDGED: Final = ("US-NY",)
"""Where an appeal to a judge does not put off the payment."""


def pause_rules() -> list[dict[str, str]]:
    """Return the shipped rules, one row a jurisdiction, clock and activity."""
    return [
        {"jurisdiction": jurisdiction, "clock": clock, "activity": activity, "effect": effect}
        for jurisdiction in TIME_ZONES
        for clock, activity, effect in (
            *_EVERYWHERE,
            *(() if jurisdiction in _PAY_WHILE_JUDGED else (_APPEAL_TO_JUDGE,)),
        )
    ]
