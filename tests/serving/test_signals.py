"""Signals are answered for the length of a body, and handled as before afterwards."""

import signal

import pytest
from paceline.serving.launch.signals import borrowed_signals

BORROWED = (signal.SIGUSR1, signal.SIGUSR2)


@pytest.fixture(autouse=True)
def _own_dispositions():
    before = {number: signal.signal(number, signal.SIG_DFL) for number in BORROWED}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def raise_all_and_fail(answer):
    with borrowed_signals(BORROWED, answer):
        for number in BORROWED:
            signal.raise_signal(number)
        raise KeyError


def test_the_body_gets_every_signal_and_the_old_handlers_come_back_also_after_an_exception():
    heard = []
    with pytest.raises(KeyError):
        raise_all_and_fail(lambda number, _: heard.append(number))
    assert heard == [signal.SIGUSR1, signal.SIGUSR2]
    assert [signal.getsignal(number) for number in BORROWED] == [signal.SIG_DFL, signal.SIG_DFL]


def test_an_ignored_signal_stays_ignored_and_the_others_are_answered():
    heard = []
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    with borrowed_signals(BORROWED, lambda number, _: heard.append(number)):
        for number in BORROWED:
            signal.raise_signal(number)
        assert signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN
    assert heard == [signal.SIGUSR2]
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN
