"""Where code lies: the files of packages and modules, the checkout they are in, and the distribution they came with.

Put here how files are found and named. What their identity is, and what becomes of a difference, is
`resources.code.identity`'s.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.machinery import BYTECODE_SUFFIXES, ModuleSpec
from importlib.metadata import PackageNotFoundError, distributions, version
from importlib.util import find_spec
from pathlib import Path
from symtable import symtable
from warnings import catch_warnings, simplefilter

LOCK_FILES = ("requirements.lock", "uv.lock", "poetry.lock", "pdm.lock", "Pipfile.lock")
_NEVER = frozenset({"__pycache__", ".git"})
_TEXTS = frozenset({".py", ".sql", ".csv", ".json", ".toml", ".yaml", ".yml"})
"""Ends of names of files that count also where the name is a hidden one, or a backup's."""
_MAKES_NAMES = re.compile(
    r"import[\s\\]*\*|:=|\b(globals|locals|vars|exec|eval|setattr|global|modules|__dict__|__class__|__getattr__|__import__)\b"
)
"""What a module has names by that nobody can see: star imports, names that are set, modules in place of itself."""
_BODIES = ("body", "orelse", "finalbody", "handlers", "cases")
"""Fields of a node of syntax that statements are in, or what has statements in it."""
INSTALLED = frozenset({"site-packages", "dist-packages"})
"""Folders of what is installed: the lock file is about it, wherever the environment lies."""


@dataclass(frozen=True)
class Sources:
    """The code of one product.

    Attributes:
        name: the product's name.
        packages: full names of the packages and modules that the code is.
    """

    name: str
    packages: tuple[str, ...]

    @cached_property
    def roots(self) -> tuple[Path, ...]:
        """The folder of each package, and the file of each module."""
        return tuple(sorted({root for package in self.packages for root in _roots(package)}))

    def files(self) -> dict[str, Path]:
        """Return every file of the code by the name that it is hashed under: its path below the folder of its package."""
        found: dict[str, Path] = {}
        for root in self.roots:
            for file in _below(root):
                name = f"{root.name}/{file.relative_to(root).as_posix()}" if root.is_dir() else file.name
                while name in found:  # a package in several folders may have a file of one name in each
                    name += "'"
                found[name] = file
        return found

    @cached_property
    def checkouts(self) -> dict[Path, tuple[Path, ...]]:
        """The root of each git checkout that code runs from, with the roots that lie in it; of what is installed there is none."""
        found: dict[Path, tuple[Path, ...]] = {}
        for root in self.roots:
            if (checkout := _checkout_of(root)) is not None:
                found[checkout] = (*found.get(checkout, ()), root)
        return found

    @cached_property
    def version(self) -> str | None:
        """Name and version of the distribution that brought the code; None where none did."""
        top = self.packages[0].partition(".")[0] if self.packages else ""
        usual = top.replace("_", "-")
        try:
            return f"{usual} {version(usual)}"
        except (PackageNotFoundError, ValueError):
            other = _distribution_of(top)
        return None if other is None else f"{other} {version(other)}"


def _distribution_of(top: str) -> str | None:
    """Return the name of the first distribution that brought a package or module of a top-level name; None where none did.

    `importlib.metadata.packages_distributions` says the same of every package there is, and reads what every distribution
    has brought; here that of a distribution which does not mention the name is not taken apart.
    """
    for one in distributions():
        declared = (one.read_text("top_level.txt") or "").split()
        if not declared:
            record = one.read_text("RECORD")
            if record is None or top in record:
                brought = (file for file in one.files or () if file.suffix == ".py")
                declared = [file.parts[0] if len(file.parts) > 1 else file.stem for file in brought]
        if top in declared:
            return one.metadata["Name"]
    return None


@cache
def imported_beside(packages: tuple[str, ...], without: frozenset[str]) -> tuple[str, ...]:
    """Return the top-level packages and modules that code imports and that are not installed: code that lies beside it.

    What those import counts as well. An import is found in the source, wherever it stands there; a name that is put together
    as the code runs is not. Answered once by process, which imports a module once.

    Args:
        packages: full names of the packages and modules that the code is.
        without: top-level names that are somebody else's to account for.
    """
    known = {package.partition(".")[0] for package in packages} | without | sys.stdlib_module_names
    found: list[str] = []
    to_read = list(packages)
    while to_read:
        files = (file for root in _roots(to_read.pop()) for file in _below(root) if file.suffix == ".py")
        for name in sorted({name for file in files for name in _imports(file)} - known):
            known.add(name)
            if any(INSTALLED.isdisjoint(root.parts) for root in _roots(name)):
                found.append(name)
                to_read.append(name)
    return tuple(found)


def _imports(file: Path) -> Iterator[str]:
    """Yield the top-level names that a file imports; none of one that Python cannot read, which says so itself."""
    try:
        with catch_warnings():
            simplefilter("ignore")
            tree = ast.parse(file.read_bytes())
    except (OSError, ValueError, SyntaxError):
        return
    for node in _statements(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            yield node.module.partition(".")[0]


def _statements(tree: ast.Module) -> Iterator[ast.stmt]:
    """Yield the statements of a file, however deep they stand: an expression has none in it, and most of a file is expressions."""
    to_read: list[ast.AST] = [tree]
    while to_read:
        node = to_read.pop()
        if isinstance(node, ast.stmt):
            yield node
        for name in _BODIES:
            to_read += getattr(node, name, ())


def missing_of(module: str, name: str) -> str | None:
    """Return which part of `module:name` there is not, as far as files say; None if there is nothing to say against it.

    Nothing is imported for this: of a package that was not imported, no more is said than that there is one. Nor is anything
    said of what a package itself has, which its modules may set, or of a module that may make up its names.
    """
    top, parent = module.partition(".")[0], module.rpartition(".")[0]
    try:
        if top not in sys.modules and find_spec(top) is None:
            return top
        if module in sys.modules or (parent and parent not in sys.modules):
            spec = getattr(sys.modules.get(module), "__spec__", None)
        else:
            spec = find_spec(module)
            if spec is None:
                return module
    except (ValueError, ImportError):
        return None
    file = Path(getattr(spec, "origin", None) or "")
    if file.suffix != ".py" or file.stem == "__init__" or _may_bind(file, name):
        return None
    return f"{name} in {module}"


def _may_bind(file: Path, name: str) -> bool:
    """Return whether a file may bind a name at its top level; one that has ways to make up names may bind any."""
    try:
        code = file.read_text("utf-8")
        with catch_warnings():
            simplefilter("ignore")
            symbols = symtable(code, str(file), "exec").get_symbols()
    except (OSError, ValueError, SyntaxError):
        return True
    own = {symbol.get_name() for symbol in symbols if symbol.is_assigned() or symbol.is_imported()}
    return name in own or _MAKES_NAMES.search(code) is not None


def is_code(name: str) -> bool:
    """Return whether a file of a product counts as its code, by its path below the package's folder.

    All do but caches, backups and what is hidden: whatever lies beside the code may be read by it, and change what it computes.
    """
    file = Path(name)
    if not _NEVER.isdisjoint(file.parts) or file.suffix in BYTECODE_SUFFIXES:
        return False
    is_hidden = any(part.startswith(".") for part in file.parts)
    return file.suffix.lower() in _TEXTS or not (is_hidden or file.name.endswith("~"))


def is_found(package: str) -> bool:
    """Whether Python finds a package or module, in whatever form."""
    return _spec(package) is not None


def _spec(package: str) -> ModuleSpec | None:
    try:
        return find_spec(package)
    except (Exception, SystemExit, GeneratorExit):  # noqa: BLE001 - only its author's script knows it, or a package raises
        return None


def _roots(package: str) -> Iterator[Path]:
    spec = _spec(package)
    if spec is not None and spec.submodule_search_locations is not None:
        yield from (Path(folder).resolve() for folder in spec.submodule_search_locations)
        return
    file = getattr(sys.modules.get(package), "__file__", None) if spec is None else spec.origin
    if file is not None and Path(file).is_file():
        yield Path(file).resolve()


def _checkout_of(root: Path) -> Path | None:
    if not INSTALLED.isdisjoint(root.parts):
        return None  # an environment may lie below somebody's checkout
    return next((folder for folder in root.parents if (folder / ".git").exists()), None)


def _below(root: Path) -> Iterator[Path]:
    if root.is_file():
        yield root
        return
    yield from sorted(file for file in root.rglob("*") if is_code(file.relative_to(root).as_posix()) and file.is_file())
