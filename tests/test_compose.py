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
from paceline.serving.supported_release import SUPPORTED

ROOT = Path(__file__).resolve().parents[1]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def options(words: list[str]) -> set[str]:
    """Names of the long options among the words of a command."""
    return {word.split("=")[0] for word in words if word.startswith("--") and word != "--"}


def option_names(command: Any) -> set[str]:
    """Long options that a click command knows."""
    return {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}


def strings(package: str, *path: str) -> set[str]:
    """Every string in a source file of an installed package, which is not imported: engines take seconds to load."""
    (folder,) = importlib.util.find_spec(package).submodule_search_locations
    source = Path(folder, *path).read_text(encoding="utf-8")
    return {str(node.value) for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant)}


def printed(code: str, **env: str) -> str:
    """Output of a program in a fresh interpreter; `env` is all of its environment where it is given."""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=env or None, capture_output=True, text=True, check=False, cwd=ROOT / "tests")
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_no_port_is_published_beyond_this_machine() -> None:
    ports = [str(port) for service in SERVICES.values() for port in service.get("ports", [])]
    assert ports
    assert [port for port in ports if not port.startswith("127.0.0.1:")] == []


def test_every_secret_comes_from_the_environment_and_is_asked_for_when_it_is_missing() -> None:
    source = text("docker-compose.yml")
    for name in ("REDIS_PASSWORD", "POSTGRES_PASSWORD"):
        assert f"${{{name}:?" in source, name
    assert re.findall(r"\$\{\w*(?:PASSWORD|SECRET|TOKEN):?-[^}]*\}", source) == []  # a default
    assert re.findall(r"(?:PASSWORD|AUTH|requirepass)\w*:? +(?!\$\{)[^\s.]+$", source, re.MULTILINE) == []
    assert re.findall(r"://\w*:(?!\$\{)[^@\s/]+@", source) == []


@pytest.mark.parametrize("service", ["sglang", "learner", "exporter", "window"])
def test_paceline_commands_and_their_options_exist(service: str) -> None:
    program, command, *words = SERVICES[service]["command"]
    assert program == "paceline"
    known = typer.main.get_command(paceline.cli.app).commands
    before_engine = words[: words.index("--")] if "--" in words else words
    assert options(before_engine) <= option_names(known[command])


def test_commands_of_others_are_started_with_options_they_know() -> None:
    from celery.bin.celery import celery

    engine = SERVICES["sglang"]["command"]
    fields = strings("sglang", "srt", "arg_groups", "field_order.py")
    assert options(engine[engine.index("--") + 1 :]) <= {"--" + field.replace("_", "-") for field in fields}
    mlflow = SERVICES["mlflow"]["command"]
    assert mlflow[:2] == ["mlflow", "server"]
    assert options(mlflow) <= strings("mlflow", "cli", "__init__.py") | strings("mlflow", "utils", "cli_args.py")
    program, *words = SERVICES["beat"]["command"]
    assert program == "celery"
    assert options(words) <= option_names(celery) | option_names(celery.commands["beat"])


def test_beat_starts_with_the_variables_it_is_given() -> None:
    module = SERVICES["beat"]["command"][1].removeprefix("--app=")
    given = SERVICES["beat"]["environment"].items()
    env = {name: re.sub(r"\$\{\w+(?::[-?][^}]*)?\}", "given", value) for name, value in given}
    code = f"from celery.app.utils import find_app; print(*find_app({module!r}).conf.beat_schedule)"
    assert printed(code, **env) == "learn\n"


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


def test_the_serving_image_is_not_built_when_the_plugin_would_not_capture() -> None:
    (code,) = re.findall(r'^RUN python3 -c "(.*)"', text("serving/Dockerfile").split("\nWORKDIR /\n")[1], re.MULTILINE)
    assert printed(code) == f"SGLang {version('sglang')}\n"


def test_the_images_are_written_as_hadolint_wants_them() -> None:
    command = [Path(sys.executable).with_name("hadolint"), ROOT / "serving/Dockerfile", ROOT / "learner/Dockerfile"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
    done = subprocess.run([command[0], "-"], input="FROM debian\n", capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split()[1]) == (1, "DL3006")


def test_redis_never_evicts_and_survives_a_restart() -> None:
    lines = COMPOSE["configs"]["redis"]["content"].splitlines()
    assert {"appendonly yes", "maxmemory-policy noeviction"} <= set(lines)


def test_every_supported_release_can_be_set_up_and_images_have_the_tested_versions() -> None:
    found = {path.name for path in (ROOT / "serving/cpu_host").glob("requirements-*.txt")}
    assert found == {f"requirements-{release}.txt" for release in SUPPORTED}
    assert f"\nDEFAULT_SGLANG := {SUPPORTED[0]}\n" in text("Makefile")
    assert f"FROM lmsysorg/sglang:v{SUPPORTED[0]}\n" in text("serving/Dockerfile")
    (torch,) = re.findall(r"^TORCH := (torch==\S+)$", text("Makefile"), re.MULTILINE)
    needs = text(f"serving/cpu_host/requirements-{SUPPORTED[0]}.txt")
    (transformers,) = re.findall(r"^transformers==\S+$", needs, re.MULTILINE)
    assert f" {torch} {transformers} " in text("learner/Dockerfile")


def test_prometheus_scrapes_what_listens_and_reads_every_rule() -> None:
    config = yaml.safe_load(text("dashboards/prometheus/prometheus.yml"))
    exporter, engine = config["scrape_configs"]
    ports = {
        name: word.partition("=")[2]
        for name in ("exporter", "sglang")
        for word in SERVICES[name]["command"]
        if word.startswith("--port=")
    }
    assert (exporter["job_name"], engine["job_name"]) == ("paceline", "sglang")
    assert exporter["static_configs"] == [{"targets": [f"exporter:{ports['exporter']}"]}]
    assert engine["dns_sd_configs"] == [{"names": ["sglang"], "type": "A", "port": int(ports["sglang"])}]
    files = {path.name for path in (ROOT / "dashboards/prometheus").iterdir()}
    assert {*config["rule_files"]} == files - {"prometheus.yml"}


def test_grafana_shows_what_is_mounted_and_nobody_can_change_it() -> None:
    mounted = dict(volume.split(":")[:2] for volume in SERVICES["grafana"]["volumes"])
    assert [path for path in mounted if not (ROOT / path).exists()] == []
    provider = yaml.safe_load(text("dashboards/grafana/provisioning/dashboards/paceline.yml"))["providers"][0]
    settings = ConfigParser()
    settings.read_string(text("dashboards/grafana/grafana.ini"))
    home = Path(settings["dashboards"]["default_home_dashboard_path"])
    assert provider["options"]["path"] == mounted["./dashboards/grafana/boards"] == str(home.parent)
    assert (ROOT / "dashboards/grafana/boards" / home.name).is_file()
    (source,) = yaml.safe_load(text("dashboards/grafana/provisioning/datasources/paceline.yml"))["datasources"]
    assert (source["uid"], source["url"]) == ("paceline-prometheus", "http://prometheus:9090")
    assert dict(settings["auth.anonymous"]) == {"enabled": "true", "org_role": "Viewer"}
    assert dict(settings["auth.basic"]) == {"enabled": "false"}
    assert settings["security"]["disable_initial_admin_creation"] == "true"
