"""Every benchmark runs as a module, explains itself, and knows the options its documents show."""

import re
import shlex
import sys
from pathlib import Path

import pytest
from paceline.benchmarks import (
    capture,
    compatibility,
    growth,
    hooks,
    outage,
    release,
    rollouts,
    serving,
    soak,
    swap,
    width,
)
from paceline.benchmarks.gpu import costs, run, shift, trim
from paceline.benchmarks.learning import bench, choice, choice_live, ranks, record

HOUSE = Path(__file__).resolve().parents[2]
RESULTS = HOUSE / "benchmarks" / "results"  # of runs on this machine, other revisions among them
PROGRAMS = {
    program.__name__: program
    for program in (
        capture, compatibility, growth, hooks, outage, release, rollouts, serving, soak, swap, width,
        costs, run, shift, trim,
        bench, choice, choice_live, ranks, record,
    )
}  # fmt: skip
DOCUMENTS = [HOUSE / "benchmarks" / "README.md", *sorted((HOUSE / "docs").glob("*.md")), HOUSE / "README.md"]
COMMAND = re.compile(r"-m (paceline\.benchmarks\.[\w.]*\w)([^`#|\n]*)")
TARGETS = {
    "bench": ("capture", "swap"),
    "bench-gpu": ("gpu.costs",),
    "bench-growth": ("growth",),
    "bench-hooks": ("hooks",),
    "bench-learning": ("learning.bench",),
    "bench-outage": ("outage",),
    "bench-rollouts": ("rollouts",),
    "bench-serving": ("serving",),
    "bench-soak": ("soak",),
    "bench-width": ("width",),
}


def help_of(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as ended:
        PROGRAMS[name].main()
    assert ended.value.code == 0
    return capsys.readouterr().out


def options(text: str) -> set[str]:
    """Long options named in `text`."""
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text))


def documented() -> list[tuple[str, str]]:
    """Program and arguments of every command that a document or a program's own docstring shows."""
    # Commands of settled questions run at the commit that the document names.
    texts = [path.read_text(encoding="utf-8").partition("## Settled questions")[0] for path in DOCUMENTS]
    texts += [str(program.__doc__) for program in PROGRAMS.values()]
    found = [(name, arguments.split(" -- ")[0]) for text in texts for name, arguments in COMMAND.findall(text)]
    makes = [match for text in texts for match in re.findall(r'make (bench[\w-]*) ARGS="([^"]*)"', text)]
    return found + [(f"paceline.benchmarks.{name}", args) for target, args in makes for name in TARGETS[target]]


def test_every_benchmark_that_can_be_run_is_one_of_these() -> None:
    found = [
        ".".join(("paceline", *path.relative_to(HOUSE).with_suffix("").parts))
        for path in (HOUSE / "benchmarks").rglob("*.py")
        if RESULTS not in path.parents and 'if __name__ == "__main__"' in path.read_text(encoding="utf-8")
    ]
    assert sorted(found) == sorted(PROGRAMS)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_benchmark_explains_itself_and_every_option(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    said = help_of(name, monkeypatch, capsys)
    assert said.split()[:4] == ["usage:", "python", "-m", name]
    assert str(PROGRAMS[name].__doc__).strip() in said
    assert list(tmp_path.iterdir()) == []


def test_documented_commands_exist_and_know_their_options(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = documented()
    assert {name for name, _ in commands} == set(PROGRAMS)
    helps = {name: options(help_of(name, monkeypatch, capsys)) for name in PROGRAMS}
    wrong = [f"{name} {' '.join(shlex.split(args))}" for name, args in commands if options(args) - helps[name]]
    assert wrong == []
