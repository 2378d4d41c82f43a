"""Running the assets through Dagster: what the command does is what a launch from the UI does.

Put here the Dagster instance of an installation and the calls that run a job on it in this process.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path

import dagster as dg
import yaml

from backfill_assets.declarations.products import Products
from backfill_assets.defs.build import build_definitions
from backfill_assets.defs.changes import tell_changes
from backfill_assets.defs.dagster_private import CapturedLogContext, DagsterAssetCheckFailedError
from backfill_assets.defs.evaluations import tell_run_again
from backfill_assets.defs.inputs import observations
from backfill_assets.defs.launched_by import RUN_TAG, run_and_chunk
from backfill_assets.defs.publish import publish_job
from backfill_assets.defs.staging import PROCESS_TAG, REFUSAL, offer_run, range_tags, staging_job_name, stretches
from backfill_assets.installation import Platform
from backfill_assets.staging import stopping
from manifests.errors import EnvironmentRefused, Problem, Refused, RunStopped, TransformRefused
from resources import logs
from resources.files import space
from resources.ledger.facade import RunRecord
from resources.processes import this_process
from resources.settings import DAGSTER_STORAGE_VARIABLE, Settings

_log = logging.getLogger(__name__)
_QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
"""The event log has everything; a terminal that shows a progress bar needs none of it twice."""
_CHUNKS_NAMED = 5
_SHIPPED = Path(__file__).with_name("dagster.yaml")


def initialise_instance(settings: Settings) -> None:
    """Create DAGSTER_HOME and its databases once, before several processes could race for it."""
    home = settings.dagster_home
    home.mkdir(parents=True, exist_ok=True)
    target = home / "dagster.yaml"
    if not target.exists():
        target.write_text(instance_file(settings), encoding="utf-8")
    with instance_at(settings) as instance:
        instance.get_runs(limit=1)
        instance.all_asset_keys()


def instance_file(settings: Settings) -> str:
    """Return the `dagster.yaml` of an installation.

    A storage on a server is named by its variable: the file, and what Dagster shows of it, never hold a password.
    """
    embedded = _SHIPPED.read_text(encoding="utf-8")
    if not settings.dagster_storage_url:
        return embedded
    content = yaml.safe_load(embedded)
    del content["event_log_storage"]  # it is SQLite's
    content["storage"] = {"postgres": {"postgres_url": {"env": DAGSTER_STORAGE_VARIABLE}}}
    return f"# Dagster's storage is what {DAGSTER_STORAGE_VARIABLE} says; `backfill` sets it from its settings.\n" + (
        yaml.safe_dump(content, sort_keys=False)
    )


@contextmanager
def instance_at(settings: Settings) -> Iterator[dg.DagsterInstance]:
    """Yield the Dagster instance of an installation.

    Raises:
        EnvironmentRefused: if it was not initialised, keeps its storage elsewhere than the settings say, or cannot be
            opened.
    """
    home = settings.dagster_home
    file = home / "dagster.yaml"
    if not file.is_file():
        raise EnvironmentRefused(
            Problem(f"{home} is no DAGSTER_HOME", "the installation is initialised first", "run `backfill init`")
        )
    _require_same_storage(file, settings)
    os.environ["DAGSTER_HOME"] = str(home)  # the instance's own configuration refers to it
    with _storage_variable(settings):
        opened = _opened(home)
    with opened as instance:
        yield instance


def _opened(home: Path) -> dg.DagsterInstance:
    try:
        return dg.DagsterInstance.from_config(str(home))
    except Exception as error:
        if (full := space.refusal(error, str(home))) is not None:
            raise full from error
        why = str(error.__cause__ or error).strip().partition("\n")[0]
        raise EnvironmentRefused(
            Problem(
                f"the Dagster instance at {home} cannot be opened: {type(error).__name__}: {why}",
                "its dagster.yaml is valid and its storage can be reached",
                "check the file, and the setting dagster_storage_url (`backfill config`)",
            )
        ) from error


def _require_same_storage(file: Path, settings: Settings) -> None:
    """Refuse a `dagster.yaml` that does not use the storage that the settings name, or the other way round."""
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
    except (yaml.YAMLError, OSError) as error:
        raise EnvironmentRefused(
            Problem(f"{file} cannot be read: {error}", "it is the YAML of a Dagster instance", "correct the file")
        ) from error
    named = DAGSTER_STORAGE_VARIABLE in str(content.get("storage", ""))
    if named == bool(settings.dagster_storage_url):
        if named and find_spec("dagster_postgres") is None:
            raise EnvironmentRefused(
                Problem(
                    "dagster_storage_url is set, and dagster-postgres is not installed",
                    "Dagster reaches PostgreSQL through it",
                    "install the extra `postgres`",
                )
            )
        return
    raise EnvironmentRefused(
        Problem(
            f"{file} {'keeps' if named else 'does not keep'} Dagster's storage where {DAGSTER_STORAGE_VARIABLE} says, "
            f"and the setting dagster_storage_url is {'not ' if named else ''}set",
            "the file and the setting agree; `backfill init` writes the file only where there is none",
            "correct the setting; or move the file away and run `backfill init` (the old storage keeps its history)",
        )
    )


@contextmanager
def _storage_variable(settings: Settings) -> Iterator[None]:
    """Set the variable that `dagster.yaml` names while the instance is opened: Spark's processes need not inherit it."""
    before = os.environ.get(DAGSTER_STORAGE_VARIABLE)
    if settings.dagster_storage_url:
        os.environ[DAGSTER_STORAGE_VARIABLE] = settings.dagster_storage_url
    try:
        yield
    finally:
        if before is not None:
            os.environ[DAGSTER_STORAGE_VARIABLE] = before
        else:
            os.environ.pop(DAGSTER_STORAGE_VARIABLE, None)


def announce_approval(platform: Platform, instance: dg.DagsterInstance, record: RunRecord) -> None:
    """Offer an approved run in the launch dialog of its asset."""
    offer_run(instance, platform.products.target(record.target), record.run_id)


def run_chunks(
    platform: Platform,
    instance: dg.DagsterInstance,
    record: RunRecord,
    chunks: Sequence[str],
    *,
    started: Callable[[str], None] = lambda _: None,
    failed: Callable[[str], None] = lambda _: None,
) -> bool:
    """Stage and gate chunks of a run as Dagster runs in this process, one a stretch of chunks; return success.

    A Dagster run takes a contiguous range; chunks with gaps between them take several. `failed` is told why one did not
    succeed.

    Raises:
        RunStopped: if the run is stopped and somebody watches for that (`stopping.launched`).
    """
    target = platform.products.target(record.target)
    job = _definitions(platform).resolve_job_def(staging_job_name(target))
    success = True
    for first, last in stretches(target, record, chunks):
        tags = range_tags(record.run_id, first, last) | {PROCESS_TAG: this_process()}
        stopping.going_on(record.run_id)()
        which = f"{first} to {last}" if first != last else first
        started(which)
        with dg.partition_loading_context(dynamic_partitions_store=instance), _helpers_apart(instance):
            result = job.execute_in_process(instance=instance, tags=tags, run_config=_QUIET, raise_on_error=False)
        success &= result.success
        for why in _failures(result):
            failed(f"{which}: {why}")
        if _cannot_be_computed(result):
            return False  # what its frame or its columns are refused for is alike for every chunk
    return success


_built: list[tuple[Platform, Products, dg.Definitions]] = []
"""What was built last, and what for: a tenth of a second that a launch and its publication share, and all launches of LIVE."""


def _definitions(platform: Platform) -> dg.Definitions:
    """Return the definitions of an installation, as `build_definitions` makes them; once while it serves the same products."""
    products = platform.products
    for known, served, definitions in _built:
        if known is platform and served is products:
            return definitions
    definitions = build_definitions(platform)
    _built[:] = [(platform, products, definitions)]
    return definitions


def _cannot_be_computed(result: dg.ExecuteInProcessResult) -> bool:
    """Whether a Dagster run failed because its transform was refused."""
    failures = (event.step_failure_data.user_failure_data for event in result.all_events if event.is_step_failure)
    kinds = {one.metadata[REFUSAL].value for one in failures if one is not None and REFUSAL in one.metadata}
    return TransformRefused.__name__ in kinds


@contextmanager
def _helpers_apart(instance: dg.DagsterInstance) -> Iterator[None]:
    """Have what Dagster starts to show what a run prints not hear Ctrl-C: a terminal sends it to all processes of a command.

    They would end with a traceback above what the command itself says. Whatever keeps an instance's logs starts them while
    it begins to capture; a process inherits the signals that are blocked in whoever starts it.
    """
    manager = instance.compute_log_manager
    capture = manager.capture_logs

    @contextmanager
    def apart(log_key: Sequence[str]) -> Iterator[CapturedLogContext]:
        with ExitStack() as stack:
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                context = stack.enter_context(capture(log_key))
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)  # what came meanwhile comes now
            yield context

    setattr(manager, "capture_logs", apart)  # noqa: B010 - no type checker takes it for what a class has
    try:
        yield
    finally:
        setattr(manager, "capture_logs", capture)  # noqa: B010


def _failures(result: dg.ExecuteInProcessResult) -> list[str]:
    """Return why the steps of a Dagster run failed, in the words of whoever refused; else the first line of the error.

    What Dagster raises of checks that have not passed counts them; what is said here is which, and what each found.
    """
    found = []
    for event in result.all_events:
        if not event.is_step_failure:
            continue
        data = event.step_failure_data
        if data.user_failure_data is not None and data.user_failure_data.description:
            found.append(data.user_failure_data.description)
        elif (error := data.error) is not None:
            causes = [error]
            while (cause := causes[-1].cause) is not None:
                causes.append(cause)
            if RunStopped.__name__ in {one.cls_name for one in causes}:
                continue  # what a stop has cut short has failed at nothing, whatever Spark says of it; the stop is said by itself
            error = causes[-1]
            judged = _not_passed(result) if error.cls_name == DagsterAssetCheckFailedError.__name__ else []
            found += judged or [error.message.strip().partition("\n")[0]]
    return found


def _not_passed(result: dg.ExecuteInProcessResult) -> list[str]:
    """Return of each gate that fails a Dagster run what it found, of some chunks where it judges them one by one."""
    found: dict[str, list[str]] = {}
    for one in result.get_asset_check_evaluations():
        if not one.passed and one.severity is dg.AssetCheckSeverity.ERROR and one.blocking:
            chunk = f"{run_and_chunk(one.partition)[1]}: " if one.partition else ""
            found.setdefault(one.check_name, []).append(f"{chunk}{one.description}")
    return [
        f"{gate} has not passed: {'; '.join(all_of[:_CHUNKS_NAMED])}"
        + (f"; and {len(all_of) - _CHUNKS_NAMED} more chunks" if all_of[_CHUNKS_NAMED:] else "")
        for gate, all_of in found.items()
    ]


def run_publication(
    platform: Platform,
    instance: dg.DagsterInstance,
    record: RunRecord,
    *,
    failed: Callable[[str], None] = lambda _: None,
) -> bool:
    """Materialise the publish asset of a run in this process; return success. `failed` is told why it did not succeed."""
    job = _definitions(platform).resolve_job_def(publish_job(platform.products.target(record.target)).name)
    with dg.partition_loading_context(dynamic_partitions_store=instance), _helpers_apart(instance):
        result = job.execute_in_process(
            instance=instance,
            partition_key=record.run_id,
            tags={RUN_TAG: record.run_id, PROCESS_TAG: this_process()},
            run_config=_QUIET,
            raise_on_error=False,
        )
    for why in _failures(result):
        failed(why)
    return result.success


def tell_dagster(platform: Platform, target: str, *, judged: str = "") -> str:
    """Tell Dagster the changes of a target that it does not know of; return why it could not be told, or nothing.

    What readers see has changed already, whatever Dagster's storage says: the sensor or the doctor tells it later. Of the run
    `judged` it is told anew how its gates stand.
    """
    try:
        with instance_at(platform.settings) as instance:
            tell_changes(platform, instance, target)
            if judged:
                tell_run_again(platform, instance, platform.products.target(target), judged)
    except Refused as refusal:
        why = refusal.problems[0].what
    except Exception as error:  # noqa: BLE001 - a storage that breaks down while it is told may raise anything
        why = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    else:
        return ""
    text = f"Dagster was not told of the change of {target}: {why}"
    logs.event(_log, logging.WARNING, "dagster_not_told", text, told=True, target=target, why=why)
    return text


def report_inputs(platform: Platform, instance: dg.DagsterInstance) -> None:
    """Tell Dagster the current version of every input table."""
    changed, _ = observations(platform, {})
    for event in changed:
        instance.report_runless_asset_event(event)
