"""What is decided before anything is started: settings, prompts and refusals."""

import dataclasses
import io
from pathlib import Path
from types import SimpleNamespace

import pytest
from paceline.buffer.errors import ConfigError, PacelineError
from paceline.demo import speed
from paceline.demo.report import Run
from paceline.demo.run import DemoOptions, run_demo
from paceline.rig.deployment import CONTEXT_TOKENS, LocalDeployment
from paceline.rig.models.target import TargetModel
from rich.console import Console

PLACE = LocalDeployment(Path("/data/runs/1"), 7001, 7002)
TARGET = TargetModel(Path("/data/targets/k"), "k", {}, 1)


def options(tmp_path: Path, **changes: object) -> DemoOptions:
    fields = {"requests": 8, "concurrency": 1, "max_tokens": 8, "prompts": None, "keep_running": False, "json": None}
    return DemoOptions(**(fields | {"data_dir": tmp_path / "data"} | changes))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"max_tokens": CONTEXT_TOKENS}, f"--max-tokens: got {CONTEXT_TOKENS}, expected"),
        ({"json": Path("/nowhere/at/all.json")}, "--json /nowhere/at/all.json: got a folder that does not exist"),
        ({"json": Path("/report.png")}, "--json /report.png: got the name of a picture"),
        ({"prompts": Path("/nowhere.jsonl")}, "--prompts /nowhere.jsonl: No such file or directory; expected"),
    ],
)
def test_bad_options_are_refused_before_anything_is_made(tmp_path: Path, changes: dict, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        run_demo(options(tmp_path, **changes))
    assert list(tmp_path.iterdir()) == []


def test_the_command_line_prints_the_faults_of_a_run(monkeypatch, tmp_path: Path) -> None:
    from paceline.cli import app
    from paceline.demo import run as module
    from typer.testing import CliRunner

    broken = object()
    monkeypatch.setattr(module, "run_demo", lambda _options: broken)
    monkeypatch.setattr("paceline.demo.report.faults", lambda run: ["3 of 8 requests failed"] if run is broken else [])
    done = CliRunner().invoke(app, ["demo", "--data-dir", str(tmp_path)])
    assert (done.exit_code, done.stderr) == (1, "paceline: 3 of 8 requests failed\n")
    monkeypatch.setattr(module, "run_demo", lambda _options: None)
    assert CliRunner().invoke(app, ["demo", "--data-dir", str(tmp_path)]).exit_code == 0


@pytest.mark.parametrize(("given", "seed", "skips"), [((), 0, False), (("--seed", "7", "--no-speed"), 7, True)])
def test_the_command_line_passes_seed_and_what_to_leave_out(monkeypatch, tmp_path: Path, given, seed, skips) -> None:
    from paceline.cli import app
    from paceline.demo import run as module
    from typer.testing import CliRunner

    asked = []
    monkeypatch.setattr(module, "run_demo", asked.append)
    monkeypatch.setattr("paceline.demo.report.faults", lambda _run: [])
    assert CliRunner().invoke(app, ["demo", "--data-dir", str(tmp_path), *given]).exit_code == 0
    assert [(each.seed, each.skips_speed) for each in asked] == [(seed, skips)]


@pytest.mark.parametrize(
    ("part", "fault"),
    [
        ("running_arms", PacelineError("SGLang server ended while starting, code 137")),
        ("slower", OSError("No space left on device")),
    ],
)
def test_servers_that_do_not_start_at_the_end_are_told_of_and_cost_no_report(
    tmp_path: Path, monkeypatch, part, fault
) -> None:
    def fails(*_: object) -> None:
        raise fault

    monkeypatch.setattr(speed, "slower", lambda target: target)
    monkeypatch.setattr(speed, part, fails)
    console = Console(file=io.StringIO(), width=120)
    speed.print_speed(console, TARGET, (tmp_path, tmp_path), prompts=[], max_tokens=8, local=PLACE)
    told = console.file.getvalue().splitlines()[-1]
    assert told == f"tokens per second were not compared: {fault}"


@pytest.mark.parametrize("waits", [True, False])
def test_results_are_shown_and_written_before_it_waits_and_without_waiting_once_the_services_ended(
    monkeypatch, tmp_path: Path, waits: bool
) -> None:
    from paceline.demo import run as module

    said: list[str] = []

    def started(stack, *_: object, **__: object) -> SimpleNamespace:
        stack.callback(said.append, "services ended")
        return SimpleNamespace(reader=SimpleNamespace(learnt_weights=lambda: None))

    async def served(*_: object, **__: object) -> list[object]:
        return []

    fields = {field.name: None for field in dataclasses.fields(Run)}
    monkeypatch.setattr(module, "_start", started)
    monkeypatch.setattr(module, "serve_traffic", served)
    monkeypatch.setattr(module, "settle", lambda *_: None)
    monkeypatch.setattr(module, "measured", lambda *_, **__: Run(**fields))
    monkeypatch.setattr(module, "lossless_check", lambda *_, **__: None)
    monkeypatch.setattr(module, "ensure_random_draft", lambda *_: Path("/d"))
    for name, words in (("print_closing", "table"), ("_write", "report"), ("_wait_for_ctrl_c", "waits")):
        monkeypatch.setattr(module, name, lambda *_, words=words: said.append(words))
    asked = options(tmp_path, keep_running=waits)
    module._run(asked, Console(file=io.StringIO()), seconds={}, target=TARGET, prompts=[], local=PLACE)
    ended = ["services ended"]
    assert said == (["table", "report", "waits", *ended] if waits else [*ended, "table", "report"])
