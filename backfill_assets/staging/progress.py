"""What is told while a batch of chunks is computed or gated: one Spark job, of which only its files say how far it is.

Put here how progress is seen and put into words. Who listens (the terminal, Dagster's log) brings what prints them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from manifests.chunks import EVER, EXAMPLES, PART, Chunking, key_of, span, time_of
from resources.files.stores import is_local, local_path

LOOK_SECONDS = 1.0
QUIET_SECONDS = 10.0
"""For so long nothing is said while work goes on."""


def written_chunks(prefix: str) -> set[str]:
    """Return the chunks that tasks of a running Spark job have finished, as Spark names their folders.

    None where staging is in a store: what tasks have written is no file there before the job is committed.
    """
    if not is_local(prefix):
        return set()
    try:
        found = Path(local_path(prefix)).glob("_temporary/*/task_*/chunk=*")
        return {folder.name.removeprefix("chunk=") for folder in found}
    except FileNotFoundError:
        return set()  # the job was committed, or its folder removed, while we looked


def _keys_of(folders: Iterable[str]) -> set[str]:
    """Return the keys that chunks in folders may have: their time is what the text of the folder begins with."""
    lengths = [len(example) for example in EXAMPLES.values()]
    split = [(time_of(folder), folder[len(time_of(folder)) :]) for folder in folders]
    timed = {f"{at[:length]}{part}" for at, part in split for length in lengths}
    return timed | {key_of(Chunking.WHOLE, EVER[0], part.removeprefix(PART)) for _, part in split if part}


class Progress:
    """Tells of batches as the executor does them; a listener of it, closed at the end."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._ended = threading.Event()
        self._watcher: threading.Thread | None = None
        self._began = 0.0

    def __call__(self, event: str, chunks: Sequence[str], text: str) -> None:
        """Hear of an event."""
        self.close()
        which = f"{len(chunks)} chunk{'s' if len(chunks) != 1 else ''}" + (f", {span(chunks)}" if chunks else "")
        if event == "stage":
            self._say(text)
        elif event == "attempt":
            self._say(f"computing {which}, into {'/'.join(text.split('/')[-2:])}")
            self._watch_from_now("computing", chunks, text)
        elif event == "gating":
            self._say(f"gating {which}: their files are read back")
            self._watch_from_now("gating", chunks, "")
        elif event in {"staged", "gated"}:
            self._say(f"{event} {which}, after {time.monotonic() - self._began:.1f} s")
        else:
            self._say(": ".join(one for one in (event, which if chunks else "", text) if one))

    def _watch_from_now(self, what: str, chunks: Sequence[str], prefix: str) -> None:
        self._began, self._ended = time.monotonic(), threading.Event()
        arguments = (what, chunks, prefix, self._ended)
        self._watcher = threading.Thread(target=self._watch, args=arguments, daemon=True)
        self._watcher.start()

    def _watch(self, what: str, chunks: Sequence[str], prefix: str, ended: threading.Event) -> None:
        """Tell of chunks as they are written, and that the work goes on where nothing else is heard of it."""
        told: set[str] = set()
        spoke = self._began
        while not ended.wait(LOOK_SECONDS):
            written = _keys_of(written_chunks(prefix)) & set(chunks) if prefix else set()
            new, took = written - told, time.monotonic() - self._began
            if new:
                self._say(f"written {len(written)} of {len(chunks)} chunks after {took:.1f} s: {span(new)}")
            elif time.monotonic() - spoke >= QUIET_SECONDS:
                share = f", {len(told)} of {len(chunks)} chunks written" if prefix else ""
                self._say(f"still {what}, after {took:.0f} s{share}")
            else:
                continue
            told, spoke = told | new, time.monotonic()

    def close(self) -> None:
        """Stop looking."""
        self._ended.set()
        if self._watcher is not None:
            self._watcher.join()
            self._watcher = None
