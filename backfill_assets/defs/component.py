"""The Dagster component that serves an installation's tables from a `dg` project: `type: backfill_assets.BackfillTables`.

Put here what `dg` asks for by its own words; what is served is `build`'s.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import dagster as dg
from pydantic import Field

from backfill_assets.declarations.finding import find_products
from backfill_assets.defs.build import build_definitions
from resources.settings import load_settings


class BackfillTables(dg.Component, dg.Resolvable, dg.Model):
    """Tables whose history may be rewritten: their assets, gates, publications, jobs, sensors and schedules."""

    products: Annotated[
        list[str] | None,
        Field(
            description="Products as `module:ATTRIBUTE`, or by the names of their entry points; all that are installed if left out."
        ),
    ] = None
    made_elsewhere: Annotated[
        tuple[str, ...],
        Field(
            description="Input tables that assets of the project fill: they stand in the graph where external assets would."
        ),
    ] = ()
    home: Annotated[
        str | None,
        Field(description="The installation's folder; what the environment says if left out (BACKFILL_HOME)."),
    ] = None

    @classmethod
    def get_spec(cls) -> dg.ComponentTypeSpec:
        """Say who it is of, for the documentation that `dg` makes."""
        return dg.ComponentTypeSpec(description=cls.__doc__, tags=["backfill", "iceberg", "spark"], owners=[])

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Return the definitions of the installation; `context` is not looked at."""
        del context
        chosen: dict[str, Any] = {} if self.home is None else {"home": Path(self.home)}
        settings = load_settings(**chosen)
        named = settings.products if self.products is None else self.products
        return build_definitions(
            settings=settings, products=list(find_products(named)), made_elsewhere=self.made_elsewhere
        )
