"""Which queries of the dashboards a Prometheus has no data for, without one; tests/window has a real one."""

import json
from pathlib import Path

from paceline.benchmarks.dashboard_queries import queries, unanswered


def test_queries_are_those_of_panels_and_annotations_but_sglangs_own(tmp_path: Path) -> None:
    panels = [
        {"title": "Speed", "targets": [{"expr": 'a{speculator=~"$speculator"}'}, {"expr": "sglang:tokens"}]},
        {"title": "Empty", "targets": []},
    ]
    board = {"panels": panels, "annotations": {"list": [{"name": "Swaps", "expr": "changes(b[5m])"}]}}
    (tmp_path / "faster.json").write_text(json.dumps(board))
    assert queries(tmp_path) == {'a{speculator=~".*"}': "faster: Speed", "changes(b[5m])": "faster: Swaps"}


def test_what_is_answered_later_is_answered() -> None:
    looks: list[str] = []
    pauses: list[float] = []

    def has_data(query: str) -> bool:
        looks.append(query)
        return query == "at once" or (query == "late" and len(pauses) == 2)

    assert unanswered(["at once", "late", "never"], has_data, 15.0, pauses.append) == ["never"]
    assert pauses == [5.0, 5.0, 5.0]
    assert looks.count("at once") == 1
    assert looks.count("never") == 4
