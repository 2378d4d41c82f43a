"""Dagster's webserver behind the guard, with what belongs to it: daemon and code server, started and stopped together.

Put here listeners, processes and their end. What is refused is the guard's; what is shown beside Dagster's pages, `pages`.
That nothing is left of a process that has ended is `orphans`' to see to.
"""

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from copy import copy
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvicorn
import yaml
from dagster import DagsterInstance, DagsterRun
from dagster_webserver.version import __version__ as webserver_version
from dagster_webserver.webserver import DagsterWebserver
from sqlalchemy.exc import SQLAlchemyError
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

from backfill_assets.defs.addresses import PREFIX
from backfill_assets.defs.dagster_private import (
    DAEMON_MODULE,
    ModuleTarget,
    PartitionBackfill,
    PermissionResult,
    Permissions,
    RunStorage,
    WorkspaceFileTarget,
    WorkspaceProcessContext,
    WorkspaceRequestContext,
    answer_with_contexts,
    code_servers,
    with_run_storage,
)
from backfill_assets.defs.launch import instance_at
from backfill_assets.defs.launched_by import RUN_TAG, STAMPED_TAGS, STOP_TAG, USER_TAG, run_of, worked_for
from backfill_assets.defs.starting import is_switched_off, starting
from backfill_assets.ui.guard import ASKED_KEY, USER_KEY, App, Asked, Door, Guard, Receive, Role, Scope, Send
from backfill_assets.ui.mutations import FORBIDDEN_MUTATIONS
from backfill_assets.ui.orphans import STOP_SECONDS, Adopted, die_with_parent, ends_what_it_started
from backfill_assets.ui.pages import make_pages
from manifests.errors import EnvironmentRefused, Problem
from manifests.plan import Plan
from manifests.stages import Stage
from resources import logs
from resources.evidence.store import EvidenceStore
from resources.ledger.facade import Ledger
from resources.settings import DAGSTER_STORAGE_VARIABLE, Settings

if TYPE_CHECKING:
    from backfill_assets.installation import Platform

_log = logging.getLogger(__name__)
LOOPBACK = "127.0.0.1"
_DEFINITIONS = "backfill_assets.definitions"
_LOCATION = "backfill_assets"
_GREY = {
    Permissions.EDIT_DYNAMIC_PARTITIONS: "addDynamicPartition",
    Permissions.REPORT_RUNLESS_ASSET_EVENTS: "reportRunlessAssetEvents",
    Permissions.WIPE_ASSETS: "wipeAssets",
    Permissions.DELETE_PIPELINE_RUN: "deleteRun",
}
"""The permissions by which Dagster's pages show the mutations that nobody has here."""
_WAY_TO_RUNS = (
    f'<a href="{PREFIX}" style="position:fixed;left:24px;bottom:172px;z-index:20;padding:4px 10px;border-radius:8px;'
    'font:13px system-ui,sans-serif;background:#4f43dd;color:#fff;text-decoration:none">Backfill runs</a>'
)
"""On every page of Dagster's: where the runs stand and why."""
_POLL_MILLISECONDS = 2000
_LOOK_SECONDS = 0.5
_BURY_SECONDS = 3.0
_GOODBYE_SECONDS = 3


@dataclass(frozen=True)
class Listener:
    """Where to listen, and as what: a port of the loopback interface, or a socket file for a proxy."""

    door: Door
    port: int = 0
    file: Path | None = None

    def open(self) -> socket.socket:
        """Return the listening socket.

        Raises:
            EnvironmentRefused: if it is taken.
        """
        where = str(self.file or f"{LOOPBACK}:{self.port}")
        found = socket.socket(socket.AF_UNIX if self.file else socket.AF_INET)
        try:
            if self.file is None:
                found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                found.bind((LOOPBACK, self.port))
            else:
                self._make_room()
                found.bind(str(self.file))
                self.file.chmod(0o660)  # the folder says who gets that far
            found.listen(128)
        except OSError as error:
            found.close()
            raise EnvironmentRefused(
                Problem(
                    f"{where} cannot be listened on: {error.strerror or error}",
                    "one server listens there at a time",
                    "stop the other one, or choose another --port",
                )
            ) from error
        found.setblocking(False)
        return found

    def _make_room(self) -> None:
        """Remove the file that a server has left which was killed; not that of one that answers."""
        assert self.file is not None
        self.file.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        with socket.socket(socket.AF_UNIX) as probe:
            if self.file.is_socket() and probe.connect_ex(str(self.file)) != 0:
                self.file.unlink()


def socket_folder(settings: Settings) -> Path:
    """Return where the sockets for a proxy are."""
    return settings.home / "ui"


def listeners_of(settings: Settings, *, port: int, read_only: bool, behind: str) -> list[Listener]:
    """Return where `backfill ui` listens: on a loopback port, or for a proxy on a socket a role."""
    if behind:
        folder = socket_folder(settings)
        return [Listener(Door(role, behind), file=folder / f"{role}.sock") for role in (Role.VIEWER, Role.OPERATOR)]
    return [Listener(Door(Role.VIEWER if read_only else Role.OPERATOR), port)]


class _Request(WorkspaceRequestContext):
    """What one request may see and do in Dagster: nothing is changed for viewers, and launches carry who asked."""

    @property
    def permissions(self) -> Mapping[str, PermissionResult]:
        return _without_the_forbidden(super().permissions)

    def permissions_for_location(self, *, location_name: str) -> Mapping[str, PermissionResult]:
        return _without_the_forbidden(super().permissions_for_location(location_name=location_name))

    def get_viewer_tags(self) -> dict[str, str]:
        user = _user(self.source)
        return {USER_TAG: user} if user else {}


def _user(source: object) -> str:
    """Return who asks, if somebody vouches for that; else nothing."""
    return str(source.scope.get(USER_KEY, "")) if isinstance(source, HTTPConnection) else ""


class _Stamped:
    """A storage of runs that writes on each new run and backfill who has launched it, for which run of ours, after which stop.

    It writes over what was sent or copied. A name that nobody vouches for is taken off: a query may name any tag, and a
    re-execution copies those of the run before. `stopped` has the stops that held runs when the request came; None where
    nobody could look.
    """

    def __init__(self, storage: RunStorage, user: str, stopped: Mapping[str, int] | None) -> None:
        self._storage, self._user, self._stopped = storage, user, stopped

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)

    def add_run(self, dagster_run: DagsterRun) -> DagsterRun:
        tags = self._stamp(dagster_run.tags, worked_for(dagster_run.tags))
        return self._storage.add_run(dagster_run.with_tags(tags))

    def add_backfill(self, partition_backfill: PartitionBackfill) -> None:
        tags = self._stamp(partition_backfill.tags, run_of(_partitions(partition_backfill)))
        self._storage.add_backfill(partition_backfill._replace(tags=tags))

    def _stamp(self, tags: Mapping[str, str] | None, run_id: str) -> dict[str, str]:
        stamped = {name: value for name, value in (tags or {}).items() if name not in STAMPED_TAGS}
        stamped |= {USER_TAG: self._user} if self._user else {}
        if run_id:
            stamped[RUN_TAG] = run_id
            stamped |= {} if self._stopped is None else {STOP_TAG: str(self._stopped.get(run_id, 0))}
        return stamped


def _partitions(launched: PartitionBackfill) -> Iterator[str]:
    """Return the partition keys that a Dagster backfill asks for."""
    if (data := launched.asset_backfill_data) is not None:
        for subset in data.target_subset.partitions_subsets_by_asset_key.values():
            yield from subset.get_partition_keys()


def _stamping(instance: DagsterInstance, user: str, stopped: Mapping[str, int] | None) -> DagsterInstance:
    """Return an instance that stamps what is launched through it, with the storages of another."""
    made = copy(instance)
    made.__dict__.pop("run_domain", None)  # it would make runs in the name of the instance that it is of
    return with_run_storage(made, _Stamped(instance.run_storage, user, stopped))


def _seen(look: Callable[[], Mapping[str, int]]) -> Mapping[str, int] | None:
    """Return the stops that hold runs; None where the ledger does not answer: the clocks of both decide then."""
    try:
        return look()
    except SQLAlchemyError as error:
        text = f"which runs are stopped could not be seen: {type(error).__name__}"
        logs.event(_log, logging.WARNING, "stop_unseen", text)
        return None


def _without_the_forbidden(found: Mapping[str, PermissionResult]) -> Mapping[str, PermissionResult]:
    """Have Dagster's pages grey out what the guard would refuse, and say why."""
    reasons = {
        str(permission): PermissionResult(enabled=False, disabled_reason=". ".join(FORBIDDEN_MUTATIONS[mutation]))
        for permission, mutation in _GREY.items()
        if permission in found and found[permission].enabled
    }
    return {**found, **reasons}


class _Webserver(DagsterWebserver[WorkspaceProcessContext, WorkspaceRequestContext]):
    """Dagster's webserver for one role."""

    def __init__(
        self, context: WorkspaceProcessContext, role: Role, stopped: Callable[[], Mapping[str, int]] | None
    ) -> None:
        self._served, self._role, self._stopped = context, role, stopped
        super().__init__(context, live_data_poll_rate=_POLL_MILLISECONDS)
        answer_with_contexts(self, self._context_of)

    def index_html_endpoint(self, request: Request) -> Response:
        """Serve Dagster's page with a link to the runs, which nothing in Dagster's navigation leads to."""
        page: Response = super().index_html_endpoint(request)
        content = bytes(page.body).decode("utf-8")
        page.body = content.replace("</body>", f"{_WAY_TO_RUNS}</body>", 1).encode("utf-8")
        page.headers["Content-Length"] = str(len(page.body))
        return page

    def _context_of(self, conn: HTTPConnection) -> WorkspaceRequestContext:
        # first: what is on record now was stopped before this request has launched anything
        stopped = _seen(self._stopped) if self._stopped is not None and ASKED_KEY in conn.scope else None
        base = self._served.create_request_context(conn)
        return _Request(
            instance=_stamping(base.instance, _user(conn), stopped),
            current_workspace=base.get_current_workspace(),
            process_context=self._served,
            version=base.version,
            source=conn,
            read_only=self._role is Role.VIEWER,
        )


def guarded(
    context: WorkspaceProcessContext,
    pages: App,
    door: Door,
    note: Callable[[Asked], None] = lambda _: None,
    stopped: Callable[[], Mapping[str, int]] | None = None,
) -> App:
    """Return the application behind a door: Dagster's, and the pages beside it.

    `stopped` looks which stops hold runs (`stops.known`), for what is launched through the door.
    """
    dagster: App = _Webserver(context, door.role, stopped).create_asgi_app()

    async def parted(scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        ours = scope["type"] == "http" and (path == PREFIX or path.startswith(f"{PREFIX}/"))
        await (pages if ours else dagster)(scope, receive, send)

    return Guard(parted, door, note)


def noted_in(file: Path) -> Callable[[Asked], None]:
    """Return what appends each mutation that was let through to a file: when, who, as what, which."""

    def note(asked: Asked) -> None:
        line = {"at": datetime.now(UTC), "user": asked.user, "role": asked.role, "mutations": asked.mutations}
        with file.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(line, default=str) + "\n")

    return note


def serve(settings: Settings, listeners: Sequence[Listener], *, daemon: bool, say: Callable[[str], None]) -> None:
    """Serve the UI until SIGINT or SIGTERM, then stop everything that was started, runs under way included.

    A run that is ended so is repeated by the same launch: what was staged is not computed again.
    """
    os.environ.update(_environment(settings))
    with ExitStack() as stack:
        stack.enter_context(ends_what_it_started())
        stopping = stack.enter_context(_told_to_stop())
        sockets = [stack.enter_context(contextlib.closing(listener.open())) for listener in listeners]
        for listener in listeners:
            if listener.file is not None:
                stack.callback(listener.file.unlink, missing_ok=True)
        instance = stack.enter_context(instance_at(settings))
        target = ModuleTarget(_DEFINITIONS, attribute=None, working_directory=None, location_name=_LOCATION)
        servers = stack.enter_context(code_servers(instance, target))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="backfill-ui-")))
        workspace = folder / "workspace.yaml"
        workspace.write_text(yaml.safe_dump({"load_from": servers.get_code_server_specs()}), encoding="utf-8")
        children = [stack.enter_context(_daemon(workspace))] if daemon else []
        context = stack.enter_context(
            WorkspaceProcessContext(instance, WorkspaceFileTarget([str(workspace)]), version=webserver_version)
        )
        ledger = Ledger(settings.ledger_url)
        evidence, report_of = EvidenceStore.at(settings.evidence_place, settings.catalog), partial(_report_of, settings)
        pages: App = make_pages(
            ledger,
            evidence,
            report_of,
            partial(starting, instance),
            partial(_stages_of, settings),
            partial(_opened, settings),
            partial(is_switched_off, instance),
        )
        socket_folder(settings).mkdir(mode=0o750, parents=True, exist_ok=True)
        note = noted_in(socket_folder(settings) / "mutations.jsonl")
        stopped = ledger.stops.known
        apps = [guarded(context, pages, listener.door, note, stopped) for listener in listeners]
        for listener in listeners:
            say(f"{listener.door.role}s: {listener.file or f'http://{LOOPBACK}:{listener.port}'}")
        asyncio.run(_run(list(zip(apps, sockets, strict=True)), children, stopping))
        say("stopping")


@contextmanager
def _opened(settings: Settings) -> Iterator["Platform"]:
    """Open the installation for a page of quarantined rows."""
    from backfill_assets.installation import open_platform  # noqa: PLC0415 - of the few who ask for them

    with open_platform(settings) as platform:
        yield platform


def _report_of(settings: Settings, run_id: str) -> str:
    """Return the report of a run, made anew."""
    from backfill_assets.audit.report import report  # noqa: PLC0415
    from backfill_assets.installation import open_platform  # noqa: PLC0415 - of the few who ask for a report

    with open_platform(settings) as platform:
        return report(platform, run_id)


def _stages_of(settings: Settings, plan: Plan) -> list[Stage]:
    """Return what a plan is executed by, with what the products of the installation declare."""
    from backfill_assets.declarations.finding import find_products  # noqa: PLC0415
    from backfill_assets.publication.modes import stages_of  # noqa: PLC0415 - Spark's modules, once a run is looked at

    return stages_of(find_products(settings.products), plan)


def _environment(settings: Settings) -> dict[str, str]:
    storage = settings.dagster_storage_url
    return ({DAGSTER_STORAGE_VARIABLE: storage} if storage else {}) | {
        "DAGSTER_HOME": str(settings.dagster_home),
        "BACKFILL_HOME": str(settings.home),
        "DAGSTER_EVENT_BATCH_SIZE": "500",
    }


class _Server(uvicorn.Server):
    """One listener's server; signals are the process's, not its."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Stopping:
    """Set once the process is told to end."""

    def __init__(self) -> None:
        self.now = False


@contextmanager
def _told_to_stop() -> Iterator[_Stopping]:
    """Turn SIGINT and SIGTERM into a flag from the first process that is started to the last that has ended."""
    stopping = _Stopping()

    def stop(_number: int, _frame: Any) -> None:
        stopping.now = True

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopping
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


async def _run(
    apps: Sequence[tuple[App, socket.socket]], children: Sequence[subprocess.Popen[bytes]], stopping: _Stopping
) -> None:
    """Serve until told to stop, or until a child or a server has ended by itself, which ends everything.

    Raises:
        EnvironmentRefused: if something has ended by itself.
    """
    servers = [
        _Server(
            uvicorn.Config(
                app, log_level="warning", server_header=False, proxy_headers=False,
                timeout_graceful_shutdown=_GOODBYE_SECONDS, lifespan="off",
            )
        )
        for app, _ in apps
    ]  # fmt: skip
    tasks = [asyncio.create_task(server.serve(sockets=[one])) for server, (_, one) in zip(servers, apps, strict=True)]
    lost, adopted, looked = "", Adopted(), time.monotonic()
    while not stopping.now and not lost:
        await asyncio.sleep(_LOOK_SECONDS)
        if time.monotonic() - looked >= _BURY_SECONDS:
            await asyncio.to_thread(adopted.bury)
            looked = time.monotonic()
        lost = next(
            (f"the daemon (exit code {child.returncode})" for child in children if child.poll() is not None), ""
        )
        lost = lost or ("a webserver" if any(task.done() for task in tasks) else "")
    for server in servers:
        server.should_exit = True
    await asyncio.gather(*tasks)
    if lost and not stopping.now:
        raise EnvironmentRefused(
            Problem(f"{lost} has ended by itself", "daemon and webserver run together", "see its messages above")
        )


@contextmanager
def _daemon(workspace: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", DAEMON_MODULE, "run", "--log-level", "warning", "--workspace", str(workspace)]
    child = subprocess.Popen(command, start_new_session=True, preexec_fn=die_with_parent)  # noqa: PLW1509 - see there
    try:
        yield child
    finally:
        child.terminate()
        try:
            child.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
