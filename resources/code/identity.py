"""Which code is running: the identity that a plan records.

The git commit, where the code runs from a checkout, and always a hash of the packages' contents, which a wheel has too.
Where git cannot say that the code is the commit's, it is not; and where Python would execute something else than the
sources, nothing is planned and nothing computed.
"""

from __future__ import annotations

import hashlib
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from manifests.errors import EnvironmentRefused, Problem
from manifests.planner import CodeIdentity
from resources.code.bytecode import altered

PACKAGES = ("backfill_assets", "resources", "manifests")
LOCK_FILE = "requirements.lock"
_BESIDE = ("pyproject.toml", LOCK_FILE)
_ROOT = Path(__file__).resolve().parents[2]
_SHORT = 20
_SHOWN = 5


@cache
def code_identity() -> CodeIdentity:
    """Return the identity of the code of this process.

    Raises:
        EnvironmentRefused: if Python would execute something else than the sources.
    """
    require_own_bytecode()
    try:
        package_version = version("backfill-assets")
    except PackageNotFoundError:
        package_version = "0+unknown"
    lock = _ROOT / LOCK_FILE
    commit, dirty = _commit()
    return CodeIdentity(
        package_version=package_version,
        content_hash=_content_hash(),
        lock_hash=hashlib.sha256(lock.read_bytes()).hexdigest() if lock.is_file() else None,
        git_commit=commit,
        dirty=dirty,
    )


def require_own_bytecode() -> None:
    """Refuse to go on with cached bytecode, or libraries, that are not of the sources: this process and its workers use them.

    Raises:
        EnvironmentRefused: naming them.
    """
    found = altered(_ROOT / package for package in PACKAGES)
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


def changed_on_disk() -> bool:
    """Whether the sources are other ones by now than when this process looked at its own: workers would import those."""
    return _content_hash() != code_identity().content_hash


def _commit() -> tuple[str | None, bool]:
    """Return the commit that is checked out, and whether the code is another one than the commit's.

    Contents are compared, not what git's index says of them: it can be told to assume that a file is unchanged. A
    checkout of which git cannot say what is in it is not clean.
    """
    if not (_ROOT / ".git").exists():
        return None, False
    try:
        commit = _git("rev-parse", "--verify", "HEAD").strip()
        return commit, _committed(commit) != _present()
    except FileNotFoundError:
        return None, False  # no git on this machine: the content hash identifies the code
    except (OSError, ValueError, subprocess.SubprocessError):
        try:
            return _git("rev-parse", "--verify", "HEAD").strip(), True
        except (OSError, subprocess.SubprocessError):
            return None, True


def _committed(commit: str) -> dict[str, str]:
    """Return the blob of each file of the code in a commit, by its path."""
    found = {}
    for entry in _git("ls-tree", "-r", "-z", "--full-tree", commit, "--", *PACKAGES, *_BESIDE).split("\0"):
        if entry:
            facts, _, path = entry.partition("\t")
            if path in _BESIDE or path.endswith(".py"):
                found[path] = facts.split()[2]
    return found


def _present() -> dict[str, str]:
    """Return the blob that each file of the code would be if it were committed as it is, by its path."""
    files = [file for package in PACKAGES for file in (_ROOT / package).rglob("*.py")]
    files += [_ROOT / name for name in _BESIDE if (_ROOT / name).is_file()]
    paths = [str(file.relative_to(_ROOT)) for file in files]
    blobs = _git("hash-object", "--stdin-paths", given="".join(f"{path}\n" for path in paths)).split()
    return dict(zip(paths, blobs, strict=True))


def _content_hash() -> str:
    total = hashlib.sha256()
    for package in PACKAGES:
        for file in sorted((_ROOT / package).rglob("*.py")):
            total.update(str(file.relative_to(_ROOT)).encode() + b"\0")
            total.update(hashlib.sha256(file.read_bytes()).digest())
    return total.hexdigest()


def _git(*arguments: str, given: str = "") -> str:
    command = ["git", "-C", str(_ROOT), *arguments]
    done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=_SHORT, check=True)
    return done.stdout
