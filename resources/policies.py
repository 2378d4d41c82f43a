"""Files with a policy, and files with erased subjects.

Put here the reading. Which policy counts is `resources.ledger.policy_in_force`'s, what one says and means `manifests.policy`'s.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime
from hashlib import sha256
from io import StringIO
from pathlib import Path
from typing import Any

from manifests.dry_run_modes import dry_run_mode_problems
from manifests.errors import EnvironmentRefused, Problem
from manifests.policy import Erasure, Policy, parse_policy
from manifests.text import read_text
from resources.settings import Settings

SHIPPED = Path(__file__).with_name("policy.yaml")
POLICY_FILE = "policy.yaml"
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
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
    policy = parse_policy(text, where=str(path))
    if problems := dry_run_mode_problems(policy, str(path)):
        raise EnvironmentRefused(problems)
    return policy


def erased_in_file(folder: Path, erasure: Erasure) -> list[dict[str, Any]]:
    """Return the rows of a CSV file with erased subjects; its path is relative to the folder of the policy in force.

    Raises:
        EnvironmentRefused: if it cannot be read, lacks a column or has one twice, or a row is not one line with a cell for each
            column: nobody is forgotten because a file is missing, or spared because a row has swallowed another.
    """
    assert erasure.file is not None
    path = folder / erasure.file
    text = read_text(path, "a list of erased subjects", most=_MOST_LIST_BYTES, refusal=EnvironmentRefused)
    try:
        reader = csv.reader(StringIO(text, newline=""), strict=True)
        lines = [(reader.line_num, cells) for cells in reader if cells]
    except csv.Error as error:
        raise EnvironmentRefused(
            Problem(f"{path} cannot be read: {error}", "erased subjects are a CSV file in UTF-8", "correct the list")
        ) from error
    header = lines[0][1] if lines else []
    missing = sorted({erasure.key_column, erasure.date_column} - set(header))
    if missing:
        raise EnvironmentRefused(
            Problem(f"{path} lacks the column(s) {', '.join(missing)}", "it has a header with both", "correct the file")
        )
    if repeated := sorted({name for name in header if header.count(name) > 1}):
        raise EnvironmentRefused(
            Problem(
                f"{path} has more than one column {', '.join(map(repr, repeated))}",
                "each name appears once in the header: with two columns of one name it is unknown which counts",
                "correct the header",
            )
        )
    for number, cells in lines:
        _require_one_line(path, number, cells, len(header))
    return [dict(zip(header, cells, strict=True)) for _, cells in lines[1:]]


def _require_one_line(path: Path, number: int, cells: Sequence[str], width: int) -> None:
    """Refuse a row of another width than its header's, and a cell over several lines: its quote has swallowed other rows."""
    if len(cells) != width:
        what = f"line {number} of {path} has {len(cells)} cells, and the header {width}"
    elif any({"\n", "\r"} & set(cell) for cell in cells):
        what = f"a cell of {path} that ends in line {number} goes over several lines"
    else:
        return
    raise EnvironmentRefused(
        Problem(
            what,
            "each row is one line with a cell for each name of the header",
            "correct the list: a quote or a comma that is missing, or one too many, makes other subjects of these",
        )
    )


def erased_since(rows: Iterable[Mapping[str, Any]], erasure: Erasure, today: date, *, where: str) -> dict[str, date]:
    """Return the subjects that are erased by `today`, each with the first day it is listed with, from rows of a table or a file.

    Raises:
        EnvironmentRefused: if a row has no subject, or no day.
    """
    found: dict[str, date] = {}
    for number, row in enumerate(rows, start=1):
        key, day = row.get(erasure.key_column), _day(row.get(erasure.date_column))
        if key is None or not str(key).strip() or day is None:
            raise EnvironmentRefused(
                Problem(
                    f"row {number} of {where} has subject {key!r} and day {row.get(erasure.date_column)!r}",
                    "an erased subject has a key and a day (YYYY-MM-DD, and nothing after it)",
                    "correct the list: a misspelt row would leave a subject's data in place",
                )
            )
        if day <= today:
            subject = str(key).strip()
            found[subject] = min(day, found.get(subject, day))
    return found


def hashes_of(keys: Iterable[str]) -> frozenset[str]:
    """Return the SHA-256 (hex) of each key: what is kept of a list of erased subjects, instead of the keys."""
    return frozenset(sha256(key.encode()).hexdigest() for key in keys)


def _day(value: Any) -> date | None:
    if isinstance(value, datetime):
        return value.date()
    if isinstance(value, date):
        return value
    text = str(value).strip()
    try:
        return date.fromisoformat(text) if _DAY.fullmatch(text) else None
    except ValueError:
        return None
