"""A cause that was planted alone is named first with its exact share, and nothing else is blamed."""

import math
from collections.abc import Mapping

import pytest
from made_histories import REPLICA, Conditions, MadeReplica, accept_length, changed, histories, step_seconds
from paceline.policies.readings.causes.amounts import UNKNOWN
from paceline.policies.readings.causes.explanation import Explanation, explain
from paceline.policies.readings.causes.noise import FALSE_BLAME, is_noise, noise_of
from paceline.policies.readings.causes.parts import Cause
from paceline.policies.readings.causes.periods import during, since_periods
from paceline.policies.readings.causes.stretches import stretches

BASE = Conditions(labels={"py": 0.6, "prose": 0.4})
BEFORE_S, NOW_S = 600.0, 60.0

#: Cause -> what is planted, and the factor by which it makes a request faster, worked out by hand.
PLANTED: dict[Cause, tuple[Conditions, float]] = {
    Cause.LABELS: (changed(BASE, labels={"prose": 1.0}), 1.5 * (0.6 / 2.4 + 0.4 / 1.5)),
    Cause.SAMPLING: (changed(BASE, sampled=1.0), (0.6 / 2.4 + 0.4 / 1.5) / (0.6 / 1.92 + 0.4 / 1.2)),
    Cause.DRAFT: (changed(BASE, draft=2, lengths_of={2: 0.8}), (0.6 / 2.4 + 0.4 / 1.5) / (0.6 / 1.92 + 0.4 / 1.2)),
    Cause.STALE: (changed(BASE, lengths={"py": 1.92, "prose": 1.2}), 0.8),
    Cause.BATCH: (changed(BASE, running=8), (0.02 + 3 * 0.002) / (0.02 + 7 * 0.002)),
    Cause.STEPS: (changed(BASE, plain=1.0), 0.6 / 2.4 + 0.4 / 1.5),
    Cause.LEARNER: (changed(BASE, is_learning=True, learner_cost=1.4), 1 / 1.4),
    Cause.PREFILL: (changed(BASE, prefill=0.4), 0.6 / 0.9),
    Cause.REST: (changed(BASE, step_s=0.03, per_request_s=0.003), 2 / 3),
}


def compared(before: Conditions, now: Conditions, **how: object) -> Explanation:
    found = histories([(BEFORE_S, before), (NOW_S, now)], **how)
    return explain(*since_periods(found, BEFORE_S, BEFORE_S + NOW_S))


def blamed(found: Explanation) -> set[Cause]:
    """What stands out, but for load: it makes no request faster or slower."""
    return {finding.cause for finding in found.findings if not finding.effect.is_noise} - {Cause.LOAD}


@pytest.mark.parametrize("cause", PLANTED)
def test_a_cause_alone_is_named_first_with_its_exact_share(cause: Cause) -> None:
    now, factor = PLANTED[cause]
    found = compared(BASE, now)
    assert found.first is not None
    assert found.first.cause is cause
    # Counts are whole rounds, some hundreds a stretch: that is as exact as they can be.
    assert found.first.effect.log == pytest.approx(math.log(factor), abs=2e-3)
    assert found.first.share == pytest.approx(1.0, abs=0.02)
    assert blamed(found) == {cause}


@pytest.mark.parametrize("cause", PLANTED)
def test_a_cause_alone_is_named_first_in_noise(cause: Cause) -> None:
    found = compared(BASE, PLANTED[cause][0], noise=0.05, seed=3)
    assert found.first is not None
    assert (found.first.cause, blamed(found)) == (cause, {cause})
    assert found.first.effect.low is not None
    assert found.first.effect.low - 1e-9 < math.log(PLANTED[cause][1]) < found.first.effect.high + 1e-9


def test_load_is_named_where_it_alone_changed() -> None:
    found = compared(BASE, changed(BASE, idle=0.5))
    assert found.first is not None
    assert (found.first.cause, found.first.share) == (Cause.LOAD, None)
    assert found.first.effect.log == pytest.approx(math.log(0.5), abs=2e-3)
    assert found.request_speed.is_noise


def test_without_a_change_nothing_is_blamed() -> None:
    assert compared(BASE, BASE).first is None


def test_in_noise_without_a_change_something_is_blamed_as_seldom_as_promised() -> None:
    wrong = sum(compared(BASE, BASE, noise=0.1, seed=seed).first is not None for seed in range(60))
    assert wrong <= 8  # of 60 at 5 %: more than 8 have a chance of 0.3 %


def test_a_sure_change_of_speed_lets_a_cause_be_named_that_is_sure_by_itself_alone() -> None:
    """With four entries of history in each period hardly any of a dozen causes can stand out among all."""
    found = stretches(histories([(20.0, BASE), (20.0, changed(BASE, labels={"prose": 1.0}))], noise=0.12, seed=11))
    before, now = during("before", found, [(0.0, 20.0)]), during("now", found, [(20.0, 40.0)])
    assert len(before.stretches) == len(now.stretches) == 4
    told = explain(before, now)
    labels = next(finding for finding in told.findings if finding.cause is Cause.LABELS)
    noise = noise_of(before.stretches, now.stretches, {"labels": lambda each: each.of(Cause.LABELS)})["labels"]
    assert is_noise(labels.effect.log, noise, FALSE_BLAME / 2 / len(told.findings))
    assert not is_noise(labels.effect.log, noise, FALSE_BLAME)
    assert told.first is labels


@pytest.mark.parametrize(
    "pair", [(Cause.LEARNER, Cause.STALE), (Cause.LABELS, Cause.PREFILL), (Cause.DRAFT, Cause.REST)]
)
def test_two_causes_at_once_add_up(pair: tuple[Cause, Cause]) -> None:
    fields: dict[str, object] = {}
    for cause in pair:
        planted = PLANTED[cause][0]
        fields |= {name: value for name, value in vars(planted).items() if value != getattr(BASE, name)}
    found = compared(BASE, changed(BASE, **fields))
    assert blamed(found) == set(pair)
    logs: Mapping[Cause, float] = {finding.cause: finding.effect.log for finding in found.findings}
    for cause in pair:
        assert logs[cause] == pytest.approx(math.log(PLANTED[cause][1]), abs=2e-3)
    assert sum(found.change.parts.values()) == pytest.approx(found.total.log)
    both = math.log(PLANTED[pair[0]][1] * PLANTED[pair[1]][1])
    assert found.request_speed.log == pytest.approx(both, abs=4e-3)


def test_a_new_draft_is_not_blamed_for_traffic_that_moved_with_it() -> None:
    # Draft 2 took over just before the traffic inside the label moved; it served as well as draft 1 until then.
    phases = [(540.0, BASE), (60.0, changed(BASE, draft=2)), (60.0, changed(PLANTED[Cause.STALE][0], draft=2))]
    found = explain(*since_periods(histories(phases), BEFORE_S, BEFORE_S + NOW_S))
    assert (found.first.cause, blamed(found)) == (Cause.STALE, {Cause.STALE})


def test_traffic_without_labels_is_compared_as_one() -> None:
    bare = Conditions(labels={"": 1.0}, lengths={"": 2.0})
    found = compared(bare, changed(bare, lengths={"": 1.5}))
    assert (found.first.cause, blamed(found)) == (Cause.STALE, {Cause.STALE})
    assert "requests without a label" in found.first.evidence
    assert found.unknown == ("mix of labels: unknown, for no request names a label (paceline_label)",)


def test_without_a_step_clock_the_rest_is_unknown_and_says_why() -> None:
    found = compared(BASE, PLANTED[Cause.LABELS][0], has_clock=False)
    assert (found.total, found.first.cause) == (None, Cause.LABELS)
    assert ["timed" in line for line in found.unknown] == [True]


def test_a_learner_that_nobody_heard_of_is_no_cause() -> None:
    found = histories([(BEFORE_S, BASE), (NOW_S, PLANTED[Cause.REST][0])])
    alone = explain(*since_periods({REPLICA: found[REPLICA]}, BEFORE_S, BEFORE_S + NOW_S))
    assert blamed(alone) == {Cause.REST}
    assert {key.learner for key in alone.now.amounts.steps} == {UNKNOWN}
    assert Cause.LEARNER not in {finding.cause for finding in alone.findings}
    assert alone.unknown == ("learner at work: unknown, for no learner sends counters",)


def test_a_restart_loses_nothing_but_the_time_around_it() -> None:
    replica, at, entries = MadeReplica(), 0.0, []
    for number in range(132):
        if number == 60:
            replica.restart()
        replica.serve(BASE if number < 120 else PLANTED[Cause.LEARNER][0])
        at += 5.0
        entries.append(replica.counters(at, BASE))
    found = explain(*since_periods({REPLICA: entries}, BEFORE_S, at))
    assert found.before.amounts.tokens_per_second == pytest.approx(
        4 * 0.9 * mean_length() / step_seconds(BASE), rel=1e-3
    )
    assert blamed(found) == {Cause.REST}


def mean_length() -> float:
    return 1 / sum(share / accept_length(BASE, label, "greedy") for label, share in BASE.labels.items())


def test_with_few_entries_there_is_no_interval() -> None:
    found = histories([(15.0, BASE), (15.0, PLANTED[Cause.LABELS][0])])
    explained = explain(*since_periods(found, 20.0, 30.0))
    assert (explained.first.effect.low, explained.first.effect.high) == (None, None)


def test_nothing_served_is_unknown() -> None:
    found = explain(*since_periods({}, BEFORE_S, BEFORE_S + NOW_S))
    assert (found.first, found.request_speed, found.total) == (None, None, None)
    assert len(found.unknown) == 2
