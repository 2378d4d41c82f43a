"""A small checkout of the project's layout, for tests of what code is: it is committed, changed and compiled for real."""

from __future__ import annotations

import marshal
import py_compile
import subprocess
from pathlib import Path
from py_compile import PycInvalidationMode

from resources.code.identity import PACKAGES

COMPUTE = "backfill_assets/staging/compute.py"
TRANSFORMS = "backfill_assets/products/enforcement/transforms.py"


def git(folder: Path, *arguments: str) -> str:
    """Run git in a folder, as somebody who has a name; return what it prints."""
    identity = ["-c", "user.name=ada", "-c", "user.email=ada@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", "-C", str(folder), *identity, *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def write(root: Path, name: str, text: str) -> None:
    """Write a file of a checkout."""
    file = root / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


def make_checkout(folder: Path) -> Path:
    """Make a checkout of the project's layout in a folder, committed; return the folder."""
    for package in PACKAGES:
        write(folder, f"{package}/__init__.py", "")
    write(folder, COMPUTE, "VERSION = 1\n")
    write(folder, TRANSFORMS, "VERSION = 1\n")
    write(folder, "pyproject.toml", "[project]\n")
    write(folder, "requirements.lock", "polars==2.1.0\n")
    write(folder, "README.md", "read me\n")
    git(folder, "init", "--quiet")
    commit(folder, "first")
    return folder


def commit(root: Path, why: str) -> str:
    """Commit everything; return the commit."""
    git(root, "add", ".")
    git(root, "commit", "--quiet", "-m", why)
    return git(root, "rev-parse", "HEAD")


def compiled(root: Path, name: str, mode: PycInvalidationMode = PycInvalidationMode.TIMESTAMP) -> Path:
    """Compile a file of a checkout as Python does when it imports it; return the cached bytecode."""
    return Path(str(py_compile.compile(str(root / name), invalidation_mode=mode, doraise=True)))


def forge(cached: Path, text: str) -> None:
    """Put other code into a cached file, under the header that names its source."""
    cached.write_bytes(cached.read_bytes()[:16] + marshal.dumps(compile(text, "x.py", "exec")))
