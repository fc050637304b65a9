"""Every error survives the way to another process."""

import pickle

import pytest
from paceline.buffer.errors import DecodeError, PacelineError


def subclasses(kind: type[Exception]) -> list[type[Exception]]:
    return [kind, *(deeper for child in kind.__subclasses__() for deeper in subclasses(child))]


@pytest.mark.parametrize("kind", subclasses(PacelineError))
def test_every_error_survives_pickling(kind):
    error = kind("got 1, expected 2")
    twin = pickle.loads(pickle.dumps(error))
    assert (type(twin), str(twin), twin.args) == (kind, str(error), error.args)


def test_a_decode_error_keeps_reason_and_raw_bytes_through_pickling():
    twin = pickle.loads(pickle.dumps(DecodeError("bad schema", b"\x00\xff")))
    assert (twin.reason, twin.raw, str(twin)) == ("bad schema", b"\x00\xff", "bad schema (2 bytes)")
