"""A run says which code made it: the commit, and a hash of the packages' contents."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterator
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.metadata import packages_distributions
from pathlib import Path
from py_compile import PycInvalidationMode
from types import ModuleType

import pytest
from checkouts import COMPUTE, TRANSFORMS, commit, compiled, forge, git, make_checkout, write

from manifests.code_identity import CodeIdentity
from manifests.errors import EnvironmentRefused
from resources.code import bytecode, held_before
from resources.code import identity as module
from resources.code.bytecode import altered
from resources.code.identity import code_identity, forget
from resources.code.sources import Sources, _distribution_of, _imports


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the project's layout, committed."""
    monkeypatch.setattr(module, "_ROOT", tmp_path)
    forget()
    yield make_checkout(tmp_path)
    forget()


def identity() -> CodeIdentity:
    forget()
    return code_identity()


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
        lambda root: write(root, COMPUTE, "VERSION = 2\n"),
        lambda root: write(root, "backfill_assets/products/__init__.py", "new\n"),
        lambda root: (root / "resources/__init__.py").unlink(),
        lambda root: write(root, "pyproject.toml", "[project]\nname = 'x'\n"),
        lambda root: write(root, "requirements.lock", "polars==2.2.0\n"),
    ],
    ids=["changed", "added", "changed in a package", "added beside the products", "removed", "dependencies", "lock"],
)
def test_any_uncommitted_change_of_the_code_makes_it_dirty(root: Path, change: Callable[[Path], None]) -> None:
    clean = identity()
    change(root)
    found = identity()

    assert found.dirty is True
    assert found.git_commit == clean.git_commit


@pytest.mark.parametrize("flag", ["--assume-unchanged", "--skip-worktree"])
def test_what_git_is_told_to_overlook_is_dirty_all_the_same(root: Path, flag: str) -> None:
    git(root, "update-index", flag, "manifests/__init__.py")
    write(root, "manifests/__init__.py", "x = 1\n")

    assert git(root, "status", "--porcelain") == ""
    assert identity().dirty is True


def test_an_ignored_module_is_not_the_commits(root: Path) -> None:
    write(root, ".git/info/exclude", "*.py\n")
    write(root, "manifests/own.py", "x = 1\n")

    assert git(root, "status", "--porcelain") == ""
    assert identity().dirty is True


@pytest.mark.parametrize("damage", ["index", "tree", "head"])
def test_a_checkout_of_which_git_cannot_say_what_is_in_it_is_not_clean(root: Path, damage: str) -> None:
    commit = git(root, "rev-parse", "HEAD")
    write(root, "manifests/__init__.py", "x = 1\n")
    if damage == "index":
        (root / ".git/index").write_bytes(b"no index")
        assert identity().git_commit == commit
    elif damage == "tree":
        tree = git(root, "rev-parse", "HEAD^{tree}")
        file = root / ".git/objects" / tree[:2] / tree[2:]
        file.chmod(0o600)
        file.write_bytes(b"no tree")
        assert identity().git_commit == commit
    else:
        (root / ".git/HEAD").write_text("nothing\n")
        assert identity().git_commit is None
    assert identity().dirty is True


def test_line_endings_as_git_writes_them_are_no_change(root: Path) -> None:
    write(root, ".gitattributes", "*.py text eol=crlf\n")
    commit(root, "endings")
    (root / COMPUTE).unlink()
    git(root, "checkout", "--", ".")

    assert b"\r\n" in (root / COMPUTE).read_bytes()
    assert identity().dirty is False


def test_a_change_of_what_is_no_code_leaves_it_clean(root: Path) -> None:
    before = identity()
    write(root, "README.md", "read this\n")
    write(root, TRANSFORMS, "VERSION = 2\n")  # a product has an identity of its own
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


# --- what Python would execute ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", list(PycInvalidationMode))
def test_cached_bytecode_that_is_not_of_its_source_is_refused(root: Path, mode: PycInvalidationMode) -> None:
    cached = compiled(root, COMPUTE, mode)
    assert identity().dirty is False
    forge(cached, "VERSION = 9\n")

    with pytest.raises(EnvironmentRefused, match=r"that the sources do not account for: .*compute"):
        identity()
    cached.unlink()
    compiled(root, COMPUTE, mode)
    assert identity().dirty is False


def test_a_plan_looks_into_what_is_imported_and_a_launch_into_everything(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forge(compiled(root, COMPUTE), "VERSION = 9\n")
    assert code_identity(loaded_only=True).dirty is False
    with pytest.raises(EnvironmentRefused, match="compute"):
        identity()
    imported = ModuleType("compute")
    imported.__file__ = str(root / COMPUTE)
    monkeypatch.setitem(sys.modules, "compute_that_is_imported", imported)
    with pytest.raises(EnvironmentRefused, match="compute"):
        code_identity(loaded_only=True)


@pytest.fixture
def imported(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cached file of a module that is taken for imported, where no process has held one against its source before."""
    monkeypatch.setattr(held_before, "_file", lambda: tmp_path / "held")
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    module = ModuleType("compute")
    module.__file__ = str(root / COMPUTE)
    monkeypatch.setitem(sys.modules, "compute_that_is_imported", module)
    return compiled(root, COMPUTE)


def compiled_by(root: Path, *, loaded_only: bool) -> list[bytes]:
    """Return the sources that a new process compiles to look into cached files."""
    found: list[bytes] = []

    def noted(text: bytes, raw: bytes, level: str) -> bool:
        found.append(text)
        return is_of(text, raw, level)

    is_of = bytecode._is_of
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bytecode, "_is_of", noted)
        patch.setattr(bytecode, "_seen", {})
        assert altered([root / "backfill_assets"], loaded_only=loaded_only) == []
    return found


def test_a_plan_compiles_nothing_again_that_was_held_against_its_source_and_a_launch_everything(
    root: Path, imported: Path
) -> None:
    assert compiled_by(root, loaded_only=True) == [b"VERSION = 1\n"]
    assert compiled_by(root, loaded_only=True) == []
    assert compiled_by(root, loaded_only=False) == [b"VERSION = 1\n"]
    write(root, COMPUTE, "VERSION = 2\n")
    compiled(root, COMPUTE)
    assert compiled_by(root, loaded_only=True) == [b"VERSION = 2\n"]


def test_what_was_held_against_its_source_and_is_forged_since_is_refused(root: Path, imported: Path) -> None:
    facts = imported.stat()
    for _ in range(2):
        assert altered([root / "backfill_assets"], loaded_only=True) == []
    forge(imported, "VERSION = 9\n")
    os.utime(imported, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    for _ in range(2):
        assert altered([root / "backfill_assets"], loaded_only=True) == [str(imported)]


def larger(file: Path) -> None:
    with file.open("wb") as opened:
        opened.truncate(1 << 34)  # without taking room


@pytest.mark.parametrize(
    "damage", [lambda file: file.write_bytes(b"\xff\n"), lambda file: file.mkdir(), os.mkfifo, larger]
)
def test_what_was_held_before_is_held_again_where_that_is_not_on_record(
    root: Path, imported: Path, damage: Callable[[Path], None]
) -> None:
    damage(held_before._file())
    assert compiled_by(root, loaded_only=True) == [b"VERSION = 1\n"]


def test_nothing_is_kept_where_python_is_told_to_cache_nothing(
    root: Path, imported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    assert compiled_by(root, loaded_only=True) == [b"VERSION = 1\n"]
    assert not held_before._file().exists()


def test_of_very_many_files_those_of_the_last_look_are_remembered(
    root: Path, imported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held_before._file().write_text("".join(f"{number:064}\n" for number in range(20)))
    monkeypatch.setattr(held_before, "_MOST", 20)
    assert compiled_by(root, loaded_only=True) == [b"VERSION = 1\n"]
    assert len(held_before._file().read_text().split()) == 1
    assert compiled_by(root, loaded_only=True) == []


def test_cached_bytecode_that_python_does_not_use_is_left_alone(root: Path) -> None:
    cached = compiled(root, "manifests/__init__.py")
    write(root, "manifests/__init__.py", "x = 1  # longer than before\n")  # Python compiles it again
    forge(cached, "VERSION = 9\n")
    (cached.parent / "__init__.cpython-27.pyc").write_bytes(b"of another Python")
    of_pytest = compiled(root, COMPUTE)
    forge(of_pytest.rename(of_pytest.with_name(of_pytest.name.replace(".pyc", "-pytest-9.2.0.pyc"))), "VERSION = 9\n")

    assert len(identity().content_hash) == 64


@pytest.mark.parametrize("name", [f"model{EXTENSION_SUFFIXES[0]}", "gone.pyc"])
def test_a_file_that_python_would_import_beside_the_sources_is_refused(root: Path, name: str) -> None:
    write(root, f"manifests/{name}", "")

    with pytest.raises(EnvironmentRefused, match="find out who wrote them"):
        identity()


def test_a_folder_that_cannot_be_listed_just_now_is_not_taken_for_one_of_nothing(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(folder: str | Path) -> Iterator[os.DirEntry[str]]:
        if Path(folder).name == "manifests":
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(folder))
        return scandir(folder)

    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", full)
    with pytest.raises(OSError, match="Too many open files"):
        altered([root / "manifests"])
    assert altered([root / "gone"]) == []


def test_sources_that_change_while_a_process_runs_are_noticed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = identity()
    monkeypatch.setattr(module, "code_identity", lambda _: before)
    assert not module.changed_on_disk()
    write(root, "manifests/__init__.py", "x = 1\n")
    assert module.changed_on_disk()


def test_the_running_code_has_an_identity() -> None:
    assert len(code_identity().content_hash) == 64
    assert code_identity() is code_identity()


# --- of a product -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("second_is_kept", [True, False], ids=["both in checkouts", "one in none"])
@pytest.mark.parametrize("changed", [None, "of_functions", "of_models"])
def test_a_product_in_two_distributions_is_clean_where_both_are(
    root: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    second_is_kept: bool,
    changed: str | None,
) -> None:
    """What git says of the code that it keeps counts, wherever the rest comes from."""
    commits = []
    for name in ("of_functions", "of_models"):
        folder = tmp_path_factory.mktemp(name)
        write(folder, f"{name}.py", "VERSION = 1\n")
        monkeypatch.syspath_prepend(str(folder))
        if name == "of_functions" or second_is_kept:
            git(folder, "init", "--quiet")
            commits.append(commit(folder, "first"))
        if changed == name:
            write(folder, f"{name}.py", "VERSION = 2\n")
    found = code_identity(Sources("both", ("of_functions", "of_models"))).product
    assert found.git_commit == "+".join(commits)
    assert found.dirty is (changed == "of_functions" or (changed is not None and second_is_kept))
    assert all(one[:12] in str(found) for one in commits)


IMPORTS = """
if x:
    import one
elif y:
    import two
else:
    from three.four import five
for z in x:
    try:
        import six.seven as eight, nine
    except* ValueError:
        import ten
    else:
        from . import near
    finally:
        import eleven
while x:
    with y:
        match z:
            case 1:
                import twelve
else:
    async def f():
        async with x:
            class C:
                def g(self):
                    async for a in b:
                        import thirteen
"""


def test_an_import_is_found_wherever_it_stands(tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text(IMPORTS)
    found = set(_imports(tmp_path / "code.py"))
    assert found == {"one", "two", "three", "six", "nine", "ten", "eleven", "twelve", "thirteen"}


def test_a_package_is_of_the_distribution_that_python_says_has_brought_it() -> None:
    known = packages_distributions()
    asked = sorted(name for name in known if name.isidentifier())[::25]
    assert len(asked) > 5
    assert {name: _distribution_of(name) for name in asked} == {name: known[name][0] for name in asked}
    assert _distribution_of("nothing_has_brought_this") is None
