"""What a product's declaration of a table may not say."""

from __future__ import annotations

from dataclasses import replace

import pandera.polars as pa
import pytest

from benchmarks.small_table import TARGET, Reading


class Nameless(Reading):
    """A reading whose meter is not always known."""

    meter: str = pa.Field(nullable=True, description="The meter.")


@pytest.mark.parametrize(("entity", "key"), [("meter", ("day",)), ("day", ("meter", "day"))])
def test_a_table_with_an_entity_has_one_in_every_row_and_a_whole_key(entity: str, key: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="allows NULL in meter: a merge finds rows by entity and key"):
        replace(TARGET, model=Nameless, entity=entity, key=key)


def test_a_table_that_nothing_is_merged_into_may_have_empty_columns() -> None:
    assert replace(TARGET, model=Nameless, entity=None, corrections=None).entity is None
