"""What a GraphQL request asks for: its document, the mutations in it, and whether it runs the body of a schedule or a sensor.

Put here how a request is read, and how large it may be for that. Whether what it asks for is allowed is the guard's.
"""

from __future__ import annotations

import json
from typing import Any

from graphql import (
    DocumentNode,
    FieldNode,
    FragmentDefinitionNode,
    FragmentSpreadNode,
    InlineFragmentNode,
    OperationDefinitionNode,
    OperationType,
    parse,
)

from backfill_assets.ui.mutations import BY_DRY_RUN, EVALUATION

MAX_TOKENS = 50_000
MAX_DEPTH = 100
"""Levels that the data of a request may have; whoever reads it after the guard reads it level by level, too."""


def mutations_of(document: DocumentNode) -> tuple[str, ...]:
    """Return the fields that the mutations of a document ask for, whichever of its operations is to be executed."""
    fragments = {node.name.value: node for node in document.definitions if isinstance(node, FragmentDefinitionNode)}
    found: dict[str, None] = {}
    left = [
        node.selection_set
        for node in reversed(document.definitions)
        if isinstance(node, OperationDefinitionNode) and node.operation is OperationType.MUTATION
    ]
    spread: set[str] = set()  # each fragment is looked at once, however often and from wherever it is spread
    while left:
        for node in left.pop().selections:
            if isinstance(node, FieldNode):
                found[node.name.value] = None
            elif isinstance(node, InlineFragmentNode):
                left.append(node.selection_set)
            elif isinstance(node, FragmentSpreadNode) and (name := node.name.value) in fragments and name not in spread:
                spread.add(name)
                left.append(fragments[name].selection_set)
    return tuple(found)


def evaluates(document: DocumentNode) -> bool:
    """Return whether an operation of a document runs the body of a schedule or a sensor, otherwise than by a dry run."""
    fragments = {node.name.value: node for node in document.definitions if isinstance(node, FragmentDefinitionNode)}
    left = [
        (node.selection_set, node.operation is OperationType.MUTATION)
        for node in document.definitions
        if isinstance(node, OperationDefinitionNode)
    ]
    spread: set[tuple[str, bool]] = (
        set()
    )  # each fragment is looked at once as what a mutation asks for, once as the rest
    while left:
        selections, is_asked = left.pop()
        for node in selections.selections:
            if isinstance(node, FieldNode):
                if node.name.value == EVALUATION:
                    return True
                if node.selection_set is not None and not (is_asked and node.name.value in BY_DRY_RUN):
                    left.append((node.selection_set, False))
            elif isinstance(node, InlineFragmentNode):
                left.append((node.selection_set, is_asked))
            elif isinstance(node, FragmentSpreadNode):
                key = (node.name.value, is_asked)
                if node.name.value in fragments and key not in spread:
                    spread.add(key)
                    left.append((fragments[node.name.value].selection_set, is_asked))
    return False


def document_of(payload: Any) -> DocumentNode:
    """Return the document of a GraphQL request of which Dagster can take every part for what it is.

    Raises:
        ValueError, KeyError, TypeError, GraphQLError, RecursionError: if it cannot.
    """
    if depth_of(payload) > MAX_DEPTH:
        raise ValueError(f"it is nested more than {MAX_DEPTH} levels deep")
    # half a pair of surrogates is no text: nobody could answer with it
    json.dumps(payload, ensure_ascii=False).encode()
    query, variables, name = payload["query"], payload.get("variables"), payload.get("operationName")
    if not isinstance(query, str) or not isinstance(name, str | None):
        raise TypeError("the query, or the name of its operation, is no text")
    if not isinstance(variables, dict | None):
        raise TypeError("the variables are no object")
    return parse(query, no_location=True, max_tokens=MAX_TOKENS)


def depth_of(payload: Any) -> int:
    """Return how many levels JSON data has, counted no further than it may have."""
    level, depth = [payload], 0
    while level and depth <= MAX_DEPTH:
        inner = (one.values() if isinstance(one, dict) else one for one in level if isinstance(one, (dict, list)))
        level, depth = [value for values in inner for value in values], depth + 1
    return depth
