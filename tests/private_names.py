"""Where the packages use what is private of the libraries they stand on: found in their syntax trees, class by class.

Put here how a use is told from a private name of this project. What must hold of the uses is in `test_upstream.py`.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parent.parent
LIBRARY_OF = {
    "pyiceberg": "pyiceberg",
    "botocore": "botocore",
    "pandera": "pandera",
    "pyspark": "pyspark",
    "dagster": "dagster",
    "dagster_graphql": "dagster",
    "dagster_postgres": "dagster",
    "dagster_pyspark": "dagster",
    "dagster_shared": "dagster",
    "dagster_webserver": "dagster",
}
"""The library that a package belongs to."""
UNDOCUMENTED = ("pyspark.daemon", "pandera.api")
"""Modules without an underscore that no reference of their library names."""
OF_OTHERS = frozenset({"_asdict", "_fields", "_make", "_replace", "_mapping", "_values"})
"""Names with an underscore of named tuples and of SQLAlchemy, which are not looked for."""
UNKNOWN = "some library"
_PRIVATE = re.compile(r"_(?!_)\w+")


@dataclass(frozen=True)
class Use:
    """A private name that a module uses, and of which library it is, where that can be told."""

    library: str
    name: str
    module: str
    line: int

    def __str__(self) -> str:
        return f"{self.module}:{self.line}: {self.name} of {self.library}"


def modules() -> dict[str, Path]:
    """Return the modules of the three packages by name."""
    files = [
        file for package in ("backfill_assets", "manifests", "resources") for file in (ROOT / package).rglob("*.py")
    ]
    return {
        ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): file
        for file in files
        if "migrations" not in file.parts
    }


def uses_in(module: str, text: str, loaded: ModuleType | None = None) -> list[Use]:
    """Return the private names of libraries that the text of a module uses; the bases of its classes are looked up in the module."""
    return sorted(_Finder(module, loaded).found_in(ast.parse(text)), key=lambda use: (use.line, use.name))


class _Finder(ast.NodeVisitor):
    def __init__(self, module: str, loaded: ModuleType | None) -> None:
        self._module, self._loaded = module, loaded
        self._found: list[Use] = []
        self._inherited: list[dict[str, str]] = []
        """For each class around a node, the private names of its bases in libraries, with their library."""
        self._own: list[set[str]] = []
        """For each class around a node, the names that it gives itself."""

    def found_in(self, tree: ast.AST) -> list[Use]:
        self.visit(tree)
        return self._found

    def _add(self, library: str, name: str, node: ast.AST) -> None:
        self._found.append(Use(library, name, self._module, getattr(node, "lineno", 0)))

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            if (library := _library(alias.name)) and _is_private(alias.name):
                self._add(library, alias.name, node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if (library := _library(node.module or "")) is None:
            return
        for alias in node.names:
            if _is_private(node.module or "") or _PRIVATE.match(alias.name):
                self._add(library, alias.name, node)

    def visit_Constant(self, node: ast.Constant) -> None:
        dotted = node.value if isinstance(node.value, str) and re.fullmatch(r"\w+(\.\w+)+", node.value) else ""
        if (library := _library(dotted)) and _is_private(dotted):
            self._add(library, dotted, node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        loaded = self._loaded or import_module(self._module)
        bases = [base for base in (_named(loaded, expression) for expression in node.bases) if isinstance(base, type)]
        inherited = {name: library for base in bases for name, library in _inherited(base).items()}
        for statement in node.body:
            for name in _defined(statement):
                if name in inherited:
                    self._add(inherited[name], name, statement)
        self._inherited.append(inherited)
        self._own.append(_given(node) - inherited.keys())
        self.generic_visit(node)
        self._inherited.pop()
        self._own.pop()

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self._judge(node.value, node.attr, node)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        match node:
            case ast.Call(
                func=ast.Name(id="getattr" | "setattr" | "hasattr" | "delattr"),
                args=[owner, ast.Constant(value=str(name)), *_],
            ):
                self._judge(owner, name, node)
        self.generic_visit(node)

    def _judge(self, owner: ast.expr, name: str, node: ast.AST) -> None:
        if not _PRIVATE.fullmatch(name) or name in OF_OTHERS:
            return
        if self._inherited and name in self._inherited[-1]:
            self._add(self._inherited[-1][name], name, node)
        elif not _is_of_itself(owner) and not (self._own and name in self._own[-1]):
            self._add(UNKNOWN, name, node)


def _is_of_itself(owner: ast.expr) -> bool:
    """Whether an attribute is asked of the object or the class that the code around it belongs to."""
    match owner:
        case ast.Name(id="self" | "cls"):
            return True
        case ast.Call(func=ast.Name(id="super")):
            return True
    return False


def _library(dotted: str) -> str | None:
    return LIBRARY_OF.get(dotted.partition(".")[0])


def _is_private(dotted: str) -> bool:
    return any(_PRIVATE.match(part) for part in dotted.split(".")) or f"{dotted}.".startswith(
        tuple(f"{name}." for name in UNDOCUMENTED)
    )


def _named(loaded: ModuleType, expression: ast.expr) -> object:
    """Return what a base of a class names in its module; None where that is no name."""
    match expression:
        case ast.Name(id=name):
            return getattr(loaded, name, None)
        case ast.Attribute(value=owner, attr=name):
            return getattr(_named(loaded, owner), name, None)
        case ast.Subscript(value=generic):
            return _named(loaded, generic)
    return None


def _inherited(cls: type) -> dict[str, str]:
    """Return the private names that a class and its bases mention, where they are of a library, each with the library."""
    return {name: library for base in cls.__mro__ if (library := _library(base.__module__)) for name in mentioned(base)}


def mentioned(base: type) -> set[str]:
    """Return the private names in the source of a class."""
    try:
        text = inspect.getsource(base)
    except OSError:  # a generic that is made for a parameter
        text = " ".join(vars(base))
    return set(re.findall(r"\b_(?!_)\w+", text))


def _given(cls: ast.ClassDef) -> set[str]:
    """Return the names that a class gives itself: what its body defines, and what its methods set on `self`."""
    defined = {name for statement in cls.body for name in _defined(statement)}
    return defined | {
        node.attr
        for node in ast.walk(cls)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_of_itself(node.value)
    }


def _defined(statement: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement in the body of a class defines."""
    match statement:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.AnnAssign(target=ast.Name(id=name)):
            yield name
        case ast.Assign(targets=targets):
            yield from (target.id for target in targets if isinstance(target, ast.Name))
