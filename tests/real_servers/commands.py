"""The command as the demos on real servers show it: what a person would type, and what it says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

out = Console()
_COMMAND = (sys.executable, "-m", "backfill_assets.cli.command")


class Commands:
    """The installation of a demo, and how a command is shown and run."""

    def __init__(self, home: Path, settings: Mapping[str, str]) -> None:
        """Name its home and its other settings, as variables."""
        self.home = home
        self._environment = {**os.environ, "BACKFILL_HOME": str(home), **settings}

    def run(self, *words: str, code: int = 0) -> None:
        """Show a command and run it; it has to end as it is meant to."""
        out.print(f"\n[bold]$ backfill {' '.join(words)}[/bold]", highlight=False)
        ended = subprocess.run([*_COMMAND, *words], env=self._environment, check=False).returncode
        if ended != code:
            raise SystemExit(f"`backfill {' '.join(words)}` ended with {ended}, and not with {code}")

    def asked(self, *words: str) -> Any:
        """Return what a command says as JSON."""
        command = [*_COMMAND, *words, "--json"]
        return json.loads(subprocess.run(command, env=self._environment, check=True, capture_output=True).stdout)

    def carry_out(self, run: str, manifest: str) -> None:
        """Plan, approve, compute and publish what a manifest says."""
        path = self.home.parent / f"{run}.yaml"
        path.write_text(manifest)
        out.print(manifest, style="dim", highlight=False, markup=False)
        self.run("plan", str(path))
        self.run("approve", run, "--by", "bob")
        self.run("run", run)
