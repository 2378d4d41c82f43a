"""Files with a policy, and files with erased subjects.

Put here the reading. Which policy counts is `resources.ledger.policy_in_force`'s, what one says and means `manifests.policy`'s.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from datetime import date, datetime
from hashlib import sha256
from io import StringIO
from pathlib import Path
from typing import Any

from manifests.errors import EnvironmentRefused, Problem
from manifests.policy import Erasure, Policy, parse_policy
from manifests.text import read_text
from resources.settings import Settings

SHIPPED = Path(__file__).with_name("policy.yaml")
POLICY_FILE = "policy.yaml"
_MOST_POLICY_BYTES, _MOST_LIST_BYTES = 1 << 20, 256 << 20


def policy_path(settings: Settings) -> Path:
    """Return the file that proposes a policy: the one the settings name, that of the home folder, or the shipped one."""
    if settings.policy_file is not None:
        return settings.policy_file
    own = settings.home / POLICY_FILE
    return own if own.is_file() else SHIPPED


def read_policy(path: Path) -> Policy:
    """Read the policy of a file.

    Raises:
        EnvironmentRefused: if it cannot be read or is not valid.
    """
    text = read_text(path, "a policy", most=_MOST_POLICY_BYTES, refusal=EnvironmentRefused)
    return parse_policy(text, where=str(path))


def erased_in_file(folder: Path, erasure: Erasure) -> list[dict[str, Any]]:
    """Return the rows of a CSV file with erased subjects; its path is relative to the folder of the policy in force.

    Raises:
        EnvironmentRefused: if it cannot be read or lacks a column: nobody is forgotten because a file is missing.
    """
    assert erasure.file is not None
    path = folder / erasure.file
    text = read_text(path, "a list of erased subjects", most=_MOST_LIST_BYTES, refusal=EnvironmentRefused)
    try:
        reader = csv.DictReader(StringIO(text, newline=""), strict=True)
        rows = list(reader)
        columns = set(reader.fieldnames or ())
    except csv.Error as error:
        raise EnvironmentRefused(
            Problem(f"{path} cannot be read: {error}", "erased subjects are a CSV file in UTF-8", "correct the policy")
        ) from error
    missing = sorted({erasure.key_column, erasure.date_column} - columns)
    if missing:
        raise EnvironmentRefused(
            Problem(f"{path} lacks the column(s) {', '.join(missing)}", "it has a header with both", "correct the file")
        )
    return rows


def erased_keys(rows: Iterable[Mapping[str, Any]], erasure: Erasure, today: date, *, where: str) -> frozenset[str]:
    """Return the subjects that are erased by `today`, from rows of a table or a file.

    Raises:
        EnvironmentRefused: if a row has no subject, or no day.
    """
    keys = set()
    for number, row in enumerate(rows, start=1):
        key, day = row.get(erasure.key_column), _day(row.get(erasure.date_column))
        if key is None or not str(key).strip() or day is None:
            raise EnvironmentRefused(
                Problem(
                    f"row {number} of {where} has subject {key!r} and day {row.get(erasure.date_column)!r}",
                    "an erased subject has a key and a day (YYYY-MM-DD)",
                    "correct the list: nobody is forgotten because of a misspelt row",
                )
            )
        if day <= today:
            keys.add(str(key).strip())
    return frozenset(keys)


def hashes_of(keys: Iterable[str]) -> frozenset[str]:
    """Return the SHA-256 (hex) of each key: what is kept of a list of erased subjects, instead of the keys."""
    return frozenset(sha256(key.encode()).hexdigest() for key in keys)


def _day(value: Any) -> date | None:
    if isinstance(value, datetime):
        return value.date()
    if isinstance(value, date):
        return value
    try:
        return date.fromisoformat(str(value).strip()[:10])
    except ValueError:
        return None
