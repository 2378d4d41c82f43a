"""An installation that an earlier version made, and `backfill init` that dies in the middle of bringing it up to date."""

from __future__ import annotations

import shutil
import signal
from collections import Counter
from pathlib import Path

import pytest
import sqlalchemy as sa
import yaml
from alembic import command
from launches import launch

from backfill_assets import faults
from backfill_assets.audit.verification import verify
from backfill_assets.installation import Platform
from resources.evidence.store import CHAIN, EvidenceStore
from resources.ledger.facade import Ledger
from resources.ledger.schema import alembic_config
from resources.settings import load_settings

BEFORE_THE_JOURNAL = "0004"
OPEN = {"name": "open", "rules": [{"fourEyes": False}]}
RUN = "half"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with a policy of its own, in which nothing was initialised."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "policy.yaml").write_text(yaml.safe_dump(OPEN))
    return home


def made_before(home: Path) -> None:
    """Make a ledger and evidence as an earlier version left them: a run that was sealed, and nothing that vouches for it."""
    old = Ledger(f"sqlite:///{home / 'ledger.db'}")
    with old.engine.begin() as connection:
        config = alembic_config()
        config.attributes["connection"] = connection
        command.upgrade(config, BEFORE_THE_JOURNAL)
        cells = f"'{RUN}', 'BACKFILL', 'BACKFILL', 't', 'PLANNED', '', 'ada', '{{}}', 'h', '{{}}', 'h', '2024', '2024'"
        connection.execute(sa.text(f"INSERT INTO runs VALUES ({cells})"))
    old.engine.dispose()
    store = EvidenceStore(home / "evidence")
    store.seal(RUN, {"plan.json": {"any": "plan"}})
    store.append(RUN, "approved", {"by": "grace"})
    shutil.rmtree(store.folder / CHAIN)


def initialised(home: Path, fault: str = "") -> int:
    return launch(
        "init", environment={"BACKFILL_HOME": str(home)} | ({faults.VARIABLE: fault} if fault else {})
    ).ended()


def vouched_for(home: Path) -> Counter[tuple[str, str, str]]:
    links = EvidenceStore(home / "evidence").chain.contents()
    return Counter((str(one["event"]), str(one["run"]), str(one.get("bundle", one.get("record")))) for one in links)


@pytest.mark.parametrize("point", ["upgrading.adopted", "upgrading.migrated"])
def test_what_an_earlier_version_sealed_is_vouched_for_whenever_init_died(home: Path, point: str) -> None:
    made_before(home)
    assert initialised(home, point) == -signal.SIGKILL
    assert initialised(home) == 0
    links = vouched_for(home)
    assert links[("sealed", RUN, "bundle")] == links[("kept", RUN, "approved")] == 1
    platform = Platform.of(load_settings(home=home))
    assert [one.decision for one in platform.ledger.policies.history()] == ["INHERITED"]
    assert [one.where for one in verify(platform).everything if "link" in one.what or "chain" in one.where] == []


def test_a_new_installation_inherits_no_file_as_its_policy_where_init_died(home: Path) -> None:
    assert initialised(home, "upgrading.migrated") == -signal.SIGKILL
    assert initialised(home) == 0
    platform = Platform.of(load_settings(home=home))
    assert [(one.decision, one.name) for one in platform.ledger.policies.history()] == [("INSTALLED", "four eyes")]


def test_a_damaged_record_of_an_earlier_version_is_vouched_for_by_nothing(home: Path) -> None:
    made_before(home)
    (EvidenceStore(home / "evidence").records(RUN) / "damaged.json").write_text('{"by"')
    assert initialised(home) == 0
    assert [record for event, _, record in vouched_for(home) if event == "kept"] == ["approved"]
