"""Takes the documents' picture of the live page: `python tests/window/screenshot.py URL docs/window.png`.

URL is that of a running `paceline window`, as the demo prints it; `story` serves the tests' own story instead. Needs
Playwright (the extra `window-tests`) and chromium.
"""

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from live_page import served
from paceline.dashboards.window.acts import Acts
from paceline.dashboards.window.app import make_app
from paceline.dashboards.window.readings import Readings
from window_story import code_then_prose

#: What fits into the picture: the answers, the chart and the lane.
WIDTH = 1100


@contextmanager
def address(named: str) -> Iterator[str]:
    """Of the page to take."""
    if named != "story":
        yield named
        return
    story = code_then_prose()
    readings = Readings(lambda: ["demo"], lambda _: story.board)
    with served(make_app(readings, Acts(_nobody, _nobody, _nobody)), readings) as url:
        yield f"{url}/?span=900"


def take(page: Page, url: str, out: Path) -> None:
    """Everything down to the end of the lane."""
    page.goto(url)
    page.wait_for_selector("#lane button")
    page.wait_for_timeout(1000)
    lane = page.locator("#lane").bounding_box()
    assert lane is not None
    height = int(lane["y"] + lane["height"]) + 20
    page.screenshot(path=out, full_page=True, clip={"x": 0, "y": 0, "width": WIDTH, "height": height})


def _nobody(*_: object) -> int | None:
    raise AssertionError


def main() -> None:
    """Take it."""
    named, out = sys.argv[1], Path(sys.argv[2])
    with address(named) as url, sync_playwright() as started:
        browser = started.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        take(browser.new_page(viewport={"width": WIDTH, "height": 900}), url, out)
        browser.close()


if __name__ == "__main__":
    main()
