"""Documents name what exists: files and functions, commands and their options, targets, keys, reasons and messages.

`tests/test_site.py` holds their links, `tests/buffer/settings/test_listing.py` the names of settings.
"""

import ast
import re
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path

import paceline.cli
import pytest
import typer
import yaml
from paceline.buffer.keys import ALL_KEYS
from paceline.dashboards.exporter.families import FAMILIES
from paceline.learner.claim.intake import Outcome
from paceline.policies.guard import AlarmName
from paceline.serving.wire.counts import DropReason, SkipReason

ROOT = Path(__file__).resolve().parents[1]
#: What benchmarks write, which may be checkouts of other revisions; git ignores it.
RESULTS = ROOT / "benchmarks" / "results"
PRODUCT = ("buffer", "policies", "serving", "learner", "dashboards")
COUNTED = (DropReason, SkipReason, Outcome, AlarmName)
#: What stands for a value in a quoted message.
VALUE = r"\[?\.\.\.\]?|\bN\b|\bM\b|\bREPLICA\b"


def documents() -> dict[str, str]:
    """Path -> text of every document; what has changed may name what is gone."""
    found = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").rglob("*.md")]
    kept = [path for path in found if RESULTS not in path.parents and path.name != "CHANGELOG.md"]
    return {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in kept}


DOCUMENTS = documents()
COMMAND_LINE = typer.main.get_command(paceline.cli.app)


def code(text: str) -> Iterator[str]:
    """Lines of fenced code, continued ones joined, and inline code."""
    for block in re.findall(r"^ *```[^\n]*\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL):
        yield from block.replace("\\\n", " ").splitlines()
    yield from (re.sub(r"\s+", " ", span) for span in re.findall(r"(?<!`)`([^`]+)`(?!`)", text))


def symbols(source: str) -> set[str]:
    """Names at the top of a module, and its methods as Class.method."""
    found = set()
    for node in ast.parse(source).body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                found.add(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                found.add(name)
            case ast.ClassDef(name=name, body=body):
                found |= {name, *(f"{name}.{each.name}" for each in body if isinstance(each, ast.FunctionDef))}
    return found


def test_every_file_and_symbol_that_a_document_names_is_there() -> None:
    lost = []
    for document, text in DOCUMENTS.items():
        roots = "buffer|policies|serving|learner|dashboards|rig|demo|benchmarks|tests|docs"
        for name, symbol in re.findall(rf"`((?:{roots})/[\w/.-]+\.(?:py|lua|sh|md))(?::([\w.]+))?", text):
            file = ROOT / name
            if not file.is_file() or (symbol and symbol not in symbols(file.read_text(encoding="utf-8"))):
                lost.append(f"{document}: {name}:{symbol}")
    assert lost == []


def unknown_in(words: list[str]) -> list[str]:
    """Return the subcommand or the options of a `paceline` command line that it does not have."""
    command = COMMAND_LINE
    words = words[: words.index("--")] if "--" in words else words
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words[0]]
        words = words[1:]
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    given = {word.partition("=")[0] for word in words if re.match(r"--[a-z]", word)}
    is_lost = hasattr(command, "commands") and words and not words[0].startswith("-")
    return [words[0]] if is_lost else sorted(given - known - {"--help"})


def test_every_command_that_a_document_names_exists_with_its_options() -> None:
    said = list(messages())
    lost = {}
    for line in (line.strip() for text in DOCUMENTS.values() for line in code(text)):
        for call in re.findall(r"(?:^|[;&|(] *|/bin/)paceline ([a-z][^|;&#)]*)", line):
            unknown = unknown_in(re.sub(r"[`'\"\[\],]", " ", call).split())
            if unknown and not any(line in text for text in said):
                lost[line] = unknown
    assert lost == {}


def test_every_target_of_make_that_a_document_names_exists() -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    # A section that begins with a commit to check out names the targets of that commit.
    sections = [part for text in DOCUMENTS.values() for part in text.split("\n#") if "git checkout" not in part]
    calls = [line.strip() for section in sections for line in code(section)]
    assert {name for call in calls for name in re.findall(r"^make ([a-z-]+)", call)} - {*targets} == set()


def first_cells() -> set[str]:
    """What the first cells of all tables quote."""
    lines = [line for text in DOCUMENTS.values() for line in text.splitlines() if line.startswith("| `")]
    return {phrase for line in lines for phrase in re.findall(r"`([^`]+)`", line.split("|")[1])}


def messages() -> Iterator[str]:
    """Every string of the product's sources; values in it are NUL."""
    for path in (ROOT / "cli.py", *(file for name in PRODUCT for file in (ROOT / name).rglob("*.py"))):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.JoinedStr(values=parts):
                    yield "".join(part.value if isinstance(part, ast.Constant) else "\0" for part in parts)
                case ast.Constant(value=str(text)):
                    yield text


@pytest.mark.parametrize("reasons", COUNTED)
def test_every_reason_that_is_counted_has_a_row(reasons: type[StrEnum]) -> None:
    assert {reason.value for reason in reasons} - first_cells() == set()


def test_every_message_that_the_table_of_symptoms_quotes_is_one_of_the_product() -> None:
    said = "\n".join([*messages(), *(reason.value for reasons in COUNTED for reason in reasons)])
    cells = re.findall(r"^\| (`[^|]+) \|", DOCUMENTS["docs/troubleshooting.md"], re.MULTILINE)
    lost = []
    for phrase in re.findall(r"`([^`]+)`", " ".join(cells)):
        pieces = [re.escape(piece.strip()) for piece in re.split(VALUE, phrase) if piece.strip(" :`")]
        if not re.search(".*".join(pieces), said):
            lost.append(phrase)
    assert lost == []


def test_every_key_of_redis_has_a_row() -> None:
    assert {key.suffix for key in ALL_KEYS} - {cell.partition("<")[0] for cell in first_cells()} == set()


def test_every_metric_and_no_other_has_its_row() -> None:
    lines = [line for text in DOCUMENTS.values() for line in text.splitlines() if line.startswith("| `paceline_")]
    assert lines == [family.row() for family in FAMILIES.values()]


def test_the_runbook_of_every_alert_is_a_section_of_a_document() -> None:
    groups = yaml.safe_load((ROOT / "dashboards/prometheus/alerts.yml").read_text(encoding="utf-8"))["groups"]
    for runbook in (rule["annotations"]["runbook"] for group in groups for rule in group["rules"]):
        document, _, anchor = runbook.partition("#")
        assert re.search(rf"^#+ {anchor}$", DOCUMENTS[document], re.MULTILINE | re.IGNORECASE), runbook
