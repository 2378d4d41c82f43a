"""What happens to a run after its bundle was sealed, as records and links name it.

Put here the events, and the names that their records have. What a record says is `records`' to read.
"""

from __future__ import annotations

import re

from manifests.lifecycle import ACCEPT, PUBLISH, REINSTATE, ROLLBACK

SUPERSEDED, RESTORED = "superseded", "restored"
"""Events that another run brings about: it took chunks over, or its rollback gave them back."""
TOLD, REFUSED, MOVED, ADOPTED = "told", "refused", "moved", "adopted"
"""Events beside a change of rows: sinks were told; a rollback or acceptance was refused; something else moved on; a run that was published by an earlier version
of this project came under the chain."""
GC = "gc"
"""The folder of the evidence store that holds a record of each collection; too short to be a run id."""
COLUMN_CHANGES = "cc"
"""The folder that holds a record of each change of a table's columns; too short to be a run id."""
FILE_SPLITS = "fs"
"""The folder that holds a record of each split of a table's files; too short to be a run id."""
MIGRATIONS = "mg"
"""The folder that holds a record of each step of a migration; too short to be a run id."""
ACTIONS = frozenset({PUBLISH, ROLLBACK, REINSTATE, ACCEPT})
EVENTS = frozenset({TOLD, REFUSED, MOVED, ADOPTED, SUPERSEDED, RESTORED})
_OF_A_CHANGE = re.compile(
    rf"(?P<action>{'|'.join(sorted(ACTIONS))})(?:-[0-9]+)?|(?P<event>{'|'.join(sorted(EVENTS))})-[0-9]+"
)


def events_named(name: str) -> frozenset[str]:
    """Return the events that a record of a change of rows can be about by its name; empty if it is no name of such a record."""
    found = _OF_A_CHANGE.fullmatch(name)
    if found is None:
        return frozenset()
    return frozenset({found["action"], ADOPTED} if found["action"] else {found["event"]})
