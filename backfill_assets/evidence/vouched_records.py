"""Records beside the evidence of runs that a link of the chain vouches for, whatever they are about.

Put here how they are found and read. What they say is for those who write them: `column_records`, `split_records`, `collected`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from resources.evidence.store import EvidenceStore
from resources.files.kept_files import json_of, read_each
from resources.files.places import found_in


def vouched_records(
    evidence: EvidenceStore, links: Iterable[Mapping[str, Any]], folder: str, pattern: str
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the records of a folder with their names, in the order of these, that are as a link of the chain says; no others."""
    vouched = {(link.get("record"), link.get("recordHash")) for link in links if link.get("run") == folder}
    for file, raw in read_each(found_in(evidence.records(folder), pattern)):
        if isinstance(raw, Exception):
            continue  # no link vouches for it as it is
        if (file.stem, hashlib.sha256(raw).hexdigest()) in vouched:
            yield file.stem, json_of(raw)
