"""The sessions of one mode, handed to a step that computes in no other.

Put here what keeps a step to its mode. What a session of a mode may reach is `sessions`'.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from manifests.errors import EnvironmentRefused, Problem
from manifests.model import Mode
from resources.spark.sessions import ModeSpark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SparkOfOneMode(ModeSpark):
    """The sessions of one mode, of those that a process has: whoever holds it reaches no other mode's."""

    def __init__(self, sessions: ModeSpark, mode: Mode) -> None:
        self._of_process = sessions
        self.mode = mode

    def session(self, mode: Mode) -> SparkSession:
        """Return the session of the mode.

        Raises:
            EnvironmentRefused: if another mode's is asked for, or Spark does not start.
        """
        if mode is not self.mode:
            raise EnvironmentRefused(
                Problem(
                    f"a session of {mode} is asked for where a run of {self.mode} is computed",
                    "a step computes in the mode of its run",
                    "launch the run of the other mode by itself",
                )
            )
        return self._of_process.session(mode)

    @contextmanager
    def writing_evidence(self, mode: Mode) -> Iterator[SparkSession]:
        """Yield the session of the mode; one that writes no files may write what a gate has found meanwhile."""
        self.session(mode)
        with self._of_process.writing_evidence(mode) as session:
            yield session

    @contextmanager
    def settings_kept(self, mode: Mode) -> Iterator[None]:
        """Let nothing that is done meanwhile change the settings of the mode's session for what is done later."""
        with self._of_process.settings_kept(mode):
            yield

    def interrupt(self) -> None:
        """Cancel what the sessions of this process are doing, from any thread."""
        self._of_process.interrupt()
