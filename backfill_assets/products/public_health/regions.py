"""The regions that report, and every code and name under which they ever did.

Put here reference data of the product. Which of a record's fields are code and name, `reports` knows.
"""

from __future__ import annotations

from dataclasses import dataclass

REGIONS_OF_A_REPORT = 21
"""A report has each of the twenty regions once, one of them as its two autonomous provinces."""
_SPLIT = "04"
"""The code of Trentino-Alto Adige, which its provinces shared until they got codes of their own."""


@dataclass(frozen=True)
class Region:
    """A region, or an autonomous province: its code of today, its name, and other names that it was reported under."""

    code: str
    name: str
    former_names: tuple[str, ...] = ()


REGIONS = (
    Region("01", "Piemonte"),
    Region("02", "Valle d'Aosta"),
    Region("03", "Lombardia"),
    Region("05", "Veneto"),
    Region("06", "Friuli Venezia Giulia", ("Friuli V. G.", "Friuli-Venezia Giulia")),
    Region("07", "Liguria"),
    Region("08", "Emilia-Romagna", ("Emilia Romagna",)),
    Region("09", "Toscana"),
    Region("10", "Umbria"),
    Region("11", "Marche"),
    Region("12", "Lazio"),
    Region("13", "Abruzzo"),
    Region("14", "Molise"),
    Region("15", "Campania"),
    Region("16", "Puglia"),
    Region("17", "Basilicata"),
    Region("18", "Calabria"),
    Region("19", "Sicilia"),
    Region("20", "Sardegna"),
    Region("21", "P.A. Bolzano", ("Bolzano",)),
    Region("22", "P.A. Trento", ("Trento",)),
)
_BY_NAME = {name: region for region in REGIONS for name in (region.name, *region.former_names)}
_PROVINCES = frozenset({"21", "22"})


def region_of(code: str | None, name: str | None) -> Region | None:
    """Return the region that a code and a name together mean; None where they mean none, or two.

    A code may lack its leading zero. Of the two provinces the name says which one is meant: both had the code 04 once.
    """
    region = _BY_NAME.get((name or "").strip())
    if region is None or code is None:
        return None
    padded = code.strip().zfill(2)
    return region if padded == region.code or (padded == _SPLIT and region.code in _PROVINCES) else None
