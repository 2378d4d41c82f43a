"""Places that heads of the chain are kept in, as the settings write them: which are places, and how one is printed.

Put here what can be said of the text alone. What is written to a place and asked of it is `resources.evidence.heads`'.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from manifests.text import not_text

GIT = "git:"
"""What a repository begins with."""
_WEB = frozenset({"http", "https"})


def is_address(place: str) -> bool:
    """Whether a place is an address of the web, and no folder or repository.

    Raises:
        ValueError: if it cannot be parsed.
    """
    return urlsplit(place).scheme in _WEB


def shown(place: str) -> str:
    """Return a place as it may be printed: an address without what is secret of it."""
    scheme, separator, _ = place.partition("://")
    if not separator:
        return place
    try:
        return f"{scheme}://{urlsplit(place).hostname or '...'}"
    except ValueError:
        return f"{scheme}://..."


def is_place(place: str) -> bool:
    """Whether a head could be kept in a place, as it is written: a folder or repository from the root, or an address.

    No place has a control character: no file is named with a NUL, and a line that names a place is one line.
    """
    if not_text(place) is not None or not {"\n", "\r"}.isdisjoint(place):
        return False
    if place.startswith(GIT):
        return _is_from_the_root(place.removeprefix(GIT))
    if "://" not in place:
        return _is_from_the_root(place)
    try:
        address = urlsplit(place)
        _ = address.port  # raises where it is no number of a port
    except ValueError:
        return False
    return address.scheme in _WEB and bool(address.hostname) and not any(map(str.isspace, place))


def _is_from_the_root(folder: str) -> bool:
    return folder.startswith("/") and not folder.startswith("//")
