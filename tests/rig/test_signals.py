"""SIGTERM and SIGHUP unwind the demo like an exception; earlier signal handlers are restored."""

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest
from paceline.rig.processes import ending_signals


@pytest.fixture(params=[signal.SIGTERM, signal.SIGHUP])
def ending(request) -> Iterator[signal.Signals]:
    """A signal with a disposition of the test's own, restored afterwards."""
    before = signal.signal(request.param, signal.SIG_DFL)
    yield request.param
    signal.signal(request.param, before)


def raise_inside(number: signal.Signals, unwound: list[bool]) -> None:
    with ending_signals():
        try:
            signal.raise_signal(number)
        finally:
            unwound.append(True)


def test_a_signal_unwinds_the_body_and_its_earlier_handler_is_restored(ending: signal.Signals) -> None:
    unwound: list[bool] = []
    with pytest.raises(SystemExit) as caught:
        raise_inside(ending, unwound)
    assert caught.value.code == 128 + ending
    assert unwound == [True]
    assert signal.getsignal(ending) is signal.SIG_DFL


def test_a_signal_ends_a_running_event_loop(ending: signal.Signals) -> None:
    async def wait_for_ever() -> None:
        asyncio.get_running_loop().call_soon(os.kill, os.getpid(), ending)
        await asyncio.Event().wait()

    with pytest.raises(SystemExit) as caught, ending_signals():
        asyncio.run(wait_for_ever())
    assert caught.value.code == 128 + ending


def test_an_ignored_signal_stays_ignored(ending: signal.Signals) -> None:
    signal.signal(ending, signal.SIG_IGN)
    with ending_signals():
        signal.raise_signal(ending)
        assert signal.getsignal(ending) is signal.SIG_IGN
