"""The files that are kept about a run: which there are, and an answer with one of them.

Put here how evidence is listed and sent to a browser. What is in a report is `audit.report`'s.
"""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path

from starlette.responses import FileResponse, HTMLResponse, JSONResponse, Response, StreamingResponse

from backfill_assets.defs.addresses import PREFIX
from manifests.errors import EnvironmentRefused
from resources.evidence.store import RECORDS, EvidenceStore
from resources.files.kept_files import MOST_BYTES, is_text_name
from resources.files.places import ObjectPlace

REPORT = "report.html"
# a report may run its own scripts, but as a page of nowhere: they cannot ask this server for anything, nor load anything
_SANDBOX = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "sandbox allow-scripts allow-popups; default-src 'none'; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline'; img-src data: blob:; font-src data:; base-uri 'none'; form-action 'none'",
}
_TYPES = {".json": "application/json", ".html": "text/html", ".png": "image/png", ".svg": "image/svg+xml"}


def files_of(evidence: EvidenceStore, run_id: str) -> list[str]:
    """Return the files that are kept about a run, relative to its folder; nothing that is half written."""
    root = evidence.folder / run_id
    if isinstance(root, ObjectPlace):
        return _objects_of(evidence, root)
    found = (file.relative_to(root) for file in root.rglob("*") if file.is_file())
    return sorted(str(name) for name in found if ".partial" not in str(name) and is_text_name(str(name)))


def report_response(evidence: EvidenceStore, report_of: Callable[[str], str], run_id: str) -> Response:
    """Answer with the report as evidence and ledger have it now: a file that somebody has altered is not served as ours."""
    found = evidence_response(evidence, run_id, REPORT)
    if found.status_code != HTTPStatus.OK:
        return found
    try:
        return HTMLResponse(report_of(run_id), headers=_SANDBOX)
    except Exception as error:  # noqa: BLE001 - evidence that was damaged may say anything
        error_ = {
            "what": f"the report of '{run_id[:100]}' cannot be made: {type(error).__name__}: {str(error)[:300]}",
            "rule": "a report is made from the evidence when it is asked for, and says what the evidence says",
            "whatToDo": f"`backfill verify {run_id[:100]}` names what was changed",
        }
        return JSONResponse({"error": error_}, status_code=500)


def evidence_response(evidence: EvidenceStore, run_id: str, path: str) -> Response:
    """Answer with a file of a run's evidence: one that is listed, whatever the path looks like and leads to."""
    if isinstance(evidence.folder, ObjectPlace):
        return _object_response(evidence, run_id, path)
    file = _listed(evidence.folder, run_id, path)
    if file is None:
        return _unlisted(run_id, path)
    return FileResponse(file, media_type=_TYPES.get(file.suffix, "text/plain"), headers=_SANDBOX)


def _objects_of(evidence: EvidenceStore, run: ObjectPlace) -> list[str]:
    """Return the objects that are kept about a run; of its bundles those that are sealed."""
    sealed = {bundle.name for bundle in evidence.bundles(run.name)}
    found = (key.partition("/") for key in run.below())
    return sorted("".join(key) for key in found if key[0] in {*sealed, RECORDS} or key[0] == REPORT)


def _object_response(evidence: EvidenceStore, run_id: str, path: str) -> Response:
    """Answer with an object of a run's evidence, by its key alone: a key leads nowhere else."""
    if not run_id.isprintable() or "/" in run_id or path not in files_of(evidence, run_id):
        return _unlisted(run_id, path)
    assert isinstance(evidence.folder, ObjectPlace)
    file = evidence.folder / run_id / path
    try:
        size, blocks = file.bucket.blocks(file.key, MOST_BYTES)
    except (FileNotFoundError, EnvironmentRefused):
        return _unlisted(run_id, path)
    headers = _SANDBOX | {"Content-Length": str(size)}
    return StreamingResponse(blocks, media_type=_TYPES.get(file.suffix, "text/plain"), headers=headers)


def _unlisted(run_id: str, path: str) -> Response:
    return JSONResponse(
        {
            "error": {
                "what": f"'{path[:200]}' of '{run_id[:100]}'",
                "rule": "only files of a run's own evidence are served",
                "whatToDo": f"open one of those that {PREFIX}/<run> lists",
            }
        },
        status_code=404,
    )


def _listed(folder: Path, run_id: str, path: str) -> Path | None:
    """Return where a file of a run's evidence lies; None if there is none of that name, whatever a name can do to a file system."""
    if "\0" in run_id + path or ".partial" in path:
        return None
    try:
        folder = folder.resolve()
        root = (folder / run_id).resolve()
        file = (root / path).resolve()
        is_there = root.parent == folder and file.is_relative_to(root) and file.is_file()
    except (OSError, ValueError, RuntimeError):  # too long, no text of a file system, links in a circle
        return None
    return file if is_there else None
