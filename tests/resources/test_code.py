"""A run says which code made it: the commit, and a hash of the packages' contents."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from manifests.planner import CodeIdentity
from resources import code as module
from resources.code import code_identity


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=ada", "-c", "user.email=ada@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", "-C", str(folder), *identity, *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def write(root: Path, name: str, text: str) -> None:
    file = root / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the project's layout, committed."""
    for package in module.PACKAGES:
        write(tmp_path, f"{package}/__init__.py", "")
    write(tmp_path, "backfill_assets/products/enforcement/transforms.py", "VERSION = 1\n")
    write(tmp_path, "pyproject.toml", "[project]\n")
    write(tmp_path, "requirements.lock", "polars==2.1.0\n")
    write(tmp_path, "README.md", "read me\n")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "-m", "first")
    monkeypatch.setattr(module, "_ROOT", tmp_path)
    return tmp_path


def identity() -> CodeIdentity:
    found: CodeIdentity = code_identity.__wrapped__()
    return found


def test_committed_code_is_clean_and_named_by_its_commit(root: Path) -> None:
    found = identity()

    assert found.git_commit == git(root, "rev-parse", "HEAD")
    assert found.dirty is False
    assert len(found.content_hash) == 64
    assert found.lock_hash is not None


@pytest.mark.parametrize(
    "change",
    [
        lambda root: write(root, "manifests/__init__.py", "x = 1\n"),
        lambda root: write(root, "manifests/model.py", "new\n"),
        lambda root: write(root, "backfill_assets/products/enforcement/transforms.py", "VERSION = 2\n"),
        lambda root: write(root, "backfill_assets/products/enforcement/rules.py", "new\n"),
        lambda root: (root / "resources/__init__.py").unlink(),
        lambda root: write(root, "pyproject.toml", "[project]\nname = 'x'\n"),
        lambda root: write(root, "requirements.lock", "polars==2.2.0\n"),
    ],
    ids=["changed", "added", "changed in a product", "added to a product", "removed", "dependencies", "lock"],
)
def test_any_uncommitted_change_of_the_code_makes_it_dirty(root: Path, change: Callable[[Path], None]) -> None:
    clean = identity()
    change(root)
    found = identity()

    assert found.dirty is True
    assert found.git_commit == clean.git_commit


def test_a_change_of_what_is_no_code_leaves_it_clean(root: Path) -> None:
    before = identity()
    write(root, "README.md", "read this\n")
    write(root, "manifests/restate.yaml", "runId: x\n")

    assert identity() == before


def test_code_without_git_is_named_by_its_contents(root: Path, tmp_path: Path) -> None:
    before = identity()
    (tmp_path / ".git").rename(tmp_path / "no-git")
    found = identity()

    assert (found.git_commit, found.dirty) == (None, False)
    assert found.content_hash == before.content_hash


def test_code_without_a_lock_has_no_lock_hash(root: Path) -> None:
    (root / "requirements.lock").unlink()

    assert identity().lock_hash is None


def test_the_content_hash_is_that_of_names_and_contents(root: Path) -> None:
    before = identity().content_hash
    (root / "manifests/__init__.py").rename(root / "manifests/other.py")
    renamed = identity().content_hash
    (root / "manifests/other.py").rename(root / "manifests/__init__.py")

    assert renamed != before
    assert identity().content_hash == before


def test_the_running_code_has_an_identity() -> None:
    assert len(code_identity().content_hash) == 64
    assert code_identity() is code_identity()
