"""Which code is running: the identity that a plan records.

The git commit, where the code runs from a checkout, and always a hash of the packages' contents, which a wheel has too.
"""

from __future__ import annotations

import hashlib
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from manifests.planner import CodeIdentity

PACKAGES = ("backfill_assets", "resources", "manifests")
LOCK_FILE = "requirements.lock"
_ROOT = Path(__file__).resolve().parent.parent
_SHORT = 20


@cache
def code_identity() -> CodeIdentity:
    """Return the identity of the code of this process."""
    try:
        package_version = version("backfill-assets")
    except PackageNotFoundError:
        package_version = "0+unknown"
    lock = _ROOT / LOCK_FILE
    commit = _git("rev-parse", "HEAD") if (_ROOT / ".git").exists() else None
    changes = None
    if commit is not None:
        paths = [f"{package}/**/*.py" for package in PACKAGES] + ["pyproject.toml", LOCK_FILE]
        changes = _git("status", "--porcelain", "--", *(f":(glob){path}" for path in paths))
    return CodeIdentity(
        package_version=package_version,
        content_hash=_content_hash(),
        lock_hash=hashlib.sha256(lock.read_bytes()).hexdigest() if lock.is_file() else None,
        git_commit=commit,
        dirty=bool(changes),
    )


def _content_hash() -> str:
    total = hashlib.sha256()
    for package in PACKAGES:
        for file in sorted((_ROOT / package).rglob("*.py")):
            total.update(str(file.relative_to(_ROOT)).encode() + b"\0")
            total.update(hashlib.sha256(file.read_bytes()).digest())
    return total.hexdigest()


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(_ROOT), *arguments], capture_output=True, text=True, timeout=_SHORT, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None  # no git here, or no commit yet: the content hash identifies the code
    return done.stdout.strip()
