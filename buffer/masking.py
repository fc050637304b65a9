"""How a URL that may hold a password is shown."""

from urllib.parse import urlsplit


def masked(url: str) -> str:
    """`url` with its password, and whatever follows a question mark, replaced by ``***``.

    Of a url that cannot be told apart for certain nothing but the scheme is left: an unquoted ``/`` in a password
    would else move its rest to the host.
    """
    scheme, separator, _ = url.partition("://")
    hidden = f"{scheme}://***" if separator and scheme.isalpha() else "a malformed url"
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - raises when it is no number, as for a lone password
    except ValueError:
        return hidden
    if not separator or "@" in parts.path + parts.query + parts.fragment:
        return hidden
    user, at, host = parts.netloc.rpartition("@")
    name, colon, _ = user.partition(":")
    shown = f"{name}:***@" if colon else "***@" * bool(at)
    return f"{scheme}://{shown}{host}{parts.path}{'?***' if parts.query else ''}"
