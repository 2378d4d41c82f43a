"""Installations of the product `accounts` for its tests: a made-up bank, its messages in files of a folder, and a manifest for each table."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import polars as pl
from worlds import SPARK, World

from backfill_assets.declarations.target import TargetTable
from backfill_assets.defs.launch import initialise_instance
from backfill_assets.ingestion.landed_changes import Landed, land_changes
from backfill_assets.installation import Platform
from backfill_assets.operations.initialise import initialise
from backfill_assets.products.accounts import ACCOUNT_CHANGES, BANK, PRODUCT
from backfill_assets.products.accounts.generator import Message, log_facts
from manifests.log_ranges import LandedRange, landed_from_json
from manifests.model import RunManifest
from manifests.reading import manifest_from
from resources.lakehouse.loads import LOG_PROPERTY, loads_of
from resources.lakehouse.summaries import summary_of
from resources.settings import load_settings

CHANGES = ACCOUNT_CHANGES.name
TARGETS = {target.name: target for target in PRODUCT.targets}


class Accounts(World):
    """An installation of the product."""

    def manifest(self, run_id: str | None = None, *, version: str = "1.0.0", **changes: Any) -> RunManifest:
        target: TargetTable = TARGETS[changes["target"]["table"]]
        text: dict[str, Any] = {
            "runId": run_id or f"accounts-{len(self.counter)}",
            "kind": "BACKFILL" if not run_id or run_id.endswith("-1") else "RESTATEMENT",
            "requestedBy": "ana",
            "reason": "accounts as the bank's log has them",
            "source": {"table": target.source},
            "transform": {"name": target.transform, "version": version},
            "safety": {"sinks": ["run_audit"]},
            "development": True,
        }
        self.counter.append(0)
        return manifest_from(text | changes)

    def land(self, messages: Iterable[Message], name: str = "all", **more: Any) -> Landed:
        folder = delivery(self.home.parent / "delivered" / name, [messages], more.pop("facts", None))
        return land_changes(self.platform, BANK.name, folder, **more)

    def table(self, name: str) -> pl.DataFrame:
        found = pl.from_arrow(self.platform.lakehouse.table(name).scan().to_arrow())
        assert isinstance(found, pl.DataFrame)
        return found

    def ranges(self) -> list[LandedRange]:
        """What the loads that were not taken back say they have brought."""
        table = self.platform.lakehouse.table(CHANGES)
        said = [summary_of(table.snapshot_by_id(one.snapshot_id)) for one in loads_of(table) if one.undone_by is None]
        return [one for each in said for one in landed_from_json(each[LOG_PROPERTY]).ranges]

    def changes(self) -> list[tuple[Any, ...]]:
        """The landed changes in order, without where they came from."""
        names = ("commit_lsn", "lsn", "position", "op", "key", "after")
        return sorted(self.table(CHANGES).select(names).rows(), key=repr)


def make_accounts(home: Path) -> Accounts:
    settings = load_settings(home=home, spark=SPARK, products=["backfill_assets.products.accounts:PRODUCT"])
    platform = Platform.of(settings)
    initialise(platform)
    initialise_instance(settings)
    return Accounts(platform, home)


def delivery(folder: Path, files: Sequence[Iterable[Message | str]], facts: dict[str, Any] | None = None) -> Path:
    """Write messages as files of a folder, with what says which log they are of."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "log.json").write_text(json.dumps(facts or log_facts()))
    for number, messages in enumerate(files):
        lines = [one if isinstance(one, str) else one.line() for one in messages]
        (folder / f"changes-{number:05}.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return folder
