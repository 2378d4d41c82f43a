"""What a product's own functions may raise, and Polars while it computes for them.

Put here kinds of errors that are a product's, whatever they derive from. How one of them is told is told where it is caught.
Spark's Python workers import it: keep it light.
"""

from __future__ import annotations

from asyncio import CancelledError

import polars as pl

ENDS_THE_PROCESS = (SystemExit, GeneratorExit)
"""What ends a process without a word, and no person has asked for: a module that raises it is refused like any other."""
NO_ANSWER = (Exception, pl.exceptions.PanicException, CancelledError)
"""What a function may raise of some values, and have an answer for others."""
ANY_ERROR = (*NO_ANSWER, *ENDS_THE_PROCESS)
"""All of it, but for an interrupt, which is a person's."""
