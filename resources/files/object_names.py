"""Names of a store's objects, as the URIs of tables and the warehouse have them.

Put here what a name may not have. What a file system calls a URI, and how its bytes are had, is `stores`'. Imports no library: settings
are read by every command.
"""

from __future__ import annotations

_DELETE = 0x7F


def ambiguous(uri: str) -> str:
    """Return what a store's URI has that not everybody reads alike, in words; empty where it is plain."""
    place = uri.partition("://")[2]
    found = [one for one in ("#", "?") if one in uri]
    if any(ord(one) < ord(" ") or ord(one) == _DELETE for one in uri):
        found.append("a control character")
    if "//" in place:
        found.append("an empty part (//)")
    return " and ".join(found)
