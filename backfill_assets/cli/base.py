"""What the commands share: options, output, exit codes, and how an installation is opened.

Put here what two commands need. Nothing here knows what a command does.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from manifests.errors import EnvironmentRefused, Problem, Refused
from manifests.text import visible_lines

if TYPE_CHECKING:
    from dagster import DagsterInstance

    from backfill_assets.installation import Platform
    from resources.settings import Settings

# Dagster, Spark, PyIceberg and SQLAlchemy take long to import: commands import where they need something.

F = TypeVar("F", bound=Callable[..., Any])
EXIT_FAILED, EXIT_REFUSED = 1, 2
POLL_SECONDS = 0.5

WHOLE_PROCESS = object()
"""What says that a command is all that its process is for."""
CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


def json_option(command: F) -> F:
    """Give a command `--json`, as its argument `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON for a script.")(command)


def say(value: Any) -> None:
    """Print a value as JSON, for a script."""
    from manifests.canonical import plain

    has_all = (sys.stdout.encoding or "").lower().startswith("utf")
    click.echo(json.dumps(plain(value), indent=2, ensure_ascii=not has_all))


def tell(text: str, *, err: bool = False) -> None:
    """Print lines for a person; what a record holds that a terminal would obey is written as an escape."""
    click.echo(visible_lines(text), err=err)


def show(*renderables: Any) -> None:
    """Print tables, panels and plots for a person."""
    from backfill_assets.cli.terminal import make_console

    console = make_console()
    for renderable in renderables:
        console.print(renderable)


@contextmanager
def opened_platform() -> Iterator[Platform]:
    """Open the installation that the settings name; Ctrl-C and SIGTERM end what is done with it at once.

    Raises:
        EnvironmentRefused: if it was never initialised.
    """
    from backfill_assets.installation import open_platform
    from backfill_assets.staging.stopping import interruptible
    from resources import logs
    from resources.actors import Channel, acting, identified
    from resources.logs import traces
    from resources.settings import load_settings

    settings = load_settings()
    if not settings.home.is_dir():
        raise EnvironmentRefused(
            Problem(
                f"{settings.home} {'is not a folder' if settings.home.exists() else 'does not exist'}",
                "the installation is initialised first",
                "go to the folder in which it is, or set BACKFILL_HOME or BACKFILL_CONFIG; `backfill init` makes a new one",
            )
        )
    logs.configure(settings)
    traces.configure(settings.traces)
    with (
        open_platform(settings) as platform,
        acting(lambda: identified(platform.policy.identity, Channel.CLI)),
        interruptible(platform),
    ):
        yield platform


@contextmanager
def opened_instance(settings: Settings) -> Iterator[DagsterInstance]:
    """Open the installation's Dagster instance."""
    from backfill_assets.defs.launch import instance_at

    with instance_at(settings) as instance:
        yield instance


def refuse(error: Refused) -> None:
    """Print a refusal with its reasons."""
    from backfill_assets.cli.console import refusal
    from backfill_assets.cli.terminal import make_console

    make_console(stderr=True).print(refusal(error))
