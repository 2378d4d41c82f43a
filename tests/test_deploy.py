"""What lies in `deploy/` is valid, says what the code says, and gives each mode what it may reach: nothing of it is started here.

Schemas come with packages: compose's with check-jsonschema, Kubernetes' with kubernetes-validate, Kubeflow's as kubeflow-spark-api,
Dagster's own with dagster and dagster-k8s. Put here what a reader of the files cannot see; that they run, no test says
(`docs/deployment.md` names what was not tried).
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any

import jsonschema
import kubernetes
import kubernetes_validate
import pytest
import yaml
from dagster import DagsterRun
from dagster._config import process_config, resolve_to_config_type
from dagster._core.instance.config import dagster_instance_config
from dagster_k8s.container_context import K8sContainerContext
from dagster_k8s.job import construct_dagster_k8s_job
from dagster_k8s.launcher import K8sRunLauncher
from kubeflow_spark_api.models.spark_v1alpha1_spark_connect import SparkV1alpha1SparkConnect

from backfill_assets.cli.command import cli
from backfill_assets.defs.launch import instance_file
from manifests.model import Mode
from resources.settings import DAGSTER_STORAGE_VARIABLE, Settings, load_settings
from resources.spark import connected
from resources.spark.sessions import ModeSpark

ROOT = Path(__file__).resolve().parent.parent
DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
VALUES = yaml.safe_load((DEPLOY / "helm" / "dagster-values.yaml").read_text(encoding="utf-8"))
SPARK = sorted((KUBERNETES / "spark").glob("*-*.yaml"))
MANIFESTS = sorted(
    file
    for file in KUBERNETES.rglob("*.yaml")
    if file not in SPARK and file.name not in {"kustomization.yaml", "dagster.yaml", "workspace.yaml"}
)
OWN_IMAGE = f"backfill-assets:{tomllib.loads((ROOT / 'pyproject.toml').read_text())['project']['version']}"
SECRET = {
    "BACKFILL_LEDGER_URL": "postgresql+psycopg2://one@db.example.com/ledger",
    "BACKFILL_DAGSTER_STORAGE_URL": "postgresql+psycopg2://one@db.example.com/dagster",
    "BACKFILL_CATALOG": json.dumps(
        {"type": "rest", "uri": "https://catalog.example.com", "warehouse": "s3://lake/w", "s3.access-key-id": "a"}
        | {"s3.secret-access-key": "b", "s3.endpoint": "https://s3.example.com"}
    ),
}
"""What a team puts into the secret `backfill-secrets`."""


def documents(file: Path) -> list[dict[str, Any]]:
    return [one for one in yaml.safe_load_all(file.read_text(encoding="utf-8")) if one is not None]


def locked(package: str) -> str:
    found = re.search(rf"^{package}==(\S+)", (ROOT / "requirements.lock").read_text(encoding="utf-8"), re.MULTILINE)
    assert found is not None
    return found[1]


def fill() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fill", KUBERNETES / "spark" / "fill.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def settings_of(monkeypatch: pytest.MonkeyPatch, environment: Mapping[str, Any]) -> Settings:
    """Return the settings that a process with an environment resolves; what is no setting is refused."""
    for name in [one for one in os.environ if one.startswith("BACKFILL_")]:
        monkeypatch.delenv(name)
    for name, value in environment.items():
        if value is not None:
            monkeypatch.setenv(name, value)
    return load_settings()


# --- compose ----------------------------------------------------------------------------------------------------------


def test_the_compose_file_is_one_by_its_schema() -> None:
    schema = json.loads(files("check_jsonschema").joinpath("builtin_schemas/vendor/compose-spec.json").read_text())
    jsonschema.validators.validator_for(schema)(schema).validate(COMPOSE)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(COMPOSE | {"services": {"code": {"imagee": "x"}}}, schema)


def test_what_a_service_names_is_declared() -> None:
    volumes, networks = set(COMPOSE["volumes"]), set(COMPOSE["networks"])
    for name, service in SERVICES.items():
        assert set(service["networks"]) <= networks, name
        named = {one.partition(":")[0] for one in service.get("volumes", [])}
        assert {one for one in named if not one.startswith("./")} <= volumes, name
        assert all((DEPLOY / one).exists() for one in named if one.startswith("./")), name
        for other, waits in service.get("depends_on", {}).items():
            ends = SERVICES[other].get("restart") == "no"
            assert waits["condition"] == ("service_completed_successfully" if ends else "service_healthy"), (
                name,
                other,
            )
            assert ends or "healthcheck" in SERVICES[other], other


def variables(text: str) -> list[tuple[str, str]]:
    return re.findall(r"\$\{(\w+)([^}]*)\}", text)


def test_no_password_has_a_default_and_the_example_asks_for_each() -> None:
    found = variables((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
    assert found
    assert [name for name, rest in found if not rest.startswith(":?")] == []
    example = dict(re.findall(r"^(\w+)=(.*)$", (DEPLOY / "compose.env.example").read_text(), re.MULTILINE))
    assert example == dict.fromkeys([*(name for name, _ in found), "BACKFILL_OPERATOR"], "")
    assert "/deploy/compose.env" in (ROOT / ".gitignore").read_text().splitlines()


def test_every_service_with_settings_resolves_them(monkeypatch: pytest.MonkeyPatch) -> None:
    with_settings = [name for name, one in SERVICES.items() if "BACKFILL_HOME" in one.get("environment", {})]
    assert set(with_settings) == {"installation", "spark-settings", "code", "webserver", "daemon", "operator"}
    for name in with_settings:
        given = {key: value and re.sub(r"\$\{\w+[^}]*\}", "given", value) for key, value in SERVICES[name]["environment"].items()}  # fmt: skip
        found = settings_of(monkeypatch, {key: value for key, value in given.items() if key.startswith("BACKFILL_")})
        assert given["DAGSTER_HOME"] == str(found.dagster_home), name
        assert {mode: found.server_of(mode) for mode in Mode} == {
            mode: f"sc://spark-{'live' if mode is Mode.LIVE else 'history'}:15002" for mode in Mode
        }
        assert (found.catalog["type"], found.catalog["s3.secret-access-key"]) == ("rest", "given")


def test_each_spark_server_of_compose_is_started_for_the_modes_that_are_sent_to_it() -> None:
    script, folder, *servers = SERVICES["spark-settings"]["command"]
    assert (DEPLOY / "image" / script).is_file()
    modes = {name: set(of.split(",")) for name, of in (one.split("=") for one in servers)}
    assert modes == {"live": {Mode.LIVE}, "history": {*Mode} - {Mode.LIVE}}
    for name in modes:
        assert SERVICES[f"spark-{name}"]["command"][:2] == ["spark-connect.sh", f"{folder}/{name}.conf"]


def test_the_spark_server_of_other_modes_than_live_has_no_way_out_and_no_credential() -> None:
    history = SERVICES["spark-history"]
    assert history["networks"] == ["lake"]
    assert COMPOSE["networks"]["lake"] == COMPOSE["networks"]["ledger"] == {"internal": True}
    assert "environment" not in history
    assert "environment" not in SERVICES["spark-live"]
    assert SERVICES["postgres"]["networks"] == ["ledger"]
    assert all("home:" not in str(one) for one in history["volumes"])


def test_the_webserver_is_for_viewers_of_this_machine() -> None:
    assert [name for name, one in SERVICES.items() if "ports" in one] == ["webserver"]
    assert SERVICES["webserver"]["ports"] == ["127.0.0.1:3000:3000"]
    for command in (SERVICES["webserver"]["command"], arguments("webserver")):
        assert "--read-only" in command


def test_our_services_run_confined() -> None:
    own = {name: one for name, one in SERVICES.items() if one["image"] == OWN_IMAGE}
    assert len(own) == len(SERVICES) - 3
    for name, one in own.items():
        assert (one["user"], one["read_only"], one["cap_drop"]) == ("10001:10001", True, ["ALL"]), name
        assert one["security_opt"] == ["no-new-privileges:true"], name
    assert all("mem_limit" in one for one in SERVICES.values())


# --- Kubernetes -------------------------------------------------------------------------------------------------------


def require_valid(document: Mapping[str, Any]) -> None:
    kubernetes_validate.validate(dict(document), kubernetes_validate.latest_version(), strict=True)


@pytest.mark.parametrize("file", MANIFESTS, ids=lambda file: str(file.relative_to(KUBERNETES)))
def test_a_manifest_is_one_by_the_schema_of_its_kind(file: Path) -> None:
    found = documents(file)
    assert found
    for document in found:
        require_valid(document)


def test_a_misspelt_field_of_a_manifest_is_refused() -> None:
    document = documents(KUBERNETES / "base" / "daemon.yaml")[0]
    document["spec"]["template"]["spec"]["containers"][0]["resourcess"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        require_valid(document)


def test_every_manifest_is_in_a_kustomization() -> None:
    for folder in ("base", "live", "history", "data"):
        said = documents(KUBERNETES / folder / "kustomization.yaml")[0]
        own = {file.name for file in MANIFESTS if file.parent.name == folder}
        assert {one for one in said["resources"] if one != "../base"} == own, folder
    (generated,) = documents(KUBERNETES / "base" / "kustomization.yaml")[0]["configMapGenerator"]
    assert generated == {"name": "backfill-dagster", "files": ["dagster.yaml", "workspace.yaml"]}
    assert documents(KUBERNETES / "base" / "workspace.yaml") == documents(DEPLOY / "workspace.yaml")


@pytest.mark.parametrize("folder", ["live", "history", "data"])
def test_kustomize_builds_a_folder(folder: str) -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is missing, which builds what kustomization.yaml says")
    done = subprocess.run(["kubectl", "kustomize", KUBERNETES / folder], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for document in yaml.safe_load_all(done.stdout):
        require_valid(document)
        if document["kind"] not in {"Namespace", "PersistentVolume"}:
            assert document["metadata"]["namespace"] == f"backfill-{folder}"


def templates(document: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the pod templates of a document, wherever they stand in it, with the document's name."""
    if isinstance(document, dict):
        if isinstance(pod := document.get("spec"), dict) and "containers" in pod:
            yield "", dict(document)
        for key, value in document.items():
            yield from ((f"{key} {name}".strip(), one) for name, one in templates(value))


PODS = {
    f"{file.relative_to(KUBERNETES)} {name}": template
    for file in [*MANIFESTS, *SPARK]
    for document in documents(file)
    for name, template in templates(document)
}


def run_job() -> dict[str, Any]:
    """Return the Job that Dagster's launcher makes of a run by the instance of `base`."""
    config = instance()["run_launcher"]["config"] | {"job_namespace": "backfill-history"}
    evaluated = process_config(resolve_to_config_type(K8sRunLauncher.config_type()), config)
    assert evaluated.success, evaluated.errors
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dagster_k8s.launcher.load_kubernetes_config", lambda **_: None)  # there is no cluster
        launcher = K8sRunLauncher(**evaluated.value)
    context = K8sContainerContext.create_for_run(DagsterRun(job_name="one"), launcher, include_run_tags=False)
    job = construct_dagster_k8s_job(
        context.get_k8s_job_config(OWN_IMAGE, launcher),
        ["dagster", "api", "execute_run", "{}"],
        "dagster-run-1",
        context.run_k8s_config,
        pod_name="dagster-run-1",
    )
    made: dict[str, Any] = kubernetes.client.ApiClient().sanitize_for_serialization(job)
    return made


def instance() -> dict[str, Any]:
    return documents(KUBERNETES / "base" / "dagster.yaml")[0]


def test_a_run_is_a_valid_job_with_settings_home_and_instance() -> None:
    job = run_job()
    require_valid(job)
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["image"] == OWN_IMAGE
    assert {one["mountPath"] for one in container["volumeMounts"]} >= {
        "/srv/backfill", "/tmp", "/opt/dagster", "/opt/dagster/dagster.yaml",
    }  # fmt: skip
    assert [next(iter(one.values()))["name"] for one in container["envFrom"]] == [
        "backfill-settings",
        "backfill-secrets",
    ]
    assert pod["serviceAccountName"] == "backfill-run"
    assert job["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/component"] == "run"


def confined(template: Mapping[str, Any]) -> list[str]:
    """Return what a pod lacks of what every pod has."""
    pod, lacks = template["spec"], []
    security = pod.get("securityContext", {})
    if security.get("runAsNonRoot") is not True or not security.get("runAsUser"):
        lacks.append("a user that is not root")
    if security.get("seccompProfile") != {"type": "RuntimeDefault"}:
        lacks.append("seccomp")
    if "automountServiceAccountToken" not in pod:
        lacks.append("a word on the token")
    for container in (*pod["containers"], *pod.get("initContainers", [])):
        resources = container.get("resources", {})
        if not {"cpu", "memory"} <= resources.get("limits", {}).keys() & resources.get("requests", {}).keys():
            lacks.append("limits")
        own = container.get("securityContext", {})
        if own.get("allowPrivilegeEscalation") is not False or own.get("capabilities") != {"drop": ["ALL"]}:
            lacks.append("no privileges")
        if own.get("readOnlyRootFilesystem") is not True:
            lacks.append("a read-only root")
    return lacks


@pytest.mark.parametrize("name", [*PODS, "a run"])
def test_a_pod_is_not_root_and_has_limits(name: str) -> None:
    template = run_job()["spec"]["template"] if name == "a run" else PODS[name]
    assert confined(template) == []
    bare = {"spec": {"containers": [{"image": "x"}]}}
    assert len(confined(bare)) == 6


def test_there_is_a_pod_of_each_kind() -> None:
    found = {one["metadata"]["labels"]["app.kubernetes.io/component"] for one in PODS.values()}
    assert found == {"code", "daemon", "webserver", "operator", "installation", "postgres", "spark"}
    assert len(PODS) == 6 + 2 * len(SPARK)


def test_only_what_asks_kubernetes_has_a_token() -> None:
    with_token = {
        one["spec"].get("serviceAccountName", "of the operator")
        for one in PODS.values()
        if one["spec"]["automountServiceAccountToken"]
    }
    assert with_token == {"backfill-daemon", "backfill-webserver", "backfill-spark", "of the operator"}
    rules = [
        rule
        for file in MANIFESTS
        for document in documents(file)
        if document["kind"] in {"Role", "ClusterRole"}
        for rule in document["rules"]
    ]
    assert rules
    for rule in rules:
        assert not {"*", "secrets", "pods/exec"} & {*rule["resources"], *rule["verbs"], *rule["apiGroups"]}
    assert [one for file in MANIFESTS for one in documents(file) if one["kind"].startswith("Cluster")] == []


def test_what_a_pod_names_is_there() -> None:
    every = [one for file in MANIFESTS if file.parent.name in {"base", "spark", "history"} for one in documents(file)]
    named = {(one["kind"], one["metadata"]["name"]) for one in every} | {("ConfigMap", "backfill-dagster")}
    pods = [one["spec"] for name, one in PODS.items() if name.startswith(("base", "spark"))]
    for pod in [*pods, run_job()["spec"]["template"]["spec"]]:
        if account := pod.get("serviceAccountName"):
            assert ("ServiceAccount", account) in named
        volumes = {volume["name"]: volume for volume in pod.get("volumes", [])}
        for volume in volumes.values():
            claim, config = volume.get("persistentVolumeClaim"), volume.get("configMap")
            assert claim is None or ("PersistentVolumeClaim", claim["claimName"]) in named
            assert config is None or ("ConfigMap", config["name"]) in named
        for container in pod["containers"]:
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes.keys()
            for source in container.get("envFrom", []):
                secret = source.get("secretRef")
                assert secret == {"name": "backfill-secrets"} if secret else ("ConfigMap", source["configMapRef"]["name"]) in named  # fmt: skip


def arguments(name: str) -> list[str]:
    found: list[str] = documents(KUBERNETES / "base" / f"{name}.yaml")[0]["spec"]["template"]["spec"]["containers"][0][
        "args"
    ]
    return found


def test_commands_are_those_that_there_are() -> None:
    from dagster._cli.api import grpc_command
    from dagster_webserver.cli import dagster_webserver

    started = [list(one["command"]) for one in SERVICES.values() if isinstance(one.get("command"), list)]
    started += [arguments(name) for name in ("code", "webserver", "daemon", "installation")]
    of_webserver = {option for one in dagster_webserver.params for option in one.opts}
    of_code = {option for one in grpc_command.params for option in one.opts}
    checked = set()
    for command in started:
        options = {word.partition("=")[0] for word in command if word.startswith("--")}
        if command[0] == "backfill":
            assert command[1] in cli.commands
        elif command[0] == "dagster-webserver":
            assert options <= of_webserver
        elif command[:3] == ["dagster", "api", "grpc"]:
            assert options <= of_code
        else:
            continue
        checked.add(command[0])
    assert checked == {"backfill", "dagster-webserver", "dagster"}
    chart = VALUES["dagster-user-deployments"]["deployments"][0]["dagsterApiGrpcArgs"]
    assert {word for word in chart if word.startswith("--")} <= of_code


# --- Dagster ----------------------------------------------------------------------------------------------------------


def test_the_instance_is_what_init_writes_with_a_launcher_of_jobs(tmp_path: Path) -> None:
    given = Settings(home=tmp_path, dagster_storage_url="postgresql+psycopg2://one@db.example.com/dagster")
    own = instance()
    assert {key: value for key, value in own.items() if key not in {"run_launcher", "compute_logs"}} == yaml.safe_load(
        instance_file(given)
    )
    assert own["storage"]["postgres"]["postgres_url"]["env"] == DAGSTER_STORAGE_VARIABLE


def test_dagster_takes_the_instance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAGSTER_RUN_NAMESPACE", "backfill-history")
    monkeypatch.setenv(DAGSTER_STORAGE_VARIABLE, SECRET[DAGSTER_STORAGE_VARIABLE])
    config, _ = dagster_instance_config(str(KUBERNETES / "base"))
    assert config["run_launcher"]["class"] == "K8sRunLauncher"
    kind = resolve_to_config_type(K8sRunLauncher.config_type())
    assert process_config(kind, config["run_launcher"]["config"]).success
    assert not process_config(kind, config["run_launcher"]["config"] | {"job_namespac": "x"}).success
    assert {name for name, value in flat(config) if name == "env"} == {"env"}
    assert {value for name, value in flat(config) if name == "env"} <= {
        DAGSTER_STORAGE_VARIABLE,
        "DAGSTER_RUN_NAMESPACE",
    }


def flat(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield every key of nested mappings with its value."""
    if isinstance(value, Mapping):
        for key, one in value.items():
            yield key, one
            yield from flat(one)
    elif isinstance(value, list):
        for one in value:
            yield from flat(one)


CHART = {
    "": {
        *("global", "generatePostgresqlPasswordSecret", "serviceAccount", "telemetry", "postgresql", "runLauncher"),
        *(
            "dagster-user-deployments",
            "dagsterWebserver",
            "dagsterDaemon",
            "computeLogManager",
            "additionalInstanceConfig",
        ),
    },
    "dagsterWebserver": {
        *("image", "enableReadOnly", "service", "envConfigMaps", "envSecrets", "labels", "podSecurityContext"),
        *("securityContext", "resources", "volumes", "volumeMounts"),
    },
    "dagsterDaemon": {
        *("image", "runCoordinator", "runMonitoring", "runRetries", "envConfigMaps", "envSecrets", "labels"),
        *("podSecurityContext", "securityContext", "resources", "volumes", "volumeMounts"),
    },
    "runLauncher": {"type", "config"},
    "computeLogManager": {"type", "config"},
    "postgresql": {"enabled", "postgresqlHost", "postgresqlUsername", "postgresqlDatabase", "service"},
    "dagster-user-deployments": {"enabled", "enableSubchart", "deployments"},
}
"""Of the chart's values those that are set here: its schema is in no package, and was read when this was written."""
LAUNCHER = {
    *(
        "imagePullPolicy",
        "loadInclusterConfig",
        "envConfigMaps",
        "envSecrets",
        "labels",
        "resources",
        "securityContext",
    ),
    *("volumes", "volumeMounts", "runK8sConfig"),
}


def test_the_values_of_the_chart_are_keys_that_it_has() -> None:
    assert VALUES.keys() == CHART[""]
    for name, keys in CHART.items():
        assert not name or VALUES[name].keys() == keys, name
    assert VALUES["runLauncher"]["config"]["k8sRunLauncher"].keys() == LAUNCHER


def test_the_values_of_the_chart_say_what_the_instance_says() -> None:
    own, daemon = instance(), VALUES["dagsterDaemon"]
    assert daemon["runCoordinator"]["config"]["customRunCoordinator"] == own["run_coordinator"]
    assert daemon["runMonitoring"]["startTimeoutSeconds"] == own["run_monitoring"]["start_timeout_seconds"]
    assert daemon["runRetries"] == {"enabled": False}
    assert VALUES["additionalInstanceConfig"] == {key: own[key] for key in ("nux", "freshness")}
    assert VALUES["telemetry"] == own["telemetry"]
    assert VALUES["computeLogManager"]["config"]["customComputeLogManager"] == own["compute_logs"]
    launcher, config = VALUES["runLauncher"]["config"]["k8sRunLauncher"], own["run_launcher"]["config"]
    assert launcher["labels"] == config["labels"]
    assert launcher["resources"] == config["resources"]
    assert [one["name"] for one in launcher["envSecrets"]] == config["env_secrets"]
    pod = config["run_k8s_config"]["pod_spec_config"] | {"serviceAccountName": config["service_account_name"]}
    assert launcher["runK8sConfig"]["podSpecConfig"] == pod
    assert VALUES["global"]["dagsterHome"] == config["dagster_home"]


def test_the_pods_of_the_chart_are_valid_and_not_root() -> None:
    (code,) = VALUES["dagster-user-deployments"]["deployments"]
    for one in (code, VALUES["dagsterWebserver"], VALUES["dagsterDaemon"]):
        container = {
            "name": "one",
            "image": f"{one['image']['repository']}:{one['image']['tag']}",
            "resources": one["resources"],
            "securityContext": one["securityContext"] | {"readOnlyRootFilesystem": True},  # the chart writes into its own
            "envFrom": [{"configMapRef": name} for name in one["envConfigMaps"]] + [{"secretRef": name} for name in one["envSecrets"]],
            "volumeMounts": one["volumeMounts"],
        }  # fmt: skip
        pod = {
            "containers": [container],
            "securityContext": one["podSecurityContext"],
            "volumes": one["volumes"],
            "automountServiceAccountToken": True,
        }
        require_valid(
            {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "labels": one["labels"]}, "spec": pod}
        )
        assert confined({"spec": pod}) == []
        assert container["image"] == OWN_IMAGE


# --- settings, and what Spark's servers are started with --------------------------------------------------------------

NAMESPACES = {"live": {Mode.LIVE}, "history": {*Mode} - {Mode.LIVE}}


def map_of(namespace: str) -> dict[str, str]:
    found: dict[str, str] = documents(KUBERNETES / namespace / "settings.yaml")[0]["data"]
    return found


@pytest.mark.parametrize("namespace", NAMESPACES)
def test_the_settings_of_a_namespace_resolve_and_are_those_of_its_modes(
    namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = map_of(namespace)
    assert not SECRET.keys() & own.keys()
    found = settings_of(
        monkeypatch, {key: value for key, value in (own | SECRET).items() if key.startswith("BACKFILL_")}
    )
    assert {mode for mode in Mode if found.server_of(mode)} == NAMESPACES[namespace]
    assert {found.server_of(mode) for mode in NAMESPACES[namespace]} == {"sc://spark:15002"}
    assert own["DAGSTER_RUN_NAMESPACE"] == f"backfill-{namespace}"
    assert own["DAGSTER_HOME"] == instance()["run_launcher"]["config"]["dagster_home"]
    comment = (KUBERNETES / namespace / "settings.yaml").read_text(encoding="utf-8")
    assert set(re.findall(r"^#   (BACKFILL_\w+):$", comment, re.MULTILINE)) == SECRET.keys()


def modes_of(resource: Mapping[str, Any]) -> list[Mode]:
    return [Mode(one) for one in resource["spec"]["sparkConf"][connected.MODES_KEY].split(",")]


def required(monkeypatch: pytest.MonkeyPatch, namespace: str, mode: Mode, python: str) -> dict[str, Any]:
    """Return what `backfill spark settings --json` prints in a namespace."""
    environment = {key: value for key, value in (map_of(namespace) | SECRET).items() if key.startswith("BACKFILL_")}
    spark = ModeSpark(settings_of(monkeypatch, environment), ["a.product"], code=lambda: "the code")
    settings, variables_of_workers = spark.required(mode, python)
    return {"mode": mode.value, "settings": settings, "environment": variables_of_workers}


@pytest.mark.parametrize("file", SPARK, ids=lambda file: file.stem)
def test_a_spark_server_is_started_with_what_the_command_prints(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (resource,) = documents(file)
    namespace = file.stem.partition("-")[2]
    own = resource["spec"]["sparkConf"]
    assert set(modes_of(resource)) == NAMESPACES[namespace]
    for mode in modes_of(resource):
        said = required(monkeypatch, namespace, mode, "/elsewhere/python")
        found = fill().filled(resource, said)["spec"]["sparkConf"]
        assert list(connected._wrong_settings(found, "a server", said["settings"])) == []
        assert found.keys() == own.keys(), "the file names each setting, if not its value"
        for name, value in said["environment"].items():
            assert name == "PYSPARK_PYTHON" or found[f"{connected.OF_EXECUTORS}{name}"] == value
    left_open = {name for name, value in own.items() if value == fill().OPEN}
    workers = f"{connected.OF_EXECUTORS}BACKFILL_WORKER_MODULES"
    assert left_open == {connected.STORE_KEY, connected.CODE_KEY, workers}


def test_what_contradicts_a_file_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    (live,), (history,) = (documents(KUBERNETES / "spark" / f"apache-{name}.yaml") for name in NAMESPACES)
    said = required(monkeypatch, "history", Mode.REPLAY, "python")
    with pytest.raises(ValueError, match="settings of REPLAY, and the server computes LIVE"):
        fill().filled(live, said)
    history["spec"]["sparkConf"][connected.JDBC_KEY] = "basic"
    with pytest.raises(ValueError, match=f"{connected.JDBC_KEY} is basic"):
        fill().filled(history, said)
    with pytest.raises(ValueError, match="tables in S3"):
        fill().filled(documents(KUBERNETES / "spark" / "apache-history.yaml")[0], said | {"settings": {}})


@pytest.mark.parametrize("file", [one for one in SPARK if "kubeflow" in one.name], ids=lambda file: file.stem)
def test_a_spark_connect_is_one_by_the_models_of_its_operator(file: Path) -> None:
    (resource,) = documents(file)
    assert resource["apiVersion"] == "sparkoperator.k8s.io/v1alpha1"
    read = SparkV1alpha1SparkConnect.from_dict(resource)
    assert read is not None
    assert read.to_dict() == resource, "a field that the operator does not know is left out"
    misspelt = SparkV1alpha1SparkConnect.from_dict(resource | {"spec": resource["spec"] | {"sparkConfig": {}}})
    assert misspelt is not None
    assert "sparkConfig" not in misspelt.to_dict()["spec"]


@pytest.mark.parametrize("file", [one for one in SPARK if "apache" in one.name], ids=lambda file: file.stem)
def test_a_spark_application_is_one_by_the_definition_of_its_operator(file: Path) -> None:
    folder = os.environ.get("BACKFILL_TEST_CRDS", "")
    if not folder:
        pytest.skip(
            "Apache's definition of SparkApplication is in no package: BACKFILL_TEST_CRDS names a folder with it"
        )
    (resource,) = documents(file)
    found = [one for name in Path(folder).glob("*.yaml") for one in documents(name) if one["spec"]["group"] == "spark.apache.org"]  # fmt: skip
    (version,) = (one for one in found[0]["spec"]["versions"] if one["name"] == "v1")
    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    jsonschema.validate(resource["spec"], closed(spec))


def closed(schema: Any) -> Any:
    """Return a schema of Kubernetes in which a field that it does not name is refused."""
    if isinstance(schema, list):
        return [closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: closed(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and "additionalProperties" not in schema:
        found["additionalProperties"] = False
    if schema.get("x-kubernetes-int-or-string") is True:
        found.pop("type", None)
    return found


@pytest.mark.parametrize("name", [one for one in PODS if one.startswith("spark/")])
def test_the_pods_of_spark_are_valid(name: str) -> None:
    template = PODS[name]
    require_valid(
        {"apiVersion": "v1", "kind": "Pod", "metadata": template["metadata"] | {"name": "a"}, "spec": template["spec"]}
    )
    assert template["metadata"]["labels"]["app.kubernetes.io/component"] == "spark"


# --- what a mode can reach --------------------------------------------------------------------------------------------

POLICIES = {
    folder: [
        one
        for file in MANIFESTS
        if file.parent.name in {"base", folder}
        for one in documents(file)
        if one["kind"] == "NetworkPolicy"
    ]
    for folder in NAMESPACES
}
EVERYWHERE = "0.0.0.0/0"


def selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Whether a selector of Kubernetes takes what has these labels; of expressions it knows In and NotIn."""
    for one in selector.get("matchExpressions", []):
        if (labels.get(one["key"]) in one["values"]) is not (one["operator"] == "In"):
            return False
    return all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items())


def reached(namespace: str, component: str) -> set[str]:
    """Return what a pod may open connections to, as `what:port`: an address, or the component of a pod."""
    labels = {"app.kubernetes.io/part-of": "backfill", "app.kubernetes.io/component": component}
    found = set()
    for policy in POLICIES[namespace]:
        if not selects(policy["spec"]["podSelector"], labels):
            continue
        for rule in policy["spec"].get("egress", []):
            ports = [one["port"] for one in rule.get("ports", [])] or ["any"]
            for peer, port in product(rule["to"], ports):
                block, pods = peer.get("ipBlock"), peer.get("podSelector", {})
                chosen = pods.get("matchLabels", {})
                found.add(f"{block['cidr'] if block else next(iter(chosen.values()), 'any pod')}:{port}")
    return found


DNS = {"kube-dns:53"}
CATALOG, STORE, API = "192.0.2.10/32:8181", "192.0.2.11/32:443", "192.0.2.12/32:443"


def test_nothing_is_reached_that_no_policy_names() -> None:
    for namespace in NAMESPACES:
        assert reached(namespace, "anything else") == DNS | {"postgres:5432"}
        denied = [
            one for one in POLICIES[namespace] if one["spec"]["podSelector"] == {} and "egress" not in one["spec"]
        ]
        assert [one["spec"]["policyTypes"] for one in denied] == [["Ingress", "Egress"]]


def test_where_transforms_compute_the_store_alone_is_reached_and_no_database() -> None:
    for namespace in NAMESPACES:
        assert reached(namespace, "spark") == DNS | {"spark:any", STORE, API}
    (postgres,) = (one for one in documents(KUBERNETES / "data" / "postgres.yaml") if one["kind"] == "NetworkPolicy")
    (rule,) = postgres["spec"]["ingress"]
    labels = {"app.kubernetes.io/part-of": "backfill"}
    (peer,) = rule["from"]
    assert selects(peer["podSelector"], labels | {"app.kubernetes.io/component": "run"})
    assert not selects(peer["podSelector"], labels | {"app.kubernetes.io/component": "spark"})
    assert "egress" not in postgres["spec"]


def test_a_run_of_another_mode_than_live_reaches_ledger_catalog_store_and_spark_alone() -> None:
    own = DNS | {"postgres:5432", CATALOG, STORE, "spark:15002"}
    assert reached("history", "run") == own
    assert reached("live", "run") == own | {f"{EVERYWHERE}:443"}
    for component in ("code", "operator", "installation"):
        assert reached("history", component) == reached("live", component) == own
    for component in ("daemon", "webserver"):
        assert reached("history", component) == DNS | {"postgres:5432", "code:4000", API}


def test_live_has_a_namespace_secrets_and_accounts_of_its_own() -> None:
    spaces = {name: documents(KUBERNETES / name / "namespace.yaml")[0]["metadata"]["name"] for name in NAMESPACES}
    assert spaces == {"live": "backfill-live", "history": "backfill-history"}
    for name, space in spaces.items():
        assert documents(KUBERNETES / name / "kustomization.yaml")[0]["namespace"] == space
        volume = documents(KUBERNETES / name / "home-volume.yaml")[0]["spec"]
        assert volume["claimRef"] == {"namespace": space, "name": "backfill-home"}
        assert volume["nfs"] == {"server": "nfs.example.com", "path": "/backfill"}, "one home, so one chain"
    other = (KUBERNETES / "history" / "settings.yaml").read_text(encoding="utf-8")
    assert "SINKS" not in other
    assert "WEBHOOK" not in other


# --- images, versions, secrets ----------------------------------------------------------------------------------------

FILES = [file for file in sorted(DEPLOY.rglob("*")) if file.is_file() and "__pycache__" not in file.parts]


def images() -> set[str]:
    found = {one["image"] for one in SERVICES.values()}
    for file in (*MANIFESTS, *SPARK):
        found |= {value for document in documents(file) for key, value in flat(document) if key == "image"}
    dockerfile = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    return found | set(re.findall(r"^FROM (\S+)", dockerfile, re.MULTILINE))


def test_every_image_has_a_tag_with_a_version_and_a_name_of_the_default_hub() -> None:
    found = images()
    assert {one for one in found if one.startswith("backfill-assets")} == {OWN_IMAGE}
    for one in found:
        name, _, tag = one.partition(":")
        assert re.search(r"\d+\.\d+", tag), one
        assert "latest" not in tag
        assert "." not in name.partition("/")[0], f"{one} names a registry"


def test_versions_are_those_of_the_lock() -> None:
    dockerfile, make = ((ROOT / name).read_text(encoding="utf-8") for name in ("deploy/Dockerfile", "Makefile"))
    python = re.search(r"--python-version (\d+\.\d+)", make)
    assert python is not None
    assert f"FROM python:{python[1]}." in dockerfile
    assert f"lib/python{python[1]}/site-packages/pyspark /opt/spark" in dockerfile
    for file in SPARK:
        spec = documents(file)[0]["spec"]
        assert spec.get("sparkVersion", spec.get("runtimeVersions", {}).get("sparkVersion")) == locked("pyspark"), file
    helm = (DEPLOY / "helm" / "dagster-values.yaml").read_text(encoding="utf-8")
    assert f"--version {locked('dagster')} " in helm
    assert locked("dagster-k8s") == locked("dagster-postgres")
    code = documents(KUBERNETES / "base" / "code.yaml")[0]["spec"]["template"]["spec"]["containers"][0]
    assert {"name": "DAGSTER_CURRENT_IMAGE", "value": code["image"]} in code["env"]


def test_the_image_is_built_from_what_is_there_by_hash_and_is_not_root() -> None:
    dockerfile = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    let_through = {line[1:].rstrip("/") for line in ignored if line.startswith("!")}
    sources = {
        word.rstrip("/")
        for line in re.findall(r"^COPY (.+)$", dockerfile, re.MULTILINE)
        if "--from=" not in line
        for word in [one for one in line.split() if not one.startswith("--")][:-1]
    }
    assert sources == let_through
    assert all((ROOT / one).exists() for one in sources)
    assert ignored[1] == "*"
    assert "--require-hashes -r requirements.lock" in dockerfile
    assert re.findall(r"^USER (\S+)", dockerfile, re.MULTILINE)[-1] == "10001:10001"
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]["find"]["include"]
    assert {one.rstrip("*") for one in packages} <= sources


@pytest.mark.parametrize("script", sorted((DEPLOY / "image").glob("*.sh")), ids=lambda script: script.name)
def test_a_script_of_the_image_can_be_read_by_its_shell(script: Path) -> None:
    text = script.read_text(encoding="utf-8")
    assert text.startswith("#!/bin/bash\n")
    assert "set -euo pipefail" in text
    done = subprocess.run(["bash", "-n", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_entrypoint_hands_executors_what_spark_says(tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text('#!/bin/bash\nprintf "%s\\n" "$@"\n', encoding="utf-8")
    java.chmod(0o755)
    said = {name: f"the {name}" for name in spoken((DEPLOY / "image" / "entrypoint.sh").read_text())}
    environment = os.environ | said | {"JAVA_HOME": str(tmp_path), "SPARK_HOME": "/opt/spark"}
    environment |= {"SPARK_JAVA_OPT_0": "-Done=1", "SPARK_JAVA_OPT_1": "-Dtwo=a b"}
    command = ["bash", DEPLOY / "image" / "entrypoint.sh"]
    done = subprocess.run([*command, "executor"], env=environment, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert lines[:2] == ["-Done=1", "-Dtwo=a b"]
    assert lines[lines.index("--executor-id") + 1] == "the SPARK_EXECUTOR_ID"
    assert subprocess.check_output([*command, "echo", "a  b"], text=True) == "a  b\n"


def spoken(script: str) -> Sequence[str]:
    return sorted(set(re.findall(r"\$\{?(SPARK_(?:DRIVER|EXECUTOR|APPLICATION|RESOURCE)_\w+)", script)))


def test_what_spark_is_started_with_is_read_from_what_the_command_prints(tmp_path: Path) -> None:
    for name in ("backfill", "start-connect-server.sh"):
        (tmp_path / name).write_text('#!/bin/bash\necho "# export TZ=\'the zone\'"\necho "spark.backfill.server.modes=$4"\necho "got=$*"\nprintf "%s\\n" "$TZ" >&2\n')  # fmt: skip
        (tmp_path / name).chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}:{DEPLOY / 'image'}:{os.environ['PATH']}", "PYSPARK_PYTHON": "python", "TZ": "UTC"}  # fmt: skip
    subprocess.run(["spark-settings.sh", tmp_path, "live=LIVE", "history=BACKFILL,REPLAY"], env=environment, check=True, capture_output=True)  # fmt: skip
    written = (tmp_path / "history.conf").read_text().splitlines()
    assert written[1:] == ["spark.backfill.server.modes=BACKFILL,REPLAY", "got=spark settings --mode BACKFILL --python python"]  # fmt: skip
    done = subprocess.run(["spark-connect.sh", tmp_path / "history.conf", "--master", "local[2]"], env=environment, check=True, capture_output=True, text=True)  # fmt: skip
    assert done.stderr == "the zone\n"
    assert f"got=--properties-file {tmp_path}/history.conf --conf" in done.stdout


def test_no_secret_is_in_a_file() -> None:
    for file in (*MANIFESTS, *SPARK):
        assert [one for one in documents(file) if one["kind"] == "Secret"] == [], file
    looks = re.compile(r"passw|secret.access|secret.key|token$|credential", re.IGNORECASE)
    for name, service in SERVICES.items():
        for key, value in (service.get("environment") or {}).items():
            assert not looks.search(key) or str(value).startswith("${"), (name, key)
    for file in FILES:
        text = file.read_text(encoding="utf-8")
        assert not re.search(r"://[^/\s:@\"']+:(?!\$\{)[^/\s@\"']+@", text), f"{file} has a password in a URL"
        assert not re.search(r"AKIA[0-9A-Z]{12}|BEGIN [A-Z ]*PRIVATE KEY", text), file
