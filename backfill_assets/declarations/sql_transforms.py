"""A transform that is a file of SQL beside its declaration: its inputs are views, its context are parameters.

Put here how the file is found and how Spark is given it. What may stand in it, which is known without a session, is
`sql_reading`'s; what is wrong with it in a declaration is said by `checking.sql`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backfill_assets.declarations.sql_reading import SqlReading, read_sql

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from backfill_assets.declarations.target import Inputs, TransformContext

SOURCE, LOOK_BACK = "source", "look_back"
"""The views of a transform's inputs; those of its further sources and reference tables have the tables' names."""
CONTEXT_PARAMETERS = ("run_clock", "publish_start", "publish_end", "version", "run_id", "mode")
"""The parameters that every transform has; those of the target's `configuration` have its names."""


@dataclass(frozen=True)
class SqlTransform:
    """A query in a file beside the module that declares it; called as any transform is.

    Attributes:
        module: the full name of that module.
        file: the file's name, or its path below the folder of the module.
        text: what it says; empty where it cannot be read.
        unread: why it cannot be read; empty where it can.
    """

    module: str
    file: str
    text: str = field(default="", init=False)
    unread: str = field(default="", init=False)

    def __post_init__(self) -> None:
        """Read the file, once: what is computed is what was declared, whatever becomes of the file meanwhile."""
        said, why = "", ""
        try:
            said = self.path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            why = f"{type(error).__name__}: {error}"
        object.__setattr__(self, "text", said)
        object.__setattr__(self, "unread", why)
        object.__setattr__(self, "__module__", self.module)  # whose code it is, as of any function
        object.__setattr__(self, "__qualname__", self.file)

    @property
    def path(self) -> Path:
        """The file, beside the module's own.

        Raises:
            ValueError: if there is no module of that name, or it is no file.
        """
        place = getattr(sys.modules.get(self.module), "__file__", None)
        if place is None:
            raise ValueError(f"{self.module!r} is no module that is imported from a file; write __name__")
        return Path(place).resolve().parent / self.file

    @property
    def identity(self) -> str:
        """Name and content of the file: the file's name and the beginning of the SHA-256 of its text."""
        return f"{self.file} (sha256 {sha256(self.text.encode()).hexdigest()[:12]})"

    @cached_property
    def reading(self) -> SqlReading:
        """What is known of the query without a session."""
        return read_sql(self.text)

    def __call__(self, inputs: Inputs, context: TransformContext) -> DataFrame:
        """Return the frame of the query: no view of it is left in the session, and nothing is put into its text but names of views."""
        frames: dict[str, Any] = {
            SOURCE: inputs.source,
            LOOK_BACK: inputs.look_back,
            **inputs.sources,
            **context.references,
        }
        query, views = self.reading.over({name.lower(): frame for name, frame in frames.items()})
        given = parameters_of(context)
        arguments = {name: given[name] for name in self.reading.parameters}
        frame: DataFrame = inputs.source.sparkSession.sql(query, args=arguments, **views)
        return frame


def parameters_of(context: TransformContext) -> Mapping[str, Any]:
    """Return the parameters of a context by name: its own, and the target's configuration."""
    own = (
        context.run_clock,
        context.publish_range.start,
        context.publish_range.end,
        context.version,
        context.run_id,
        context.mode.value,
    )
    return {**context.configuration, **dict(zip(CONTEXT_PARAMETERS, own, strict=True))}
