"""Watches the live page of a running demo, and takes pictures of it once the page has a story to tell.

    make demo ARGS="--keep-running"        # prints the address of its live page
    python -m paceline.benchmarks.window_pictures http://127.0.0.1:PORT/ --out pictures

It needs Playwright and a Chromium: `pip install playwright`, `apt-get install chromium`. The story: drafts went live
and accept length climbed, the traffic turned, accept length fell, a draft was refused, and a later one brought it back.
When the time is up before all of that was seen, the pictures show what there is, and the exit code is 1 with what was
missing. So it is when the page has an error, asks another host, or a request of it fails.
"""

import argparse
import json
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

WIDTH_PX = 1100
SPAN_S = 900
LOOK_EVERY_S = 5.0
#: From the end of the story to the pictures: so long it is seen to stay.
STAYS_S = 30.0
#: Accept length is back when it is so much of what it was before the traffic turned, and has fallen when it is less.
BACK_SHARE = 0.9
FALLEN_SHARE = 0.8
#: Scheme of colours -> the file of its picture.
PICTURES = {"light": "window.png", "dark": "window-dark.png"}


def missing(panel: Mapping[str, Any]) -> list[str]:
    """Parts of the story that /api/accept.json, `panel`, does not show yet; empty when all is told."""
    turn = turned_at(panel)
    live = [mark["at"] for mark in panel["marks"] if mark["kind"] == "swap"]
    known = [(at, value) for at, value in zip(panel["times"], panel["pooled"], strict=True) if value is not None]
    before = [value for at, value in known if turn is None or at < turn]
    later = [value for at, value in known if turn is not None and at >= turn]
    best = max(before, default=0.0)
    parts = {
        "two drafts that went live before the traffic turned": sum(turn is None or at < turn for at in live) >= 2,
        "a draft that was refused": any(mark["kind"] == "refused" for mark in panel["marks"]),
        "traffic that turned": turn is not None,
        "accept length that fell at the turn": bool(later) and min(later) < FALLEN_SHARE * best,
        "a draft that went live later": any(turn is not None and at > turn for at in live),
        "accept length that is back": bool(later) and later[-1] >= BACK_SHARE * best,
    }
    return [part for part, is_shown in parts.items() if not is_shown]


def turned_at(panel: Mapping[str, Any]) -> float | None:
    """When a label was served for the first time that none of the first requests had; None while there is none."""
    lines: Sequence[Mapping[str, Any]] = panel["labels"]
    served = [
        (at, {line["label"] for line in lines if line["values"][index] is not None})
        for index, at in enumerate(panel["times"])
    ]
    named = [(at, labels) for at, labels in served if labels]
    return next((at for at, labels in named if labels - named[0][1]), None)


def watch(read: Callable[[], Mapping[str, Any] | None], limit_s: float, pause: Callable[[float], object]) -> list[str]:
    """Read the panel until it tells the story or `limit_s` is over; what was missing at the last look.

    `read` gives None while there is no panel yet; `pause` is called with the seconds between two looks.
    """
    lacking = ["a page that answers"]
    for _ in range(max(1, round(limit_s / LOOK_EVERY_S))):
        panel = read()
        if panel is not None:
            lacking = missing(panel)
            if not lacking:
                break
        pause(LOOK_EVERY_S)
    return lacking


def accept_panel(url: str) -> Mapping[str, Any] | None:
    """The panel of the page at `url`; None while the page, or the board, does not answer."""
    try:
        found = json.loads(urllib.request.urlopen(f"{url}api/accept.json?span={SPAN_S}", timeout=10.0).read())
    except (urllib.error.URLError, OSError):
        return None
    return found if "marks" in found else None


def photograph(browser: Any, url: str, scheme: str, out: Path) -> list[str]:
    """Everything down to the end of the lane of drafts; what is wrong with the page, each in one line."""
    faults: list[str] = []
    context = browser.new_context(viewport={"width": WIDTH_PX, "height": 900}, color_scheme=scheme)
    tab = context.new_page()
    tab.on("pageerror", lambda error: faults.append(f"script: {error}"))
    tab.on("request", lambda asked: None if asked.url.startswith(url) else faults.append(f"asks {asked.url}"))
    tab.on("response", lambda answer: faults.append(f"{answer.status} {answer.url}") if answer.status >= 400 else None)
    tab.goto(f"{url}?span={SPAN_S}")
    tab.wait_for_selector("#lane button")
    tab.wait_for_timeout(1_500)
    lane = tab.locator("#lane").bounding_box()
    clip = {"x": 0, "y": 0, "width": WIDTH_PX, "height": int(lane["y"] + lane["height"]) + 20}
    tab.screenshot(path=out, full_page=True, clip=clip)
    context.close()
    return [f"{out.name}: {fault}" for fault in faults]


def main() -> None:
    """Exit code 1 when a part of the story is missing or the page has a fault."""
    parser = argparse.ArgumentParser(
        prog="python -m paceline.benchmarks.window_pictures",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("url", help="of the live page, as the demo prints it")
    parser.add_argument("--out", type=Path, default=Path("pictures"))
    parser.add_argument("--limit-s", type=float, default=1200.0, help="how long to watch for the whole story")
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    given = parser.parse_args()
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - --help works without it

    url = given.url.rstrip("/") + "/"
    lacking = [f"missing: {part}" for part in watch(lambda: accept_panel(url), given.limit_s, time.sleep)]
    if not lacking:
        time.sleep(STAYS_S)
    given.out.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=given.chromium, args=["--no-sandbox"])
        shots = [photograph(browser, url, scheme, given.out / name) for scheme, name in PICTURES.items()]
    faults = [*lacking, *(fault for shot in shots for fault in shot)]
    print("\n".join(faults) or "the page tells the whole story, and nothing of it failed")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
