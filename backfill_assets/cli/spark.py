"""The commands of Spark's servers: `backfill spark start`, `stop`, `status`, `settings`.

Put here arguments and output; how a server is started, found and ended is `resources.spark.kept_servers`', what one has to be
started with `resources.spark.connected`'s.
"""

from __future__ import annotations

import shlex
import sys
import time
from typing import TYPE_CHECKING, Any

import click

from backfill_assets.cli.base import EXIT_FAILED, json_option, opened_platform, say, show, tell

if TYPE_CHECKING:
    from collections.abc import Sequence

    from manifests.model import Mode
    from resources.spark.kept_servers import Kept
    from resources.spark.server_files import KeptServer

MODES = ("LIVE", "BACKFILL", "REPLAY", "DRY_RUN", "RECONCILIATION")
"""The values of `manifests.model.Mode`, which takes longer to import than help does to be shown."""
_MODE = click.Choice(MODES, case_sensitive=False)


def _named(modes: Sequence[str]) -> list[Mode]:
    from manifests.model import Mode

    return [Mode(mode) for mode in modes]


@click.group()
def spark() -> None:
    """Spark servers that are kept, one a mode, so that a run need not wait for a JVM.

    Runs use them where the setting `spark_server` is `if_running` or `always`. A server listens on this machine only, for those who can
    read its token in the home folder, and has no credential in its environment.
    """


@spark.command()
@click.option("--mode", "modes", type=_MODE, multiple=True, help="Of this mode; again for more. BACKFILL without it.")
@click.option("--cold", is_flag=True, help="Do not have it compute something first, which makes the first run sooner.")
@json_option
def start(modes: tuple[str, ...], cold: bool, as_json: bool) -> None:
    """Start the server of a mode; one that runs with these settings and this code is left alone.

    One that was started with others is ended first, unless somebody computes on it.
    """
    shown = []
    with opened_platform() as platform:
        for mode in _named(modes or ("BACKFILL",)):
            kept, settings, environment = platform.spark.kept(mode)
            began = time.monotonic()
            found, is_new = kept.start(settings, environment)
            if is_new and not cold:
                # what executors of a cluster would write is beside what they see of this machine
                why = _not_warmed(found, kept) if settings["spark.master"].startswith("local") else "it is a cluster's"
                if why:
                    tell(f"the Spark server of {mode} was started, and has computed nothing yet: {why}", err=True)
            seconds = round(time.monotonic() - began, 1)
            shown.append(_shown(kept, found, "RUNNING", 0.0) | {"started": is_new, "seconds": seconds})
    if as_json:
        say(shown)
        return
    for one in shown:
        what = f"started in {one['seconds']} s" if one["started"] else "runs already"
        tell(f"the Spark server of {one['mode']} {what}: process {one['pid']}, port {one['port']}")


@spark.command()
@click.option("--mode", "modes", type=_MODE, multiple=True, help="Of this mode; again for more. All without it.")
@click.option("--force", is_flag=True, help="Also one that somebody computes on: what they compute fails.")
@json_option
def stop(modes: tuple[str, ...], force: bool, as_json: bool) -> None:
    """End the server of a mode; refused while somebody computes on it."""
    from resources.settings import load_settings
    from resources.spark.kept_servers import Kept

    home = load_settings().home
    was = {mode.value: Kept(home, mode).stop(force=force).value for mode in _named(modes or MODES)}
    if as_json:
        say([{"mode": mode, "was": condition} for mode, condition in was.items()])
        return
    for mode, condition in was.items():
        if condition != "STOPPED" or modes:
            tell(f"the Spark server of {mode} is stopped" + ("" if condition == "RUNNING" else f"; it was {condition}"))
    if not modes and set(was.values()) == {"STOPPED"}:
        tell("no Spark server runs")


@spark.command()
@click.option("--mode", "modes", type=_MODE, multiple=True, help="Of this mode; again for more. All without it.")
@json_option
def status(modes: tuple[str, ...], as_json: bool) -> None:
    """Say which servers run, and ask each whether it answers.

    Exit code 1 if one that was not stopped does not answer.
    """
    from resources.settings import load_settings
    from resources.spark.kept_servers import Kept

    settings = load_settings()
    shown = []
    for mode in _named(modes or MODES):
        kept = Kept(settings.home, mode)
        began = time.monotonic()
        condition = kept.condition(kept.known())
        shown.append(_shown(kept, kept.known(), condition.value, time.monotonic() - began))
    if as_json:
        say(shown)
    else:
        _show(shown, settings.spark_server)
    if any(one["condition"] in {"SILENT", "ENDED"} for one in shown):
        sys.exit(EXIT_FAILED)


@spark.command("settings")
@click.option("--mode", type=_MODE, default="BACKFILL", show_default=True, help="The mode that it computes.")
@click.option(
    "--python", default=sys.executable, help="The path of Python where its workers run; this one's without it."
)
@json_option
def required(mode: str, python: str, as_json: bool) -> None:
    """Print what a Spark Connect server of somebody else has to be started with, so that runs of a mode can compute on it.

    It is a file for `spark-submit --properties-file`; lines that begin with `# export` are for its environment. The same code has to be installed
    where its Python workers run. Its address is the Spark setting `spark.remote`.
    """
    from resources.spark.server_files import properties

    with opened_platform() as platform:
        settings, environment = platform.spark.required(_named([mode])[0], python)
    if as_json:
        say({"mode": mode, "settings": settings, "environment": environment})
        return
    for name, value in environment.items():
        tell(f"# export {name}={shlex.quote(value)}")
    tell(properties(settings).rstrip())


def _not_warmed(found: KeptServer, kept: Kept) -> str:
    """Have a server compute a little; return why it has not, if so: then its first run is slower, and no worse."""
    from resources.spark.connected import raised
    from resources.spark.warming import warmed

    try:
        warmed(found.address, kept.folder)
    except Exception as error:  # noqa: BLE001 - whatever it is, the server runs, and says more to whoever computes on it
        return raised(error)
    return ""


def _shown(kept: Kept, found: KeptServer | None, condition: str, seconds: float) -> dict[str, Any]:
    """Return what is said of a server: never its token."""
    facts: dict[str, Any] = {"mode": kept.mode.value, "condition": condition}
    if found is None:
        return facts
    return facts | {
        "pid": found.pid,
        "port": found.port,
        "master": found.master,
        "startedAt": found.started_at,
        "answeredInSeconds": round(seconds, 3) if condition == "RUNNING" else None,
        "used": kept.is_used(),
        "log": str(kept.log),
    }


def _show(servers: list[dict[str, Any]], setting: str) -> None:
    from rich.table import Table

    table = Table(title="Spark servers", caption=f"spark_server = {setting}", caption_justify="left")
    for name in ("mode", "condition", "process", "port", "master", "since", "used"):
        table.add_column(name)
    for one in servers:
        used = "" if one.get("used") is None else "yes" if one["used"] else "no"
        cells = [one.get(name, "") for name in ("mode", "condition", "pid", "port", "master", "startedAt")]
        table.add_row(*map(str, cells), used)
    show(table)
    for one in servers:
        if one["condition"] in {"SILENT", "ENDED"}:
            tell(f"{one['mode']}: see {one['log']}; `backfill spark start --mode {one['mode']}` starts it again")
