"""What Spark forks its Python workers from: PySpark's own daemon, with what the workers need imported already.

Where the code that lies here is not the driver's (CODE_VARIABLE says which that is), each worker refuses whatever it is given.

Each worker would import it anew, for more than a second, and Spark ends a worker that was idle for a minute. Only
imported here, nothing is run: threads do not survive a fork, and a worker without those of Polars would wait for them for
ever. Where a product's module has had Polars compute something while it was imported, the daemon begins anew with this
package's own modules alone, and each worker imports what else it needs. Which modules, MODULES_VARIABLE says. A daemon whose
workers compute a chunk again is in other surroundings (`surroundings`) before it imports any of them.

Before each task PySpark drops what Python remembers of its search path, so that archives on it are read again (0.2 s),
and after each it collects garbage, through all that was ever imported (0.1 s). Neither is needed: the archives that the
installed package brings are the package once more, and what is imported stays. Nothing that imports PySpark may be
imported at the top of this module or of its package: it would come from the archives.
"""

import gc
import os
import re
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from importlib.machinery import PathFinder
from pathlib import Path

from resources.code.of_workers import CODE_VARIABLE, differing
from resources.spark import surroundings
from resources.spark.failures import OTHER_CODE
from resources.spark.pyspark_private import daemon_of_workers, refuse_work

MODULES_VARIABLE = "BACKFILL_WORKER_MODULES"
"""Environment variable that names the modules, with commas between them."""
_OWN = "backfill_assets."
_ARCHIVES = (".zip", ".jar")
_THREADS = Path("/proc/self/task")
_OF_POLARS = re.compile(r"polars-\d+\s*")


def without_own_archives(path: list[str]) -> list[str]:
    """Return a search path without the archives that lie inside the PySpark package that it also leads to."""
    installed = PathFinder.find_spec("pyspark", [entry for entry in path if not entry.endswith(_ARCHIVES)])
    if installed is None or installed.origin is None:
        return path
    package = Path(installed.origin).parent
    return [entry for entry in path if not (entry.endswith(_ARCHIVES) and Path(entry).is_relative_to(package))]


def has_threads_of_polars() -> bool:
    """Whether Polars has computed something in this process; False where the operating system does not name threads."""
    for thread in _THREADS.glob("*/comm"):
        with suppress(OSError):  # it has ended meanwhile
            if _OF_POLARS.fullmatch(thread.read_text()):
                return True
    return False


def other_code(names: Sequence[str], host: str) -> str:
    """Return what a worker on a host says whose code is not the driver's."""
    return f"{OTHER_CODE} the code of {', '.join(names)} in {sys.prefix} on {host} is not the driver's"


if __name__ == "__main__":
    # now: in other surroundings this module would be told that they have other values
    code, host = os.environ.get(CODE_VARIABLE, ""), socket.gethostname()
    modules = [module for module in os.environ.get(MODULES_VARIABLE, "").split(",") if module]
    if surroundings.begins_elsewhere():
        wanted = os.environ | surroundings.environment_elsewhere()
        if dict(os.environ) != wanted:  # a hash seed is what a process begins with
            os.execve(sys.executable, sys.orig_argv, wanted)  # noqa: S606 - the same
        surroundings.move_here()
    sys.path[:] = without_own_archives(sys.path)
    for gone in [entry for entry in sys.path_importer_cache if entry.endswith(_ARCHIVES) and entry not in sys.path]:
        del sys.path_importer_cache[gone]

    manager = daemon_of_workers()  # now not from an archive
    if others := differing(code):
        refuse_work(other_code(others, host))

    for module in modules:
        with suppress(ImportError):  # of a folder that only the driver searches: a worker that needs it says so
            import_module(module)
    if has_threads_of_polars():
        own = [module for module in modules if module.startswith(_OWN)]
        left = own if own != modules else []
        sys.stderr.write(
            f"{', '.join(module for module in modules if module not in left)}: something is computed while they are imported, "
            "so that each worker of Spark imports them anew (a second each); let a module only declare\n"
        )
        os.execve(sys.executable, sys.orig_argv, os.environ | {MODULES_VARIABLE: ",".join(left)})  # noqa: S606 - the same
    gc.freeze()
    manager()
