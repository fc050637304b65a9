"""What dashboards/kustomization.yaml renders fits Kubernetes' schemas, and says the same as docker-compose.yml."""

import copy
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from paceline.dashboards.window.guard import Guard

ROOT = Path(__file__).resolve().parents[1]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
#: Nobody asks these anything.
WITHOUT_PROBES = {"learner", "beat"}
#: A pod's own name, which is that of a container in docker-compose.yml.
NAMED_BY_POD = {"PACELINE_REPLICA", "PACELINE_LEARNER"}

Objects = dict[tuple[str, str], dict[str, Any]]


def kubectl(*words: str | Path) -> str:
    """What it prints; without it the test is skipped, but fails in CI."""
    if not shutil.which("kubectl"):
        (pytest.fail if os.environ.get("CI") else pytest.skip)("no kubectl on PATH: apt-get install kubernetes-client")
    done = subprocess.run(["kubectl", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def render(folder: Path) -> Objects:
    """What kubectl makes of a kustomization, by kind and name."""
    found = list(yaml.safe_load_all(kubectl("kustomize", folder)))
    objects = {(each["kind"], each["metadata"]["name"]): each for each in found}
    assert len(objects) == len(found)
    return objects


@pytest.fixture(scope="module")
def base() -> Objects:
    return render(ROOT / "dashboards")


def workloads(objects: Objects) -> dict[str, dict[str, Any]]:
    return {name: each for (kind, name), each in objects.items() if kind in {"Deployment", "StatefulSet"}}


def pod(objects: Objects, name: str) -> dict[str, Any]:
    return workloads(objects)[name]["spec"]["template"]["spec"]


def container(objects: Objects, name: str) -> dict[str, Any]:
    (only,) = pod(objects, name)["containers"]
    return only


def environment(objects: Objects, name: str) -> dict[str, str]:
    """Variables of a container; $(KEY) stands for a key that the user gives, {field} for a field of the pod."""
    found = {}
    for source in container(objects, name).get("envFrom", []):
        found |= objects["ConfigMap", source["configMapRef"]["name"]]["data"]
    for entry in container(objects, name).get("env", []):
        if "value" in entry:
            found[entry["name"]] = entry["value"]
        else:
            (where,) = entry["valueFrom"].values()
            found[entry["name"]] = f"$({where['key']})" if "key" in where else f"{{{where['fieldPath']}}}"
    return {key: expanded(value, found) for key, value in found.items()}


def expanded(value: str, variables: dict[str, str]) -> str:
    return re.sub(r"\$\((\w+)\)", lambda match: variables.get(match[1], match[0]), value)


def of_compose(value: str) -> str:
    """As `environment` has it: the default where there is one, else $(NAME)."""
    pattern = r"\$\{(\w+)(?::-([^}]*)|:\?[^}]*)?\}"
    return re.sub(pattern, lambda match: f"$({match[1]})" if match[2] is None else match[2], value)


def ports(objects: Objects, name: str) -> set[int]:
    return {port["port"] for port in objects["Service", name]["spec"]["ports"]}


@pytest.mark.parametrize("release", ["1.30", "1.37"])
def test_every_object_fits_the_schema(base: Objects, release: str) -> None:
    for each in base.values():
        kubernetes_validate.validate(each, release, strict=True)
    misspelt = copy.deepcopy(base["StatefulSet", "sglang"])
    misspelt["spec"]["template"]["spec"]["containers"][0]["readinesProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError, match="readinesProbe"):
        kubernetes_validate.validate(misspelt, release, strict=True)


def test_both_start_the_same_services(base: Objects) -> None:
    assert set(workloads(base)) == set(SERVICES)


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_is_started_alike(base: Objects, name: str) -> None:
    service, ours = SERVICES[name], container(base, name)
    variables = environment(base, name)
    assert ours["image"] == service["image"]
    if name != "redis":  # see below
        words = [of_compose(word) for word in service.get("command", [])]
        assert [expanded(word, variables) for word in ours.get("args", [])] == words
    theirs = {key: of_compose(str(value)) for key, value in service.get("environment", {}).items()}
    theirs |= dict.fromkeys(NAMED_BY_POD & set(theirs), "{metadata.name}")
    assert {key: variables.get(key) for key in theirs} == theirs
    assert {key for key in {*variables} - {*theirs} if key.startswith("PACELINE_")} == set()
    grace = service.get("stop_grace_period", "0m")
    assert pod(base, name).get("terminationGracePeriodSeconds", 0) == 60 * int(grace.removesuffix("m"))
    reserved = service.get("deploy", {}).get("resources", {}).get("reservations", {}).get("devices", [])
    assert ours["resources"].get("limits", {}) == ({"nvidia.com/gpu": "1"} if reserved else {})


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_keeps_its_volumes_and_ports(base: Objects, name: str) -> None:
    volumes = [str(volume) for volume in SERVICES[name].get("volumes", []) if not str(volume).startswith("./")]
    theirs = {re.search(r":(/[^:]+?)(:ro)?$", volume).groups() for volume in volumes}
    own = {volume["name"] for volume in pod(base, name).get("volumes", []) if not volume.get("persistentVolumeClaim")}
    mounts = [mount for mount in container(base, name).get("volumeMounts", []) if mount["name"] not in own]
    assert {(mount["mountPath"], ":ro" if mount.get("readOnly") else None) for mount in mounts} == theirs
    published = {int(port.rpartition(":")[2]) for port in SERVICES[name].get("ports", [])}
    listening = {port["containerPort"] for port in container(base, name).get("ports", [])}
    assert published <= listening
    if listening:
        assert ports(base, name) == listening


def test_every_service_of_the_network_leads_to_a_container_that_listens(base: Objects) -> None:
    services = {name: each["spec"] for (kind, name), each in base.items() if kind == "Service"}
    assert set(services) - set(SERVICES) == {"serving"}
    for service in services.values():
        (ours,) = [
            name
            for name, each in workloads(base).items()
            if each["spec"]["template"]["metadata"]["labels"] == service["selector"]
        ]
        listening = {port["containerPort"] for port in container(base, ours)["ports"]}
        assert {port["port"] for port in service["ports"]} == listening
    assert services["sglang"]["clusterIP"] == "None"  # so that Prometheus finds every server


def test_redis_has_the_same_settings(base: Objects) -> None:
    shell, flag, script = container(base, "redis")["args"]
    first, *lines, last = script.splitlines()
    assert (shell, flag, first, last) == ("sh", "-c", "exec redis-server - <<END", "END")
    variables = environment(base, "redis")
    ours = [re.sub(r"\$(\w+)", lambda match: variables[match[1]], line) for line in lines]
    assert ours == of_compose(COMPOSE["configs"]["redis"]["content"]).splitlines()


def shown_files(objects: Objects, name: str) -> Iterator[tuple[str, str]]:
    """Path and text of every file that a container has from a ConfigMap."""
    maps = {volume["name"]: volume["configMap"] for volume in pod(objects, name)["volumes"] if "configMap" in volume}
    for mount in container(objects, name)["volumeMounts"]:
        if mount["name"] in maps:
            data = objects["ConfigMap", maps[mount["name"]]["name"]]["data"]
            items = maps[mount["name"]].get("items") or [{"key": key, "path": key} for key in data]
            assert {item["key"] for item in items} == set(data)
            yield from ((f"{mount['mountPath']}/{item['path']}", data[item["key"]]) for item in items)


@pytest.mark.parametrize("name", ["prometheus", "grafana"])
def test_rules_boards_and_settings_are_the_files_of_the_repository(base: Objects, name: str) -> None:
    theirs = {}
    for volume in [volume for volume in SERVICES[name]["volumes"] if volume.startswith("./")]:
        source, target, _ = volume.split(":")
        files = [path for path in (ROOT / source, *(ROOT / source).rglob("*")) if path.is_file()]
        for path in files:
            inside = path.relative_to(ROOT / source).as_posix()
            theirs[f"{target}/{inside}" if inside != "." else target] = path.read_text(encoding="utf-8")
    assert dict(shown_files(base, name)) == theirs


def test_who_is_asked_has_probes_and_they_ask_what_compose_asks(base: Objects) -> None:
    for name, service in SERVICES.items():
        ours = container(base, name)
        probes = {kind for kind in ours if kind in {"readinessProbe", "livenessProbe"}}
        assert probes == (set() if name in WITHOUT_PROBES else {"readinessProbe", "livenessProbe"})
        check = service.get("healthcheck", {}).get("test", [])
        url = re.search(r"http://127\.0\.0\.1:(\d+)(/\w+)", " ".join(check))
        for probe in [ours[kind] for kind in probes if check]:
            if url:
                (port,) = [port["containerPort"] for port in ours["ports"] if port["name"] == probe["httpGet"]["port"]]
                assert (str(port), probe["httpGet"]["path"]) == url.groups()
            else:
                assert probe["exec"]["command"][-len(check) + 1 :] == check[1:]


def test_the_live_page_answers_its_probes(base: Objects) -> None:
    probe = container(base, "window")["readinessProbe"]["httpGet"]
    headers = {header["name"].lower(): header["value"] for header in probe["httpHeaders"]}
    guard = Guard(lambda *_: None)
    assert guard.refusal("GET", headers) == ""
    assert guard.refusal("GET", {"host": "10.0.0.1:8780"}) != ""  # what a probe without headers would send


def test_no_container_may_do_more_than_it_must(base: Objects) -> None:
    for name in SERVICES:
        who, what = pod(base, name), container(base, name)["securityContext"]
        assert who["securityContext"]["runAsNonRoot"] is True
        assert who["securityContext"]["runAsUser"] > 0
        assert who["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert who["automountServiceAccountToken"] is False
        assert (what["allowPrivilegeEscalation"], what["capabilities"]) == (False, {"drop": ["ALL"]})


def test_secrets_come_from_a_secret_that_the_base_does_not_hold(base: Objects) -> None:
    assert [name for kind, name in base if kind == "Secret"] == []
    entries = [entry for name in SERVICES for entry in container(base, name).get("env", [])]
    asked = [entry["valueFrom"]["secretKeyRef"] for entry in entries if "secretKeyRef" in entry.get("valueFrom", {})]
    assert {(each["name"], each["key"]) for each in asked} == {
        ("paceline", "REDIS_PASSWORD"),
        ("paceline", "POSTGRES_PASSWORD"),
    }
    secret = r"PASSWORD|AUTH|TOKEN|SECRET"
    plain = [entry["value"] for entry in entries if re.search(secret, entry["name"]) and "value" in entry]
    assert plain == ["$(REDIS_PASSWORD)"]  # REDISCLI_AUTH


def test_an_upgrade_takes_one_server_at_a_time_and_only_one_beat(base: Objects) -> None:
    servers = base["StatefulSet", "sglang"]["spec"]
    assert servers["replicas"] > 1
    assert "updateStrategy" not in servers  # by default one after another, each once the one before is ready
    assert base["PodDisruptionBudget", "sglang"]["spec"]["maxUnavailable"] == 1
    beat = base["Deployment", "beat"]["spec"]
    assert (beat["replicas"], beat["strategy"]) == (1, {"type": "Recreate"})


def test_the_overlay_of_the_document_names_target_and_images(tmp_path: Path) -> None:
    page = (ROOT / "docs/operations.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^ *```yaml\n(.*?)^ *```$", page, re.MULTILINE | re.DOTALL)
    overlay = yaml.safe_load(block)
    assert overlay.pop("resources") == ["../paceline/dashboards"]
    is_old = 'Minor:"20"' in kubectl("version", "--client")
    folders = "bases" if is_old else "resources"  # the former in the kubectl of Debian 12
    overlay[folders] = [os.path.relpath(ROOT / "dashboards", tmp_path.resolve())]
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(overlay), encoding="utf-8")
    made = render(tmp_path)
    assert {each["metadata"]["namespace"] for each in made.values()} == {overlay["namespace"]}
    images = {image["name"]: f"{image['newName']}:{image['newTag']}" for image in overlay["images"]}
    assert set(images) == {"paceline-serving", "paceline-learner"}
    for name, service in SERVICES.items():
        before = service["image"]
        assert container(made, name)["image"] == images.get(before.partition(":")[0], before)
    (target,) = overlay["configMapGenerator"][0]["literals"]
    for name in ("sglang", "learner", "beat"):
        source = container(made, name)["envFrom"][0]["configMapRef"]["name"]
        assert f"TARGET_NAME={made['ConfigMap', source]['data']['TARGET_NAME']}" == target
        assert made["ConfigMap", source]["data"]["DRAFT_STEPS"] == "3"
