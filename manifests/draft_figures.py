"""The figures that a manifest expects which is not valid, held against its target all the same: nothing is told in a second round.

Put here what of them can be judged, and how it is looked up in the data. What contradicts a target or a plan is
`expected_problems`', and what each field may be `expected`'s.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

from manifests.chunks import aligned, cut
from manifests.errors import Problem
from manifests.expected import Expected, valid_figures
from manifests.expected_problems import expected_problems
from manifests.facts import TargetContract
from manifests.model import Kind, RunManifest


@dataclass(frozen=True)
class DraftFigures:
    """The figures of a manifest that is not valid: those that are, whether these are all, and what it says of its run.

    `derives`: whether what it publishes is derived from what it computes. `part`: whether it is a sample, or progressive.
    """

    expected: Expected | None = None
    complete: bool = True
    derives: bool = False
    part: bool = False

    @classmethod
    def of(cls, draft: Mapping[str, Any]) -> Self:
        """Return those that are valid by themselves; a reconciliation has none."""
        validation, target = (one if isinstance(one := draft.get(name), Mapping) else {} for name in _ASKED)
        data = validation.get("expected")
        if data is None or draft.get("kind") == Kind.RECONCILIATION:
            return cls()
        expected, complete = valid_figures(data)
        derives = any(target.get(name) is not None for name in ("merge", "correctionEvents"))
        part = any(draft.get(name) is not None for name in ("sample", "progressive"))
        return cls(expected, complete, derives, part)

    def problems(self, manifest: RunManifest, contract: TargetContract, *, known: bool) -> Iterator[Problem]:
        """Yield what no run could be held against; `known`: whether the publish range of `manifest` is its author's."""
        scope, planned = manifest.target.publish_range, None
        if known and not self.part:  # of a part of the range nobody knows the chunks
            start, end = aligned(contract.chunking, scope.start, scope.end)
            planned = [one.key for one in cut(contract.chunking, start, end, contract.parts(manifest.target.values))]
        yield from expected_problems(
            self.expected, contract, planned, derives=self.derives, part=self.part, complete=self.complete
        )


_ASKED = ("validation", "target")
