"""The project's refusals: every error a user can cause, in one shape.

Put an exception here when a user, an operator or their data can bring it about and it must say what to do.
Programming errors stay what Python raises; nothing here knows about Spark, Dagster or Iceberg.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Problem:
    """One reason for a refusal.

    Attributes:
        what: the thing and its value, in words.
        where: where it stands (file, field, table, chunk); empty when `what` says it.
        rule: the rule that it breaks.
        fix: what the reader can do about it.
    """

    what: str
    rule: str = ""
    fix: str = ""
    where: str = ""

    def __str__(self) -> str:
        text = f"{self.where}: {self.what}" if self.where else self.what
        if self.rule:
            text += f"\n    rule: {self.rule}"
        if self.fix:
            text += f"\n    what to do: {self.fix}"
        return text


class Refused(Exception):  # noqa: N818 - it is a decision, not a fault
    """Something was refused before anything was written; carries every reason at once."""

    headline = "refused"

    def __init__(self, problems: Problem | Iterable[Problem]) -> None:
        self.problems: tuple[Problem, ...] = (problems,) if isinstance(problems, Problem) else tuple(problems)
        super().__init__(str(self))

    def __str__(self) -> str:
        many = len(self.problems)
        head = self.headline if many == 1 else f"{self.headline}, for {many} reasons"
        return head + "\n" + "\n".join(f"  - {problem}" for problem in self.problems)

    def __reduce__(self) -> tuple[type[Refused], tuple[Sequence[Problem]]]:
        return type(self), (self.problems,)


class DeclarationRefused(Refused):
    """What a product declares cannot be used, or its module cannot be imported."""

    headline = "the declaration is refused"


class ManifestRefused(Refused):
    """The text of a manifest is not a valid contract.

    `draft` are its fields, where it has any: some of them may be judged all the same.
    """

    headline = "the manifest is refused"
    draft: Mapping[str, Any] | None = None


class PlanRefused(Refused):
    """The manifest is valid, but cannot be planned on the tables as they are."""

    headline = "the plan is refused"


class TransitionRefused(Refused):
    """A run is not in a state in which this may happen, or the actor may not do it."""

    headline = "refused by the run's lifecycle"


class DecisionRefused(TransitionRefused):
    """Somebody may not decide this: by the policy, by their name, or because it is about another plan than there is now."""

    headline = "the decision is refused"


class StateMoved(TransitionRefused):
    """Another process has moved the run since the state was looked at from which it was to be moved; look again."""


class RunStopped(TransitionRefused):
    """Somebody has stopped the run: nothing more of it is computed or published until it is launched again."""

    headline = "the run was stopped"
    signalled = False
    """Whether the process that says so was itself told to end."""
    only_the_process = False
    """Whether nothing else was: nobody has stopped the run, which goes on with its next launch."""


class SinkRefused(Refused):
    """The policy does not allow this sink in this mode for this manifest."""

    headline = "the sink is refused"


class PublicationRefused(Refused):
    """The target is not in the state that the plan was made on, or a gate has not passed.

    Also of what undoes or accepts a publication: `headline` says then what was asked for.
    """

    headline = "the publication is refused"


class PublicationDeferred(Refused):
    """The publication has to wait; nothing has changed, and it may be tried again."""

    headline = "the publication has to wait"


class LeaseHeld(Refused):
    """Somebody else is publishing into the scope; nothing is wrong, the same command may be run again."""

    headline = "the scope is held"


class LeaseLost(Refused):
    """The publisher no longer holds its scope: it was paused for too long, and another one has taken it over."""

    headline = "the lease is lost"


class InputRefused(Refused):
    """Data, a command or its arguments cannot be used."""

    headline = "the input is refused"


class TransformRefused(InputRefused):
    """A transform's code cannot be run, or returns what its target does not declare."""

    headline = "the transform is refused"


class EnvironmentRefused(Refused):
    """The machine, the settings or the home folder are not fit for the command."""

    headline = "the environment is refused"


class LedgerLocked(EnvironmentRefused):
    """Another process keeps the ledger to itself for longer than anybody waits: nothing is known of it just now."""


class StoreRefused(Refused):
    """The bucket of the evidence cannot be asked, or does not do what it is asked: nothing is known of the evidence just now.

    No `EnvironmentRefused`: where that is raised by a file of the evidence, the file is damaged.
    """

    headline = "the store of the evidence does not answer as it has to"


class ChunkFailed(Exception):  # noqa: N818 - named for what happened to the chunk
    """Computing one or more chunks failed; the others of the batch stay staged."""

    def __init__(self, failures: dict[str, str]) -> None:
        self.failures = failures
        lines = "\n".join(f"  - chunk {chunk}: {why}" for chunk, why in sorted(failures.items()))
        super().__init__(f"{len(failures)} chunk(s) failed; every other chunk of the batch is staged\n{lines}")

    def __reduce__(self) -> tuple[type[ChunkFailed], tuple[dict[str, str]]]:
        return type(self), (self.failures,)
