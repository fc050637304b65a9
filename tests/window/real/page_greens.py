"""What of a page is green, which is the colour of all that is well."""

from typing import Any

_VISIBLE_IN_OK = """() => {
  const probe = document.body.appendChild(document.createElement('i'));
  probe.style.color = 'var(--ok)';
  const ok = getComputedStyle(probe).color;
  probe.remove();
  const isGreen = (one) => {
    const own = getComputedStyle(one), before = getComputedStyle(one, '::before');
    return own.color === ok || own.backgroundColor === ok || (before.content !== 'none' && before.color === ok);
  };
  const shown = [...document.querySelectorAll('body *')].filter((one) => one.checkVisibility());
  return shown.filter(isGreen).map((one) => one.textContent.trim().slice(0, 80));
}"""


def greens(page: Any) -> list[str]:
    """Texts of the visible elements that have the colour of what is well."""
    found: list[str] = page.evaluate(_VISIBLE_IN_OK)
    return found
