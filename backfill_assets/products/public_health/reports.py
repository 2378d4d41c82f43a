"""Regional reports as they are published: the forms in which files came, and what a record of one means, rule by rule.

Put here readers and the translator. What a row of the table is, `schemas` says; which codes and names are a region's, `regions`. Pure:
the same records give the same rows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from backfill_assets.declarations.feeds import FileFacts, FileReader, RawRecord, RejectedRecord, Translated
from backfill_assets.products.public_health.regions import REGIONS_OF_A_REPORT, region_of

TRANSLATOR_VERSION = "1.0.0"

_PLACE = {
    "data": "reported_at",
    "stato": "country",
    "codice_regione": "region_code",
    "denominazione_regione": "region_name",
}
_COORDINATES = {"lat": "latitude", "long": "longitude"}
_HOSPITALS = {
    "ricoverati_con_sintomi": "hospitalised_with_symptoms",
    "terapia_intensiva": "intensive_care",
    "totale_ospedalizzati": "total_hospitalised",
    "isolamento_domiciliare": "home_isolation",
}
_POSITIVE_AT_FIRST = {
    "totale_attualmente_positivi": "total_positive",
    "nuovi_attualmente_positivi": "total_positive_change",
}
_POSITIVE = {
    "totale_positivi": "total_positive",
    "variazione_totale_positivi": "total_positive_change",
    "nuovi_positivi": "new_positive",
}
_OUTCOMES = {"dimessi_guariti": "discharged_recovered", "deceduti": "deaths"}
_SOURCES = {"casi_da_sospetto_diagnostico": "cases_from_suspicion", "casi_da_screening": "cases_from_screening"}
_TOTALS = {"totale_casi": "total_cases", "tamponi": "tests"}
_TESTED = {"casi_testati": "people_tested"}
_TWO_NOTES = {"note_it": "notes", "note_en": "notes_english"}
_NOTE = {"note": "notes"}
_ADMISSIONS = {
    "ingressi_terapia_intensiva": "intensive_care_admissions",
    "note_test": "notes_on_tests",
    "note_casi": "notes_on_cases",
}
_KINDS_OF_TESTS = {
    "totale_positivi_test_molecolare": "positive_by_molecular_test",
    "totale_positivi_test_antigenico_rapido": "positive_by_antigen_test",
    "tamponi_test_molecolare": "molecular_tests",
    "tamponi_test_antigenico_rapido": "antigen_tests",
    "codice_nuts_1": "nuts_1",
    "codice_nuts_2": "nuts_2",
}
_FIRST = _PLACE | _COORDINATES | _HOSPITALS | _POSITIVE_AT_FIRST | _OUTCOMES | _TOTALS
_SECOND = _PLACE | _COORDINATES | _HOSPITALS | _POSITIVE | _OUTCOMES
_SPELT_OUT = _PLACE | {"latitudine": "latitude", "longitudine": "longitude"} | _HOSPITALS | _POSITIVE | _OUTCOMES
_BY_SOURCE = _SECOND | _SOURCES | _TOTALS | _TESTED | _NOTE


def _reader(version: str, columns: Mapping[str, str], delimiter: str = ",") -> FileReader:
    return FileReader("regional-report", version, columns, delimiter, encodings=("utf-8", "latin-1"), may_lack=1)


READERS = (
    _reader("1", _FIRST),
    _reader("1-unnamed", _FIRST | {"": "unnamed"}),
    _reader("1-notes", _FIRST | _TWO_NOTES),
    _reader("2", _SECOND | _TOTALS | _TWO_NOTES),
    _reader("2-spelt-out", _SPELT_OUT | _TOTALS | _TWO_NOTES),
    _reader("3", _SECOND | _TOTALS | _TESTED | _TWO_NOTES),
    _reader("3-semicolon", _SECOND | _TOTALS | _TESTED | _TWO_NOTES, ";"),
    _reader("4", _BY_SOURCE),
    _reader("5", _BY_SOURCE | _ADMISSIONS),
    _reader("6", _BY_SOURCE | _ADMISSIONS | _KINDS_OF_TESTS),
)
"""Newest last; the numbers are this product's."""

TEXTS = ("country", "unnamed", "notes", "notes_english", "notes_on_tests", "notes_on_cases", "nuts_1", "nuts_2")
REQUIRED = (
    "hospitalised_with_symptoms",
    "intensive_care",
    "total_hospitalised",
    "home_isolation",
    "total_positive",
    "total_positive_change",
    "discharged_recovered",
    "deaths",
    "total_cases",
)
"""Figures that every report has."""
OPTIONAL = (
    "tests",
    "new_positive",
    "cases_from_suspicion",
    "cases_from_screening",
    "people_tested",
    "intensive_care_admissions",
    "positive_by_molecular_test",
    "positive_by_antigen_test",
    "molecular_tests",
    "antigen_tests",
)
"""Figures that came later, or were left out: a cell that is no number is set aside."""
CUMULATIVE = ("discharged_recovered", "deaths", "total_cases")
"""Figures since the beginning."""
_WHOLE = re.compile(r"[+-]?[0-9]{1,15}")
_ISO = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}")
_BOUNDS = {"latitude": (35.0, 48.0), "longitude": (6.0, 19.0)}
"""Degrees within which the country lies: without its point, 40.83 is 40 million."""


def translate(records: Sequence[RawRecord], facts: FileFacts) -> Translated:
    """Return the rows of a report, a region each.

    A record of an unknown region, of one that was there before in the file, or without a figure that every report has is rejected. Cells
    beside these that are none of their column are set aside with the row. A report that has not each region once is refused whole: it was
    cut. Where the producer has taken a report back, one row says that.
    """
    if facts.is_withdrawn:
        return Translated([(0, {"is_withdrawal": True, "source_row": 0})])
    rows: list[tuple[int, Mapping[str, Any]]] = []
    rejected: list[RejectedRecord] = []
    seen: set[str] = set()
    for record in records:
        row = _row(record)
        if isinstance(row, RejectedRecord):
            rejected.append(row)
        elif row["region_code"] in seen:
            rejected.append(RejectedRecord(record.row, "a region once", f"{row['region_name']} was there before"))
        else:
            seen.add(row["region_code"])
            rows.append((record.row, row))
    refused = ""
    if not rejected and not facts.misshapen and len(rows) != REGIONS_OF_A_REPORT:
        refused = f"it has {len(rows)} regions, and a report has {REGIONS_OF_A_REPORT}: it was cut"
    return Translated(rows, rejected, refused)


def _row(record: RawRecord) -> dict[str, Any] | RejectedRecord:
    fields = record.fields
    code, name = fields.get("region_code"), fields.get("region_name")
    region = region_of(code, name)
    if region is None:
        return RejectedRecord(record.row, "a known region", f"code {code}, name {name}")
    aside: dict[str, str] = {}
    figures = {column: _figure(column, fields.get(column), aside) for column in (*REQUIRED, *OPTIONAL)}
    for column in REQUIRED:
        if figures[column] is None:
            return RejectedRecord(record.row, f"{column}: a whole number", f"{column} is {fields.get(column)}")
    for column in CUMULATIVE:
        if (figures[column] or 0) < 0:
            return RejectedRecord(record.row, f"{column}: 0 or more", f"{column} is {figures[column]}")
    row: dict[str, Any] = {
        "is_withdrawal": False,
        "source_row": record.row,
        "reported_at": _reported_at(fields.get("reported_at"), aside),
        "region_code": region.code,
        "region_name": region.name,
        "raw_region_code": code,
        "raw_region_name": name,
        **{column: _degrees(column, fields.get(column), aside) for column in _BOUNDS},
        **{column: fields.get(column) for column in TEXTS},
        **figures,
    }
    row["set_aside"] = json.dumps(aside, ensure_ascii=False, sort_keys=True) if aside else None
    return row


def _figure(column: str, text: str | None, aside: dict[str, str]) -> int | None:
    """Return a whole number; what is none is set aside."""
    if text is None:
        return None
    if not _WHOLE.fullmatch(text.strip()):
        aside[column] = text
        return None
    return int(text)


def _reported_at(text: str | None, aside: dict[str, str]) -> datetime | None:
    """Return the local time that a record gives, in any of the three forms that were used."""
    if text is None:
        return None
    try:
        if _ISO.fullmatch(text):
            return datetime.fromisoformat(text)
        return datetime.strptime(text, "%d/%m/%Y %H:%M")  # noqa: DTZ007 - a local time, as it was published
    except ValueError:
        aside["reported_at"] = text
        return None


def _degrees(column: str, text: str | None, aside: dict[str, str]) -> float | None:
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    least, most = _BOUNDS[column]
    if least <= value <= most:
        return value
    aside[column] = text
    return None
