"""The address of a server of Spark Connect, among whose parameters a token may be.

Put here what makes an address one, and what of it may be shown.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

_HOST = r"(?:[A-Za-z0-9_][A-Za-z0-9_.-]*|\[[0-9A-Fa-f:.]+\])(?::(\d{1,5}))?"
_PLACE = re.compile(rf"sc://{_HOST}/?")
_BEGINNING = re.compile(rf"sc://{_HOST}(?=[/;?#]|\Z)")
_PARAMETER = re.compile(r"[A-Za-z0-9_.-]+=[!-:<>-~]*")
_NONE = "an address that is none"
_MOST_PORT = 65_535
_HIDDEN = "***"
FORM = "sc://host:port, or sc://host:port/;name=value;name=value"


def shown_address(address: str) -> str:
    """Return an address as far as anybody may read it: its host and its port, without parameters.

    One that is none is shown as far as that part of it is whole, and not at all where it may begin with a user and a password.
    """
    found = _BEGINNING.match(address)
    return _NONE if found is None or ("@" in address and wrong_address(address)) else found[0]


def wrong_address(address: str) -> str:
    """Return what is wrong with an address, without a word of it, or nothing."""
    place, *parameters = address.split(";")
    found = _PLACE.fullmatch(place)
    if found is None or int(found[1] or 0) > _MOST_PORT:
        return "it does not begin with sc:// and a host, with or without a port, or more follows them than a /"
    if parameters and not place.endswith("/"):
        return "the / before the first ; is missing"
    if any(_PARAMETER.fullmatch(one) is None for one in parameters):
        return "a parameter is not name=value (within a value = is written %3D, ; is written %3B, and a blank %20)"
    return ""


def require_addresses(key: str, *settings: dict[str, str]) -> None:
    """Refuse settings that name an address which is none.

    Raises:
        ValueError: saying what is wrong, without the address: it may have a token.
    """
    for found in settings:
        if (address := found.get(key, "")) and (wrong := wrong_address(address)):
            raise ValueError(f"{key} is no address of a Spark server, which is written {FORM}: {wrong}")


def without_secrets(text: str, address: str) -> str:
    """Return what a library says of an address, without the address itself and the values of its parameters."""
    text = text.replace(address, shown_address(address))
    values = [one.partition("=")[2] for one in address.split(";")[1:]]
    for value in sorted({*values, *map(unquote, values)} - {"", "true", "false"}, key=len, reverse=True):
        text = text.replace(value, _HIDDEN)
    return text
