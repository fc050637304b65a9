"""Every benchmark runs as a module, explains itself, and knows the options its documents show."""

import importlib
import re
import shlex
import sys
from pathlib import Path

import pytest

HOUSE = Path(__file__).resolve().parents[2]
MODULES = sorted(
    ".".join(("paceline", *path.relative_to(HOUSE).with_suffix("").parts))
    for path in (HOUSE / "benchmarks").rglob("*.py")
    if 'if __name__ == "__main__"' in path.read_text(encoding="utf-8")
)
DOCUMENTS = [HOUSE / "benchmarks" / "README.md", *sorted((HOUSE / "docs").glob("*.md")), HOUSE / "README.md"]
COMMAND = re.compile(r"python -m (paceline\.benchmarks\.[\w.]*\w)([^`#|\n]*)")
TARGETS = {"bench": ("capture", "swap"), "bench-calibration": ("calibration",), "bench-learning": ("learning.bench",)}


def help_of(module: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    monkeypatch.setattr(sys, "argv", [module, "--help"])
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(module).main()
    assert ended.value.code == 0
    return capsys.readouterr().out


def options(text: str) -> set[str]:
    """Long options named in `text`."""
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text))


def documented() -> list[tuple[str, str]]:
    """Module and arguments of every command that a document or a module's own docstring shows."""
    texts = [path.read_text(encoding="utf-8") for path in DOCUMENTS]
    texts += [str(importlib.import_module(module).__doc__) for module in MODULES]
    found = [(module, arguments.split(" -- ")[0]) for text in texts for module, arguments in COMMAND.findall(text)]
    makes = [match for text in texts for match in re.findall(r'make (bench[\w-]*) ARGS="([^"]*)"', text)]
    return found + [(f"paceline.benchmarks.{name}", args) for target, args in makes for name in TARGETS[target]]


@pytest.mark.parametrize("module", MODULES)
def test_a_benchmark_explains_itself_and_every_option(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    said = help_of(module, monkeypatch, capsys)
    assert said.split()[:4] == ["usage:", "python", "-m", module]
    assert str(importlib.import_module(module).__doc__).strip() in said
    assert list(tmp_path.iterdir()) == []


def test_documented_commands_exist_and_know_their_options(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = documented()
    assert {module for module, _ in commands} == set(MODULES)
    helps = {module: options(help_of(module, monkeypatch, capsys)) for module in MODULES}
    wrong = [f"{module} {' '.join(shlex.split(args))}" for module, args in commands if options(args) - helps[module]]
    assert wrong == []
