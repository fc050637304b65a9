"""Opens MLflow's own pages of what paceline keeps there, in a real browser, and makes the pictures of docs/mlflow.md.

    python -m paceline.benchmarks.mlflow_pages RUN --mlflow .venv/bin/mlflow --out docs/images

It needs Playwright and a Chromium: `pip install playwright`, `apt-get install chromium`. RUN is the folder of a demo's
run, which holds mlflow.db. Every page must show the words that belong there, and no request of it may fail: else the
exit code is 1.
"""

import argparse
import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: A page is looked at for so long until its words are there.
WAIT_MS = 60_000
START_S = 180.0
AS_MODELS = "workflowType=machine_learning"
SIZE = {"width": 1560, "height": 860}
#: Without MLflow's navigation on the left and its assistant on the right.
SHOWN = {"x": 198, "y": 0, "width": 956, "height": 860}
#: MLflow's pages ask who is logged in; a server without accounts does not know that address.
KNOWN = "/users/current"


@dataclass(frozen=True, slots=True)
class Page:
    """One page: the file of its picture, its address, and words that must be seen on it."""

    picture: str
    path: str
    words: tuple[str, ...]


@dataclass(slots=True)
class Seen:
    """What went wrong while pages were open."""

    faults: list[str] = field(default_factory=list)


@contextmanager
def mlflow_server(mlflow: Path, run: Path) -> Iterator[str]:
    """Address of a server of the run's database, which ends with the body."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    database = f"sqlite:///{(run / 'mlflow.db').absolute()}"
    argv = [str(mlflow), "server", "--backend-store-uri", database, "--host", "127.0.0.1", "--port", str(port)]
    process = subprocess.Popen([*argv, "--workers", "1"], cwd=run, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{port}"
    try:
        _until_healthy(f"{address}/health")
        yield address
    finally:
        process.terminate()
        process.wait()


def _until_healthy(url: str) -> None:
    ends = time.monotonic() + START_S
    while True:
        try:
            urllib.request.urlopen(url, timeout=5.0).read()
        except (urllib.error.URLError, OSError):
            if time.monotonic() > ends:
                raise
            time.sleep(0.5)
        else:
            return


def asked(address: str, call: str, **body: object) -> Any:
    """The answer of MLflow's REST interface."""
    data = json.dumps(body).encode() if body else None
    request = urllib.request.Request(f"{address}/api/2.0/mlflow/{call}", data)
    request.add_header("Content-Type", "application/json")
    return json.loads(urllib.request.urlopen(request, timeout=60.0).read())


def pages_of(address: str) -> list[Page]:
    """The pages of the only registered model for its live draft, and the card of the one before, which has served."""
    (model,) = asked(address, "registered-models/search?max_results=2")["registered_models"]
    name = model["name"]
    at = {alias["alias"]: alias["version"] for alias in model["aliases"]}
    versions = {n: asked(address, f"model-versions/get?name={name}&version={n}")["model_version"] for n in at.values()}
    live, before = versions[at["live"]], versions[at["previous"]]
    number, other = (_tag(version, "paceline.version") for version in (live, before))
    experiment = asked(address, f"experiments/get-by-name?experiment_name={name}")["experiment"]["experiment_id"]
    runs = f"#/experiments/{experiment}/runs"
    by_tag = "tags.`paceline.lineage` = 'true'"
    found = asked(address, "runs/search", experiment_ids=[experiment], filter=by_tag)["runs"]
    lineage = found[0]["info"]["run_id"]
    pair = json.dumps({version["version"]: version["run_id"] for version in (before, live)})
    return [
        Page(
            "mlflow-card.png",
            f"#/models/{name}/versions/{at['previous']}",
            (f"draft {other}: retired", "Judged", "Predicted", "Served"),
        ),
        Page("mlflow-drafts.png", f"#/models/{name}", (f"@ draft-{number}", "@ live")),
        Page("mlflow-run.png", f"{runs}/{live['run_id']}", (f"draft {number}", "traffic window")),
        Page("mlflow-gate.png", f"{runs}/{live['run_id']}/artifacts/gate.png", ("gate.png",)),
        Page("mlflow-gate-table.png", f"{runs}/{live['run_id']}/artifacts/gate.json", ("reference_accept_length",)),
        Page("mlflow-lineage-metrics.png", f"{runs}/{lineage}/model-metrics", ("predicted", "served_first_rounds")),
        Page(
            "mlflow-compare.png",
            f'#/compare-model-versions?name="{name}"&runs={pair}',
            (f"draft {other}", f"draft {number}", "gate_reason", "Schema"),
        ),
        Page("mlflow-lineage.png", f"{runs}/{lineage}/artifacts/lineage.png", ("lineage.png",)),
        Page("mlflow-runs.png", runs, (f"draft {number}", "lineage")),
    ]


def look(browser: Any, address: str, page: Page, out: Path) -> list[str]:
    """Open one page as a new visitor, and save its picture; what is wrong with it, each in one line."""
    seen = Seen()
    tab = browser.new_context(viewport=SIZE).new_page()
    tab.on("response", lambda answer: _note(seen, answer))
    tab.on("pageerror", lambda error: seen.faults.append(f"script: {error}"))
    joint = "&" if "?" in page.path else "?"
    tab.goto(f"{address}/{page.path}{joint}{AS_MODELS}")
    for words in page.words:
        try:
            tab.get_by_text(words).first.wait_for(timeout=WAIT_MS)
        except Exception as error:  # noqa: BLE001 - one page that lacks a word must not hide what the others lack
            seen.faults.append(f"no {words!r} to be seen: {str(error).splitlines()[0]}")
    tab.wait_for_timeout(2_000)
    paths = tab.get_by_text("Path: file:")  # of the machine that made the run
    tab.screenshot(path=out / page.picture, clip=SHOWN, mask=[paths], mask_color="white")
    tab.context.close()
    return [f"{page.picture}: {fault}" for fault in seen.faults]


def main() -> None:
    """Exit code 1 when a page lacks a word, or a request of one failed."""
    parser = argparse.ArgumentParser(
        prog="python -m paceline.benchmarks.mlflow_pages",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run", type=Path)
    parser.add_argument("--mlflow", type=Path, default=Path(".venv/bin/mlflow"))
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    given = parser.parse_args()
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - --help works without it

    given.out.mkdir(parents=True, exist_ok=True)
    with mlflow_server(given.mlflow.absolute(), given.run) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=given.chromium, args=["--no-sandbox"])
        faults = [fault for page in pages_of(address) for fault in look(browser, address, page, given.out)]
    print("\n".join(faults) or "every page shows what it should, and no request failed")
    sys.exit(1 if faults else 0)


def _note(seen: Seen, answer: Any) -> None:
    if answer.status >= 400 and not answer.url.endswith(KNOWN):
        seen.faults.append(f"{answer.status} {answer.url}")


def _tag(version: Any, name: str) -> str:
    return next(str(tag["value"]) for tag in version["tags"] if tag["key"] == name)


if __name__ == "__main__":
    main()
