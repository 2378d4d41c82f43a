"""`backfill ui`: Dagster in the browser, behind the guard."""

from __future__ import annotations

from urllib.parse import urlsplit

import click

from backfill_assets.cli.base import opened_instance, opened_platform, tell
from manifests.errors import InputRefused, Problem

DEFAULT_PORT = 3000


@click.command()
@click.option(
    "--port", type=click.IntRange(1, 65_535), help=f"Port of 127.0.0.1 to listen on.  [default: {DEFAULT_PORT}]"
)
@click.option("--read-only", is_flag=True, help="Only to look: changes are refused, and no daemon is started.")
@click.option(
    "--behind",
    metavar="URL",
    default="",
    help="Serve a proxy that asks for names and is reached at URL: two sockets in HOME/ui, for viewers and for operators.",
)
def ui(port: int | None, read_only: bool, behind: str) -> None:
    """Start Dagster (webserver and daemon) on this machine only, on this installation's instance.

    Requests from pages of other sites are refused, and so is every change that comes as a GET. Ctrl-C ends it, with the
    runs under way: the same launch goes on from what is staged.
    """
    from backfill_assets.installation import Platform
    from backfill_assets.ui.serving import listeners_of, serve
    from resources.settings import load_settings

    if behind:
        _require_address(behind)
        if port is not None or read_only:
            raise InputRefused(
                Problem(
                    f"--behind with {'--read-only' if read_only else '--port'}",
                    "a proxy is served on two sockets, one a role, and on no port",
                    "leave one of them out",
                )
            )
    settings = load_settings()
    _ = Platform.of(settings).products  # what is wrong with a declaration is said here, not by a server that stays down
    with opened_platform(), opened_instance(settings):
        pass  # what is missing is said before anything starts
    listeners = listeners_of(settings, port=port or DEFAULT_PORT, read_only=read_only, behind=behind.rstrip("/"))
    serve(settings, listeners, daemon=not read_only, say=tell)


def _require_address(text: str) -> None:
    try:
        split = urlsplit(text)
        known = split.port is None or split.port > 0
    except ValueError:  # brackets without an address of version 6, a port that is no number or too large
        known = False
    if (
        not known
        or split.scheme not in {"https", "http"}
        or not split.hostname
        or split.path.strip("/")
        or split.query
        or split.fragment
    ):
        raise InputRefused(
            Problem(
                f"--behind {text}",
                "it is the address under which people open the UI, such as https://backfill.example.com",
                "give scheme and host, and the port if it is not the usual one; no path",
            )
        )
