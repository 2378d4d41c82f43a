"""Which code a plan is made by: this package's and the product's, and why a run may not be made by it.

Put here what an identity says and how two are compared. What reads it from files and git is `resources.code.identity`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from manifests.canonical import LATER
from manifests.errors import Problem

_SHORT_HASH = 12
_SHOWN = 5


@dataclass(frozen=True)
class ProductCode:
    """Which code a product is: its packages, the distribution that brought them, and what `CodeIdentity` says of its own."""

    name: str
    packages: tuple[str, ...]
    distribution: str | None
    content_hash: str
    lock_hash: str | None
    git_commit: str | None
    dirty: bool

    def __str__(self) -> str:
        return f"product {self.name} {_code_in_words(self)}"


@dataclass(frozen=True)
class CodeIdentity:
    """Which code: the git commit where there is one, and always a hash of the packages' contents.

    `product` is the code of the product that declares the target. Plans that were made before a product had code of its
    own have none: the hash of this package covered it.
    """

    package_version: str
    content_hash: str
    lock_hash: str | None
    git_commit: str | None
    dirty: bool
    product: ProductCode | None = field(default=None, metadata=LATER)

    def __str__(self) -> str:
        return "; ".join([_code_in_words(self), *([str(self.product)] if self.product else [])])

    @property
    def parts(self) -> tuple[CodeIdentity | ProductCode, ...]:
        """This package's code, and the product's."""
        return (self,) if self.product is None else (self, self.product)

    @property
    def is_dirty(self) -> bool:
        """Whether a part is not what its commit says."""
        return any(part.dirty for part in self.parts)

    def is_same(self, other: CodeIdentity) -> bool:
        """Return whether another identity names the same contents; which commits they were checked out from does not count."""
        return [part.content_hash for part in self.parts] == [part.content_hash for part in other.parts]


def _code_in_words(code: CodeIdentity | ProductCode) -> str:
    commits = [one[:_SHORT_HASH] for one in code.git_commit.split("+")] if code.git_commit else []
    git = f"git {' and '.join(commits)}" if commits else "no git"
    return f"{code.content_hash[:_SHORT_HASH]} ({git}{', with uncommitted changes' if code.dirty else ''})"


def code_problems(code: CodeIdentity, uncommitted: Mapping[str, Sequence[str]]) -> list[Problem]:
    """Return why no run but one for development may be made by this code: it is not what a commit says.

    `uncommitted` has the files in which it is not, by the product's name, or "" for the platform's.
    """
    return [
        Problem(
            f"{whose} is git commit {part.git_commit} with uncommitted changes"
            if part.git_commit is not None
            else f"{whose} lies in a git checkout, and git cannot say which commit it is of",
            "a run must say which code made it",
            "commit the changes, or mark the manifest `development: true`",
            ", ".join(files[:_SHOWN]) + (f" and {len(files) - _SHOWN} more" if len(files) > _SHOWN else ""),
        )
        for part in code.parts
        if part.dirty
        for files in [uncommitted.get(part.name if isinstance(part, ProductCode) else "", ())]
        for whose in [f"the code of product {part.name}" if isinstance(part, ProductCode) else "the code"]
    ]
