"""The error tree is as drawn, and every error survives the way to another process."""

import pickle
import re

import pytest
from paceline.buffer import errors
from paceline.buffer.errors import DecodeError, PacelineError


def subclasses(kind: type[Exception]) -> list[type[Exception]]:
    return [kind, *(deeper for child in kind.__subclasses__() for deeper in subclasses(child))]


def test_the_drawn_tree_lists_exactly_the_subclasses():
    root, *branches = re.findall(r"^ {4}(?:[├└]── )?(\w+)", errors.__doc__, flags=re.MULTILINE)
    inside = [kind for kind in subclasses(PacelineError) if kind.__module__ == errors.__name__]
    assert [root, *branches] == [kind.__name__ for kind in inside]
    assert all(kind.__bases__ == (PacelineError,) for kind in inside[1:])


def test_no_other_module_adds_to_the_tree():
    import pkgutil

    import paceline.buffer

    for module in pkgutil.iter_modules(paceline.buffer.__path__, "paceline.buffer."):
        __import__(module.name)
    homes = {kind.__module__ for kind in subclasses(PacelineError) if kind.__module__.startswith("paceline.")}
    assert homes == {errors.__name__}


@pytest.mark.parametrize("kind", subclasses(PacelineError))
def test_every_error_survives_pickling(kind):
    error = kind("got 1, expected 2")
    twin = pickle.loads(pickle.dumps(error))
    assert (type(twin), str(twin), twin.args) == (kind, str(error), error.args)


def test_a_decode_error_keeps_reason_and_raw_bytes_through_pickling():
    twin = pickle.loads(pickle.dumps(DecodeError("bad schema", b"\x00\xff")))
    assert (twin.reason, twin.raw, str(twin)) == ("bad schema", b"\x00\xff", "bad schema (2 bytes)")
