"""The dashboards that Grafana reads: what the library makes, and nothing that looks well where nobody tells."""

import json
import re
from pathlib import Path

import pytest
import yaml
from paceline.dashboards.exporter.families import FAMILIES, Kind
from paceline.dashboards.grafana.files import DASHBOARDS, FOLDER, as_text, write
from paceline.dashboards.grafana.panels import of

ROOT = Path(__file__).resolve().parents[2]
BOARDS = {path.name: json.loads(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*"))}
PANELS = [(name, panel) for name, board in BOARDS.items() for panel in board["panels"]]


def expressions(board: dict) -> list[str]:
    """Of panels and annotations."""
    queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    return queries + [mark["expr"] for mark in board["annotations"].get("list", [])]


def names_in(expression: str) -> set[str]:
    """Metrics and recorded figures that an expression names."""
    return set(re.findall(r"\b(?:paceline|sglang)[_:][a-zA-Z0-9_:]*", re.sub(r'"[^"]*"', "", expression)))


def test_what_is_committed_is_what_the_library_makes(tmp_path: Path) -> None:
    assert set(BOARDS) == set(DASHBOARDS)
    for name in DASHBOARDS:
        assert (FOLDER / name).read_text(encoding="utf-8") == as_text(name), "run python -m paceline.dashboards.grafana"
    write(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == set(DASHBOARDS)


@pytest.mark.parametrize(("name", "panel"), PANELS, ids=[f"{name} {panel['title']}" for name, panel in PANELS])
def test_a_figure_that_nobody_tells_is_a_word_without_a_colour(name: str, panel: dict) -> None:
    if panel["type"] == "stat":
        defaults = panel["fieldConfig"]["defaults"]
        assert len(defaults["noValue"]) > 10
        assert defaults["thresholds"]["steps"][0] == {"color": "text", "value": None}
    assert panel["description"]
    assert panel["title"]


@pytest.mark.parametrize("name", DASHBOARDS)
def test_every_query_names_what_there_is(name: str) -> None:
    recorded = yaml.safe_load((ROOT / "dashboards/prometheus/recording.yml").read_text(encoding="utf-8"))["groups"]
    known = {rule["record"] for group in recorded for rule in group["rules"]}
    for family in FAMILIES.values():
        ends = ("_bucket", "_sum", "_count") if family.kind is Kind.HISTOGRAM else ("",)
        known |= {family.name + end for end in ends}
    ours = {found for text in expressions(BOARDS[name]) for found in names_in(text) if found.startswith("paceline")}
    assert ours
    assert ours - known == set()


def test_metrics_of_sglang_are_those_of_the_supported_release() -> None:
    from importlib.util import find_spec

    engine = find_spec("sglang")
    if engine is None or engine.origin is None:
        pytest.skip("SGLang is not installed")
    source = "".join(
        path.read_text(encoding="utf-8") for path in Path(engine.origin).parent.glob("srt/**/metrics*/*.py")
    )
    source += "".join(
        path.read_text(encoding="utf-8") for path in Path(engine.origin).parent.glob("srt/**/*metrics*.py")
    )
    named = {found for board in BOARDS.values() for text in expressions(board) for found in names_in(text)}
    engines = {found.removesuffix("_bucket") for found in named if found.startswith("sglang")}
    assert engines
    assert [found for found in engines if f'"{found}"' not in source] == []


def test_an_expression_asks_for_the_chosen_speculators() -> None:
    assert of('a{S} / b{S,x="1"}') == 'a{speculator=~"$speculator"} / b{speculator=~"$speculator",x="1"}'
    for board in BOARDS.values():
        for text in expressions(board):
            ours = re.findall(r"\bpaceline[_:][a-zA-Z0-9_:]*(?!\w)(.)", text)
            assert set(ours) == {"{"} or "sglang" in text
