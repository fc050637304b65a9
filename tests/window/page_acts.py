"""What an operator does on the page."""

from typing import Any

TOKEN = "the operator's own token"


def fill_act(page: Any, number: int, token: str = TOKEN, why: str = "worse on prose") -> None:
    """Open the form and fill it in."""
    page.click("#acts summary")
    page.fill("#act-token", token)
    page.fill("#act-why", why)
    page.fill("#act-number", str(number))
