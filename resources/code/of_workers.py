"""Which code Spark's Python workers are to be, in one text that the driver hands to whoever starts them, and what differs from it.

Put here how the code of a driver is said to a worker, and held against what lies where the worker runs: another machine may have
another version installed, and a server that is kept may be older than the files on its disk. How files are found and hashed is
`sources`' and `identity`'s; who refuses to work, `resources.spark.worker_daemon`'s.
"""

from __future__ import annotations

from collections.abc import Iterable

from resources.code.identity import content_of, own_content
from resources.code.sources import Sources, is_found

CODE_VARIABLE = "BACKFILL_WORKER_CODE"
"""Environment variable in which a worker is told which code it is to be."""
_OWN = "backfill-assets"


def text_of(products: Iterable[Sources] = ()) -> str:
    """Return the code of this process as a text: this package's, and that of products, each as it lies on the disk now."""
    found = {
        f"{one.name}:{package}={content_of(_alone(one.name, package))}" for one in products for package in one.packages
    }
    return ";".join([f"{_OWN}={own_content()}", *sorted(found)])


def differing(text: str) -> list[str]:
    """Return whose code here is another one than a text says, each once; none where nothing is said.

    A package of a product that is not found here differs from nothing: who needs it says that it is missing. One that is found
    without files, in an archive, is another.
    """
    found = []
    for part in filter(None, text.split(";")):
        what, _, content = part.rpartition("=")
        name, _, package = what.partition(":")
        if not package:
            if content != own_content():
                found.append(name)
            continue
        here = _alone(name, package)
        if is_found(package) and content_of(here) != content:
            found.append(name)
    return list(dict.fromkeys(found))


def _alone(name: str, package: str) -> Sources:
    return Sources(name, (package,))
