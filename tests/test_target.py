"""What a product's declaration of a table may not say."""

from __future__ import annotations

from dataclasses import replace

import pandera.polars as pa
import pytest

from backfill_assets.declarations.checking.products import problems_of
from backfill_assets.declarations.product import Product
from backfill_assets.declarations.target import TargetTable
from benchmarks.small_table import TARGET, Reading


class Nameless(Reading):
    """A reading whose meter is not always known."""

    meter: str = pa.Field(nullable=True, description="The meter.")


def of_entity(target: TargetTable) -> list[str]:
    found = problems_of([Product("readings", (), (target,))])
    return [one.what for one in found if one.where == "silver.readings: entity" and "NULL" in one.what]


@pytest.mark.parametrize(("entity", "key"), [("meter", ("day",)), ("day", ("meter", "day"))])
def test_a_table_with_an_entity_has_one_in_every_row_and_a_whole_key(entity: str, key: tuple[str, ...]) -> None:
    (found,) = of_entity(replace(TARGET, model=Nameless, entity=entity, key=key))
    assert found == (f"silver.readings declares entity={entity!r}, and its model allows NULL in meter")


def test_a_table_that_nothing_is_merged_into_may_have_empty_columns() -> None:
    assert of_entity(replace(TARGET, model=Nameless, entity=None, corrections=None)) == []
