"""The contract: manifests, plans, and the lifecycle of a run. Nothing here imports Spark, Dagster or PyIceberg."""

from manifests.errors import Problem, Refused
from manifests.lifecycle import RunState
from manifests.model import Kind, Mode, RunManifest, load_manifest, parse_manifest
from manifests.planner import Plan, make_plan, plan_from_json

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
