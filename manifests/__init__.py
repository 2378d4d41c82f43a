"""The contract: manifests, plans, and the lifecycle of a run. Nothing here imports Spark, Dagster or PyIceberg.

What it exports is imported when it is first asked for: most commands need no manifest's model.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from manifests.errors import Problem, Refused
    from manifests.lifecycle import RunState
    from manifests.model import Kind, Mode, RunManifest
    from manifests.plan import Plan, plan_from_json
    from manifests.planner import make_plan
    from manifests.reading import load_manifest, parse_manifest

__all__ = [
    "Kind",
    "Mode",
    "Plan",
    "Problem",
    "Refused",
    "RunManifest",
    "RunState",
    "load_manifest",
    "make_plan",
    "parse_manifest",
    "plan_from_json",
]

_MODULES = {
    "manifests.errors": ("Problem", "Refused"),
    "manifests.lifecycle": ("RunState",),
    "manifests.model": ("Kind", "Mode", "RunManifest"),
    "manifests.plan": ("Plan", "plan_from_json"),
    "manifests.planner": ("make_plan",),
    "manifests.reading": ("load_manifest", "parse_manifest"),
}
_PLACES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import what is exported, once it is asked for."""
    if name not in _PLACES:
        raise AttributeError(f"module 'manifests' has no attribute '{name}'")
    value = globals()[name] = getattr(import_module(_PLACES[name]), name)
    return value
