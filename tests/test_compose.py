"""docker-compose.yml and the images agree with the code: commands, variables, versions, closed ports, no secrets."""

import ast
import importlib.util
import re
import subprocess
import sys
from configparser import ConfigParser
from importlib.metadata import version
from pathlib import Path
from typing import Any

import paceline.cli
import pytest
import typer
import yaml
from paceline.buffer.settings.table import SETTINGS
from paceline.serving.supported_release import SUPPORTED

HOUSE = Path(__file__).resolve().parents[1]
COMPOSE = yaml.safe_load((HOUSE / "docker-compose.yml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
# Variables of a secret, or that hold one inside a URL.
SECRETS = ("REDIS_PASSWORD", "POSTGRES_PASSWORD")


def text(name: str) -> str:
    return (HOUSE / name).read_text(encoding="utf-8")


def options(words: list[str]) -> set[str]:
    """Names of the long options among the words of a command."""
    return {word.split("=")[0] for word in words if word.startswith("--") and word != "--"}


def option_names(command: Any) -> set[str]:
    """Long options a click command knows."""
    return {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}


def interpolated(value: str) -> str:
    """What Compose makes of `${NAME}`, `${NAME:-default}` and `${NAME:?message}` when NAME is set to "given"."""
    return re.sub(r"\$\{\w+(?::[-?][^}]*)?\}", "given", value)


def strings(package: str, *path: str) -> set[str]:
    """Every string in a source file of an installed package, which is not imported: engines take seconds to load."""
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.submodule_search_locations
    source = Path(spec.submodule_search_locations[0], *path).read_text(encoding="utf-8")
    return {str(node.value) for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant)}


def open_ports(services: dict[str, dict[str, Any]]) -> list[str]:
    """Published ports that other machines could reach."""
    ports = [(name, str(port)) for name, service in services.items() for port in service.get("ports", [])]
    return [f"{name}: {port}" for name, port in ports if not port.startswith("127.0.0.1:")]


def written_secrets(source: str) -> list[str]:
    """Passwords with a default, and passwords written in the file."""
    defaults = re.findall(r"\$\{\w*(?:PASSWORD|SECRET|TOKEN):?-[^}]*\}", source)
    literals = re.findall(r"(?:PASSWORD|AUTH|requirepass)\w*:? +(?!\$\{)[^\s.]+$", source, re.MULTILINE)
    in_urls = re.findall(r"://\w*:(?!\$\{)[^@\s/]+@", source)
    return defaults + literals + in_urls


def test_every_production_service_is_there() -> None:
    figures = {"exporter", "prometheus", "grafana"}
    assert set(SERVICES) == {"redis", "postgres", "mlflow", "sglang", "learner", "beat"} | figures


def test_no_port_is_published_beyond_this_machine() -> None:
    assert open_ports(SERVICES) == []


@pytest.mark.parametrize("port", ["6379:6379", "0.0.0.0:6379:6379", "${IP:-0.0.0.0}:1:1", 6379])
def test_an_open_port_would_be_found(port: str | int) -> None:
    assert open_ports({"redis": {"ports": [port]}}) == [f"redis: {port}"]


def test_no_secret_is_written_or_has_a_default() -> None:
    source = text("docker-compose.yml")
    assert written_secrets(source) == []
    for name in SECRETS:
        assert f"${{{name}:?" in source, f"{name} must be refused with a message when it is missing"


@pytest.mark.parametrize(
    "line",
    ["POSTGRES_PASSWORD: hunter2", "X: ${REDIS_PASSWORD:-redis}", "requirepass hunter2", "redis://:hunter2@redis"],
)
def test_a_written_secret_would_be_found(line: str) -> None:
    assert len(written_secrets(line)) == 1


@pytest.mark.parametrize("service", ["sglang", "learner", "exporter"])
def test_paceline_commands_and_their_options_exist(service: str) -> None:
    program, command, *words = SERVICES[service]["command"]
    assert program == "paceline"
    known = typer.main.get_command(paceline.cli.app).commands
    before_engine = words[: words.index("--")] if "--" in words else words
    assert options(before_engine) <= option_names(known[command])


def test_the_engine_is_started_with_options_it_knows() -> None:
    words = SERVICES["sglang"]["command"]
    flags = options(words[words.index("--") + 1 :])
    assert len(flags) == 9
    fields = strings("sglang", "srt", "arg_groups", "field_order.py")
    assert flags <= {"--" + field.replace("_", "-") for field in fields}


def test_the_tracking_server_is_started_with_options_it_knows() -> None:
    program, command, *words = SERVICES["mlflow"]["command"]
    assert (program, command) == ("mlflow", "server")
    assert options(words) <= strings("mlflow", "cli", "__init__.py") | strings("mlflow", "utils", "cli_args.py")


def test_beat_is_a_celery_command_on_the_learners_app() -> None:
    from celery.bin.celery import celery

    program, *words = SERVICES["beat"]["command"]
    command = words.index("beat")
    assert program == "celery"
    assert options(words[:command]) <= option_names(celery)
    assert options(words[command + 1 :]) <= option_names(celery.commands["beat"])


def test_beat_starts_with_the_variables_it_is_given() -> None:
    module = SERVICES["beat"]["command"][1].removeprefix("--app=")
    given = {name: interpolated(value) for name, value in SERVICES["beat"]["environment"].items()}
    code = f"from celery.app.utils import find_app; print(*find_app({module!r}).conf.beat_schedule)"
    done = subprocess.run(
        [sys.executable, "-c", code], env=given, capture_output=True, text=True, check=False, cwd=HOUSE / "tests"
    )
    assert done.stdout == "learn\n", done.stderr


def test_every_variable_is_one_that_a_configuration_reads() -> None:
    given = {name for service in SERVICES.values() for name in service.get("environment", {})}
    ours = {name for name in given if name.startswith("PACELINE_")}
    assert ours
    assert ours <= {row.variable for row in SETTINGS}


def test_the_server_reads_the_versions_where_the_learner_writes_them() -> None:
    folder = SERVICES["learner"]["environment"]["PACELINE_DATA_DIR"]
    assert f"learner:{folder}" in SERVICES["learner"]["volumes"]
    assert f"learner:{folder}:ro" in SERVICES["sglang"]["volumes"]


def test_all_members_name_the_same_buffer_and_target() -> None:
    sides = [SERVICES[name]["environment"] for name in ("sglang", "learner", "beat")]
    for name in ("PACELINE_REDIS_URL", "PACELINE_SPECULATOR", "PACELINE_TARGET", "PACELINE_TARGET_VERSION"):
        assert len({side[name] for side in sides}) == 1


def test_a_recreated_learner_keeps_its_name() -> None:
    # A container's host name, the default, changes whenever it is made again.
    assert SERVICES["learner"]["environment"]["PACELINE_LEARNER"] == "${LEARNER:-learner-0}"
    assert "PACELINE_LEARNER" not in SERVICES["beat"]["environment"]


def test_the_database_is_healthy_only_once_it_is_initialised() -> None:
    # The server that initialises a fresh volume listens on its socket alone.
    assert "--host=127.0.0.1" in SERVICES["postgres"]["healthcheck"]["test"]


def test_services_with_work_in_progress_get_time_to_end() -> None:
    assert [name for name, service in SERVICES.items() if "stop_grace_period" in service] == ["sglang", "learner"]


def test_the_serving_image_is_not_built_when_the_plugin_would_not_capture() -> None:
    last = text("serving/Dockerfile").split("\nWORKDIR /\n")[1]
    code = re.search(r'^RUN python3 -c "(.*)"', last, re.MULTILINE)
    assert code
    done = subprocess.run(
        [sys.executable, "-c", code[1]], capture_output=True, text=True, check=False, cwd=HOUSE / "tests"
    )
    assert done.stdout == f"SGLang {version('sglang')}\n", done.stderr


def test_volumes_and_configs_are_declared() -> None:
    mounted = {str(volume).split(":")[0] for service in SERVICES.values() for volume in service.get("volumes", [])}
    assert {name for name in mounted if re.fullmatch(r"\w+", name)} == set(COMPOSE["volumes"])
    assert [config["source"] for config in SERVICES["redis"]["configs"]] == list(COMPOSE["configs"])


def test_redis_never_evicts_and_survives_a_restart() -> None:
    lines = COMPOSE["configs"]["redis"]["content"].splitlines()
    assert {"appendonly yes", "maxmemory-policy noeviction"} <= set(lines)


def test_every_supported_release_and_no_other_can_be_set_up() -> None:
    found = {path.name for path in (HOUSE / "serving/cpu_host").glob("requirements-*.txt")}
    assert found == {f"requirements-{release}.txt" for release in SUPPORTED}
    assert f"\nDEFAULT_SGLANG := {SUPPORTED[0]}\n" in text("Makefile")


def test_images_have_the_tested_versions() -> None:
    torch = re.search(r"^TORCH := (torch==\S+)$", text("Makefile"), re.MULTILINE)
    needs = text(f"serving/cpu_host/requirements-{SUPPORTED[0]}.txt")
    transformers = re.search(r"^transformers==\S+$", needs, re.MULTILINE)
    assert torch
    assert transformers
    assert f"FROM lmsysorg/sglang:v{SUPPORTED[0]}\n" in text("serving/Dockerfile")
    assert f" {torch.group(1)} {transformers.group(0)} " in text("learner/Dockerfile")


def test_prometheus_scrapes_the_exporter_where_it_listens() -> None:
    config = yaml.safe_load(text("dashboards/prometheus/prometheus.yml"))
    targets = {job["job_name"]: job["static_configs"][0]["targets"] for job in config["scrape_configs"]}
    (port,) = [word.partition("=")[2] for word in SERVICES["exporter"]["command"] if word.startswith("--port=")]
    (engine_port,) = [word.partition("=")[2] for word in SERVICES["sglang"]["command"] if word.startswith("--port=")]
    assert targets == {"paceline": [f"exporter:{port}"], "sglang": [f"sglang:{engine_port}"]}
    assert {*config["rule_files"]} == {path.name for path in (HOUSE / "dashboards/prometheus").iterdir()} - {
        "prometheus.yml"
    }


def test_grafana_is_provisioned_with_what_is_mounted() -> None:
    mounted = dict(volume.split(":")[:2] for volume in SERVICES["grafana"]["volumes"])
    assert [path for path in mounted if not (HOUSE / path).exists()] == []
    provider = yaml.safe_load(text("dashboards/grafana/provisioning/dashboards/paceline.yml"))["providers"][0]
    assert provider["options"]["path"] == mounted["./dashboards/grafana/boards"]
    home = Path(grafana_settings()["dashboards"]["default_home_dashboard_path"])
    assert str(home.parent) == mounted["./dashboards/grafana/boards"]
    assert (HOUSE / "dashboards/grafana/boards" / home.name).is_file()
    (source,) = yaml.safe_load(text("dashboards/grafana/provisioning/datasources/paceline.yml"))["datasources"]
    assert (source["uid"], source["url"]) == ("paceline-prometheus", "http://prometheus:9090")


def test_nobody_can_change_grafana() -> None:
    given = grafana_settings()
    assert dict(given["auth.anonymous"]) == {"enabled": "true", "org_role": "Viewer"}
    assert dict(given["auth.basic"]) == {"enabled": "false"}
    assert given["security"]["disable_initial_admin_creation"] == "true"


def grafana_settings() -> ConfigParser:
    read = ConfigParser()
    read.read_string(text("dashboards/grafana/grafana.ini"))
    return read
