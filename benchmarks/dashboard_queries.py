"""Asks a Prometheus every query of every dashboard, and names those that it has no data for.

    make demo ARGS="--keep-running"                        # says where its Redis is
    paceline exporter --redis-url redis://127.0.0.1:PORT/0
    prometheus --config.file=FILE                          # dashboards/prometheus/prometheus.yml, its targets changed
    python -m paceline.benchmarks.dashboard_queries http://127.0.0.1:9090

Exit code 1 when a query has no data within the limit. SGLang's own metrics are left out: it serves them when it is
started with --enable-metrics.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import httpx

BOARDS = Path(__file__).resolve().parents[1] / "dashboards/grafana/boards"
LOOK_EVERY_S = 5.0


def queries(boards: Path = BOARDS) -> dict[str, str]:
    """Query -> where it is, of every panel and annotation in `boards`, with all speculators chosen."""
    found: dict[str, str] = {}
    for path in sorted(boards.glob("*.json")):
        board = json.loads(path.read_text(encoding="utf-8"))
        asked = [(target["expr"], panel["title"]) for panel in board["panels"] for target in panel["targets"]]
        asked += [(mark["expr"], mark["name"]) for mark in board["annotations"].get("list", [])]
        found |= {text.replace("$speculator", ".*"): f"{path.stem}: {title}" for text, title in asked}
    return {text: place for text, place in found.items() if "sglang:" not in text}


def unanswered(
    asked: Iterable[str], has_data: Callable[[str], bool], limit_s: float, pause: Callable[[float], object]
) -> list[str]:
    """Those without data so far, after looking again and again for `limit_s`, with a pause between two looks."""
    left = list(asked)
    for look in range(1 + int(limit_s / LOOK_EVERY_S)):
        if look:
            pause(LOOK_EVERY_S)
        left = [query for query in left if not has_data(query)]
        if not left:
            break
    return left


def has_data(url: str, query: str) -> bool:
    """Whether the Prometheus at `url` has a sample for it now. SystemExit when it does not answer."""
    try:
        reply = httpx.get(f"{url}/api/v1/query", params={"query": query}, timeout=10.0, trust_env=False)
        return bool(reply.raise_for_status().json()["data"]["result"])
    except httpx.HTTPError as error:
        raise SystemExit(f"{url}: got {error!r}, expected a Prometheus that answers {query!r}") from error


def main() -> None:
    """Exit code 1 when a query has no data."""
    parser = argparse.ArgumentParser(
        prog="python -m paceline.benchmarks.dashboard_queries",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("url", nargs="?", default="http://127.0.0.1:9090", help="of the Prometheus")
    parser.add_argument("--limit-s", type=float, default=60.0, help="how long to look for data")
    given = parser.parse_args()
    asked = queries()
    left = unanswered(asked, lambda query: has_data(given.url.rstrip("/"), query), given.limit_s, time.sleep)
    for query in left:
        print(f"no data  {asked[query]}\n         {query}")
    print(f"{len(asked) - len(left)} of {len(asked)} queries have data")
    sys.exit(1 if left else 0)


if __name__ == "__main__":
    main()
