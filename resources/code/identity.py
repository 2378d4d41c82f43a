"""Which code is running: the identity that a plan records, of this package and of the product that declares the target.

The git commit, where code runs from a checkout, and always a hash of its contents, which a wheel has too. Where git cannot
say that the code is the commit's, it is not; and where Python would execute something else than the sources, nothing is
planned and nothing computed. A product has an identity of its own: a change of it voids the plans of its tables alone.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from manifests.code_identity import CodeIdentity, ProductCode
from manifests.errors import EnvironmentRefused, Problem
from resources.code.bytecode import altered
from resources.code.sources import LOCK_FILES, Sources, imported_beside, is_code

PACKAGES = ("backfill_assets", "resources", "manifests")
PRODUCTS = "backfill_assets/products"
"""The products that ship lie below this package, and are no part of its identity."""
_ROOT = Path(__file__).resolve().parents[2]
_SHORT = 20
_SHOWN = 5
_SUBMODULE = "160000"
"""Mode of an entry of a commit that is another repository's: its files count as they lie there."""


@dataclass(frozen=True)
class _Tree:
    """The files of some code by the names they are hashed under, and where git keeps them."""

    files: Mapping[str, Path]
    checkout: Path | None
    paths: tuple[str, ...]
    is_code: Callable[[str], bool]
    beside: tuple[str, ...]
    locks: tuple[str, ...]


def _own_tree() -> _Tree:
    """Return this package, without the products that ship with it."""
    files = (file for package in PACKAGES for file in sorted((_ROOT / package).rglob("*.py")))
    named = {file.relative_to(_ROOT).as_posix(): file for file in files}
    return _Tree(
        files={name: file for name, file in named.items() if _is_own(name)},
        checkout=_ROOT if (_ROOT / ".git").exists() else None,
        paths=PACKAGES,
        is_code=_is_own,
        beside=("pyproject.toml", LOCK_FILES[0]),
        locks=LOCK_FILES[:1],
    )


def _is_own(name: str) -> bool:
    return name.endswith(".py") and not (name.startswith(f"{PRODUCTS}/") and name.count("/") > PRODUCTS.count("/") + 1)


def _trees_of(product: Sources) -> list[_Tree]:
    """Return the code of a product that git keeps, a tree a checkout."""
    return [
        _Tree(
            files={name: file for name, file in product.files().items() if any(map(file.is_relative_to, roots))},
            checkout=checkout,
            paths=tuple(str(root.relative_to(checkout)) for root in roots),
            is_code=partial(_is_below, checkout, roots),
            beside=(),
            locks=LOCK_FILES,
        )
        for checkout, roots in product.checkouts.items()
    ]


def _is_below(checkout: Path, roots: Sequence[Path], path: str) -> bool:
    """Return whether what git names by a path in a checkout is code that lies below one of some folders, or is one of some files."""
    file = checkout / path
    return any(
        file == root or (file.is_relative_to(root) and is_code(file.relative_to(root).as_posix())) for root in roots
    )


def code_identity(product: Sources | None = None, *, loaded_only: bool = False) -> CodeIdentity:
    """Return the identity of the code of this process: this package's, and a product's, as it was when first asked for.

    Raises:
        EnvironmentRefused: if Python would execute something else than the sources; with `loaded_only`, of what this process
            has imported so far. Who goes on to compute looks at all of it.
    """
    _look_into_once(product, loaded_only)
    return identity_of_sources(product)


@cache
def _look_into_once(product: Sources | None, loaded_only: bool) -> None:
    require_own_bytecode(product, loaded_only=loaded_only)


def forget() -> None:
    """Have the identity looked up anew, as a new process would."""
    imported_beside.cache_clear()
    _look_into_once.cache_clear()
    identity_of_sources.cache_clear()


@cache
def identity_of_sources(product: Sources | None = None) -> CodeIdentity:
    """Return what the sources say of the code of this process, and of a product's, when first asked for."""
    try:
        package_version = version("backfill-assets")
    except PackageNotFoundError:
        package_version = "0+unknown"
    own = _own_tree()
    commit, dirty = _commit(own)
    return CodeIdentity(
        package_version=package_version,
        content_hash=_content_hash(own.files),
        lock_hash=_lock_hash(_ROOT, own.locks),
        git_commit=commit,
        dirty=dirty,
        product=None if product is None else _identity_of(product),
    )


def _identity_of(product: Sources) -> ProductCode:
    """Return the identity of a product's code; where it comes from several checkouts, it has the commit of each, with `+` between."""
    trees = _trees_of(product)
    found = [_commit(tree) for tree in trees]
    locks = (_lock_hash(tree.checkout, tree.locks) for tree in trees)
    return ProductCode(
        name=product.name,
        packages=product.packages,
        distribution=product.version,
        content_hash=_content_hash(product.files()),
        lock_hash=next(filter(None, locks), None),
        git_commit="+".join(commit for commit, _ in found if commit is not None) or None,
        dirty=any(dirty for _, dirty in found),
    )


def uncommitted(product: Sources | None = None) -> dict[str, list[str]]:
    """Return the files in which code differs from its commit, by whose it is: a product's name, or "" of this package's.

    Also those that git does not keep, and those that are no more there. Empty for what lies in no checkout, or where git
    cannot say.
    """
    found: dict[str, list[str]] = {}
    trees = [("", _own_tree()), *(() if product is None else ((product.name, tree) for tree in _trees_of(product)))]
    for name, tree in trees:
        with suppress(OSError, ValueError, subprocess.SubprocessError):
            if tree.checkout is not None:
                present, there = _present(tree, tree.checkout), _committed(tree, tree.checkout, "HEAD")
                differing = sorted(
                    file for file in present.keys() | there.keys() if present.get(file) != there.get(file)
                )
                found.setdefault(name, []).extend(str(tree.checkout / file) for file in differing)
    return found


def require_own_bytecode(product: Sources | None = None, *, loaded_only: bool = False) -> None:
    """Refuse to go on with cached bytecode, or libraries, that are not of the sources: this process and its workers use them.

    Raises:
        EnvironmentRefused: naming them.
    """
    roots = [_ROOT / package for package in PACKAGES] + list(product.roots if product is not None else ())
    found = list(dict.fromkeys(altered(roots, loaded_only=loaded_only)))
    if not found:
        return
    shown = ", ".join(found[:_SHOWN]) + (" …" if len(found) > _SHOWN else "")
    raise EnvironmentRefused(
        Problem(
            f"Python would execute {len(found)} file(s) that the sources do not account for: {shown}",
            "a plan names its code by the sources, and what runs is that code",
            "find out who wrote them; then remove them, and what is cached is made again",
        )
    )


def own_content() -> str:
    """Return the hash of this package's files as they lie on the disk now, without the products that ship with it."""
    return _content_hash(_own_tree().files)


def content_of(product: Sources) -> str:
    """Return the hash of a product's files as they lie on the disk now."""
    return _content_hash(product.files())


def changed_on_disk(product: Sources | None = None) -> bool:
    """Whether the sources are other ones by now than when this process looked at its own: workers would import those."""
    known = identity_of_sources(product)
    present = [_own_tree().files, *([] if product is None else [product.files()])]
    return [part.content_hash for part in known.parts] != [_content_hash(files) for files in present]


def _commit(tree: _Tree) -> tuple[str | None, bool]:
    """Return the commit that is checked out, and whether the code is another one than the commit's.

    Contents are compared, not what git's index says of them: it can be told to assume that a file is unchanged. A
    checkout of which git cannot say what is in it is not clean.
    """
    if tree.checkout is None:
        return None, False
    try:
        commit = _git(tree.checkout, "rev-parse", "--verify", "HEAD").strip()
        return commit, _committed(tree, tree.checkout, commit) != _present(tree, tree.checkout)
    except FileNotFoundError:
        return None, False  # no git on this machine: the content hash identifies the code
    except (OSError, ValueError, subprocess.SubprocessError):
        try:
            return _git(tree.checkout, "rev-parse", "--verify", "HEAD").strip(), True
        except (OSError, subprocess.SubprocessError):
            return None, True


def _committed(tree: _Tree, checkout: Path, commit: str) -> dict[str, str]:
    """Return the blob of each file of the code in a commit, by its path."""
    found = {}
    for entry in _git(checkout, "ls-tree", "-r", "-z", "--full-tree", commit, "--", *tree.paths, *tree.beside).split(
        "\0"
    ):
        if entry:
            facts, _, path = entry.partition("\t")
            mode, _, blob = facts.split()
            if (path in tree.beside or tree.is_code(path)) and mode != _SUBMODULE:
                found[path] = blob
    return found


def _present(tree: _Tree, checkout: Path) -> dict[str, str]:
    """Return the blob that each file of the code would be if it were committed as it is, by its path."""
    files = [*tree.files.values(), *(checkout / name for name in tree.beside if (checkout / name).is_file())]
    paths = [str(file.relative_to(checkout)) for file in files]
    blobs = _git(checkout, "hash-object", "--stdin-paths", given="".join(f"{path}\n" for path in paths)).split()
    return dict(zip(paths, blobs, strict=True))


def _content_hash(files: Mapping[str, Path]) -> str:
    total = hashlib.sha256()
    for name, file in files.items():
        total.update(os.fsencode(name) + b"\0")
        try:
            with file.open("rb") as opened:
                total.update(hashlib.file_digest(opened, "sha256").digest())
        except OSError as error:
            raise EnvironmentRefused(
                Problem(
                    f"{file} cannot be read: {error.strerror}",
                    "a plan names its code by the content of its files, all that lie in the package",
                    "make it readable, or keep it elsewhere; what is written while a run computes is no code",
                )
            ) from error
    return total.hexdigest()


def _lock_hash(folder: Path | None, names: Iterable[str]) -> str | None:
    """Return the hash of the first lock file that is there; None where there is none."""
    files = () if folder is None else (folder / name for name in names)
    return next((hashlib.sha256(file.read_bytes()).hexdigest() for file in files if file.is_file()), None)


def _git(checkout: Path, *arguments: str, given: str = "") -> str:
    command = ["git", "-C", str(checkout), *arguments]
    done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=_SHORT, check=True)
    return done.stdout
