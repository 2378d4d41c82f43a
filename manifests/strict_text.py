"""YAML and JSON without the parts that let two readers see two texts: double keys, anchors, aliases, directives, sets.

Put here how text is read into data. What the data has to be is said where it is validated.
"""

from __future__ import annotations

import json
import re
from typing import Any

import yaml

_YAML = "tag:yaml.org,2002:"
_CORE = (
    (f"{_YAML}bool", re.compile("true|True|TRUE|false|False|FALSE")),
    (f"{_YAML}int", re.compile("[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")),
    (
        f"{_YAML}float",
        re.compile(
            r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
        ),
    ),
)
"""What a plain scalar is by the core schema of YAML 1.2, section 10.3.2; PyYAML reads YAML 1.1."""
_TEXT = f"{_YAML}str"
_OCTAL = re.compile("[-+]?0[0-9]+")
"""A whole number in base 8 by YAML 1.1, and in base 10 by YAML 1.2."""
_LONGEST_SHOWN = 60


class StrictLoader(yaml.SafeLoader):
    """YAML without the parts that let two readers see two manifests: double keys, anchors, aliases, numbers of one version."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Refuse anchors and aliases, and what two readers would read as two values."""
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        begins = event.start_mark
        if isinstance(event, yaml.ScalarEvent) and self._is_read_in_two_ways(event):
            said = (
                f"{event.value!r} is one value by YAML 1.1 and another by YAML 1.2; write a number in decimal digits without "
                "leading zeros, '_' or ':', a truth as true or false, and text in quotes"
            )
            raise yaml.constructor.ConstructorError(None, None, said, begins)
        if isinstance(event, yaml.ScalarEvent) and event.tag is not None and not self._is_of_its_tag(event):
            said = f"the tag '{event.tag}' is refused here: write a number or a truth as it is, and text in quotes"
            raise yaml.constructor.ConstructorError(None, None, said, begins)
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise yaml.constructor.ConstructorError(None, None, "anchors and aliases are refused", event.start_mark)
        return super().compose_node(parent, index)

    @staticmethod
    def _is_of_its_tag(event: yaml.ScalarEvent) -> bool:
        """Whether every reader takes the tag of a scalar for the same: any text is text, a number or boolean what it says."""
        return event.tag == _TEXT or any(event.tag == kind and form.fullmatch(event.value) for kind, form in _CORE)

    def scan_flow_scalar_non_spaces(self, double: Any, start_mark: Any) -> Any:
        """Refuse an escape of no character: PyYAML leaves it to Python, which has other errors for it."""
        try:
            return super().scan_flow_scalar_non_spaces(double, start_mark)
        except (ValueError, OverflowError):
            said = "found an escape of no character; Unicode ends with \\U0010FFFF"
            raise yaml.scanner.ScannerError(
                "while scanning a double-quoted scalar", start_mark, said, self.get_mark()
            ) from None

    def process_directives(self) -> Any:
        """Refuse directives: with them a tag, or a scalar, is what they say, and readers differ in which they know."""
        if self.check_token(yaml.DirectiveToken):
            begins = self.peek_token().start_mark  # type: ignore[no-untyped-call]
            raise yaml.constructor.ConstructorError(None, None, "directives are refused", begins)
        return super().process_directives()  # type: ignore[no-untyped-call]

    def _is_read_in_two_ways(self, event: yaml.ScalarEvent) -> bool:
        """Whether a scalar without quotes, or with the tag of a number or boolean, depends on who reads it."""
        kinds, is_plain = {kind for kind, _ in _CORE}, event.implicit[0]
        if not is_plain and event.tag not in kinds:
            return False
        text = event.value
        old = self.resolve(yaml.ScalarNode, text, (True, False))  # type: ignore[no-untyped-call]
        new = next((kind for kind, form in _CORE if form.fullmatch(text)), None)
        return (old if old in kinds else None) != new or bool(_OCTAL.fullmatch(text))

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Refuse what looks like a day, an instant or a number and is none: Python says neither which text it is nor where it stands."""
        try:
            return super().construct_object(node, deep)
        except (ValueError, OverflowError) as error:
            text = str(node.value)
            shown = text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."
            raise yaml.constructor.ConstructorError(None, None, f"'{shown}': {error}", node.start_mark) from None

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Refuse keys that are no text, and those that stand twice."""
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} is not text; quote it", key_node.start_mark
                )
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key '{key}' stands twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


def _unordered(_loader: Any, node: Any) -> Any:
    raise yaml.constructor.ConstructorError(
        None, None, "sets are refused: order is part of a contract", node.start_mark
    )


StrictLoader.add_constructor("tag:yaml.org,2002:set", _unordered)


def read_json(text: str) -> dict[str, Any] | None:
    """Return what JSON text says, or None if it is not JSON (a YAML flow mapping may look like it).

    JSON is read by a JSON reader: YAML's escapes and white space are not quite JSON's.
    """

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            names = [name for name, _ in pairs]
            double = next(name for name in names if names.count(name) > 1)
            raise yaml.constructor.ConstructorError(None, None, f"the key '{double}' stands twice")
        return found

    try:
        read: dict[str, Any] = json.loads(text, object_pairs_hook=once)
    except json.JSONDecodeError:
        return None
    return read


def way_out_of(error: Exception) -> str:
    """Return what to do about a text that cannot be read: a colon within a sentence is the most usual mistake in one."""
    if "mapping values are not allowed" in str(error):
        return "correct the text; a text with a colon in it is put in quotes"
    return "correct the text"
