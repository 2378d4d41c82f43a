"""Hosts of their own on one machine: a namespace of processes and of the host's name each, and a clock that is wrong.

Put here how a command is started so that it takes itself for another machine. What is asked of it there is each test's.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from real_servers.processes import MissingServerError

_CLOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

/* seconds that this host's clock is off; with a second number, in every other stretch of so many seconds only: it jumps there and back */
static long off(void) {
  static int (*real)(clockid_t, struct timespec *);
  const char *said = getenv("HOST_CLOCK");
  char *end;
  if (!said) return 0;
  long by = strtol(said, &end, 10);
  long stretch = *end ? strtol(end + 1, 0, 10) : 0;
  if (!stretch) return by;
  struct timespec at;
  if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
  real(CLOCK_BOOTTIME, &at);
  return (at.tv_sec / stretch) % 2 ? by : 0;
}

int clock_gettime(clockid_t which, struct timespec *into) {
  static int (*real)(clockid_t, struct timespec *);
  if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
  int done = real(which, into);
  if (!done && (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE)) into->tv_sec += off();
  return done;
}

int gettimeofday(struct timeval *into, void *zone) {
  static int (*real)(struct timeval *, void *);
  if (!real) real = dlsym(RTLD_NEXT, "gettimeofday");
  int done = real(into, zone);
  if (!done && into) into->tv_sec += off();
  return done;
}

time_t time(time_t *into) {
  static time_t (*real)(time_t *);
  if (!real) real = dlsym(RTLD_NEXT, "time");
  time_t now = real(0) + off();
  if (into) *into = now;
  return now;
}
"""


@dataclass(frozen=True)
class Host:
    """A host by its name; `clock` is how its clock is wrong: `3600`, an hour ahead; `-5400/7`, back and there again every 7 seconds."""

    name: str
    clock: str
    library: Path

    def command(self, arguments: Sequence[str]) -> list[str]:
        """Return the command by which arguments are run there."""
        inner = 'hostname "$0" && exec "$@"'
        apart = ["unshare", "--uts", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc"]
        return [*apart, "sh", "-c", inner, self.name, *arguments]

    def environment(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of a process there; no name server knows the host."""
        return (
            dict(environment)
            | {"SPARK_LOCAL_IP": "127.0.0.1"}
            | ({"LD_PRELOAD": str(self.library), "HOST_CLOCK": self.clock} if self.clock else {})
        )

    def run(
        self, arguments: Sequence[str], environment: Mapping[str, str], folder: Path
    ) -> subprocess.CompletedProcess[str]:
        """Run a command there, to its end."""
        return subprocess.run(
            self.command(arguments),
            env=self.environment(environment),
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )


def clock_library(folder: Path) -> Path:
    """Return the library by which a process has a wrong clock, compiled into a folder.

    Raises:
        MissingServerError: if there is no compiler, or namespaces may not be made here.
    """
    if not (compiler := shutil.which("cc")):
        raise MissingServerError("no C compiler (`cc`): no clock can be set wrong for a single process")
    tried = subprocess.run(
        Host("elsewhere", "", folder).command(["hostname"]), capture_output=True, text=True, check=False
    )
    if tried.stdout.strip() != "elsewhere":
        raise MissingServerError(f"namespaces cannot be made here (`unshare`): {tried.stderr.strip()[-200:]}")
    source, library = folder / "clock.c", folder / "clock.so"
    source.write_text(_CLOCK)
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-O2", "-o", library, source, "-ldl"], check=True, env=dict(os.environ)
    )
    return library
