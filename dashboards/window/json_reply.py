"""Answers in JSON."""

from typing import Any

import msgspec
from fastapi import Response


def json_reply(status: int, values: Any) -> Response:
    """`values` as JSON; what is not finite becomes null."""
    return Response(msgspec.json.encode(values), status, media_type="application/json")
