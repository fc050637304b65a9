"""A fault of capture stays inside paceline."""

from paceline.serving.breaker import FAULT_WINDOW_S, MAX_FAULTS, Breaker


def test_a_guarded_body_never_raises_and_opens_the_breaker_after_max_faults():
    breaker, calls = Breaker(), []

    def body(call):
        calls.append(call)
        raise ValueError(call)

    guarded = breaker.guard(body)
    for turn in range(MAX_FAULTS + 2):
        assert guarded(f"call {turn}") is None
    assert calls == [f"call {turn}" for turn in range(MAX_FAULTS)]
    assert breaker.reason == f"{MAX_FAULTS} faults in a row, last in body: ValueError: call {MAX_FAULTS - 1}"


def test_fewer_faults_leave_it_closed():
    breaker, done = Breaker(), []

    def body(fails):
        if fails:
            raise RuntimeError
        done.append(1)

    guarded = breaker.guard(body)
    for fails in [True] * (MAX_FAULTS - 1) + [False]:
        guarded(fails)
    assert (breaker.is_open, done) == (False, [1])


def test_the_first_reason_stays():
    breaker = Breaker()
    breaker.open("first")
    breaker.open("second")
    assert (breaker.is_open, breaker.reason) == (True, "first")


def test_faults_far_apart_are_forgiven():
    now = [0.0]
    breaker = Breaker(clock=lambda: now[0])

    def body():
        now[0] += FAULT_WINDOW_S
        raise ValueError

    guarded = breaker.guard(body)
    for _ in range(4 * MAX_FAULTS):
        guarded()
    assert (breaker.is_open, breaker.faults) == (False, 4 * MAX_FAULTS)
