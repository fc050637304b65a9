"""Sizing is arithmetic on measured constants; here constants are round, and every oracle is calculated by hand."""

import pytest
from paceline.policies import sizing as module
from paceline.policies.sizing import MOST_RANKS, Fleet, sizing
from paceline.policies.sizing_constants import Constant, FeatureForm, StationCost

#: One server: 1,000 output tokens per second in requests of 300 tokens of prompt and 100 of output, so 10 requests and
#: 4,000 tokens of traces per second, of 2 x 500 x 2 = 2,000 bytes of features each.
ONE = Fleet(
    replicas=1,
    tokens_per_s=1000.0,
    prompt_tokens=300,
    output_tokens=100,
    hidden=500,
    layers=2,
    form=FeatureForm.CAPTURED,
    keep_s=100.0,
    round_traces=10**9,
)


def constant(value: float) -> Constant:
    return Constant(what="", value=value, unit="", command="")


def station(per_trace_us: float, per_token_us: float, captured_ns: float, int8_ns: float) -> StationCost:
    by_form = {FeatureForm.CAPTURED: constant(captured_ns), FeatureForm.INT8: constant(int8_ns)}
    return StationCost(per_trace=constant(per_trace_us), per_token=constant(per_token_us), per_byte=by_form)


def changed(fleet: Fleet = ONE, **changes: object) -> Fleet:
    fields = {name: getattr(fleet, name) for name in Fleet.__dataclass_fields__}
    return Fleet(**(fields | changes))


@pytest.fixture(autouse=True)
def round_constants(monkeypatch):
    """A request of ONE is a trace of 400 tokens, 100 of them output, with 800,000 bytes of features.

    For it the courier takes 100 + 300 + 16,000 us = 16.4 ms, Redis 4 ms (1,000 + 1,000 + 1,600, and 400), the learner
    10 ms (400 + 400 + 9,200 us).
    """
    shares = {FeatureForm.CAPTURED: constant(0.5), FeatureForm.INT8: constant(1.0)}
    made = {
        "TOKEN_BYTES": constant(10.0),
        "STORED_SHARE": shares,
        "MEMORY_SHARE": {form: constant(1.2) for form in FeatureForm},
        "COURIER": station(100.0, 3.0, 20.0, 10.0),
        "REDIS_APPEND": station(1000.0, 10.0, 2.0, 1.0),
        "REDIS_CLAIM": station(400.0, 0.0, 0.0, 0.0),
        "LEARNER_CLAIM": station(400.0, 4.0, 11.5, 5.0),
        "BOARD": constant(500.0),
        "REPLICA_BYTES": constant(1e6),
        "BEAT_BYTES": constant(8000.0),
    }
    for name, value in made.items():
        monkeypatch.setattr(module, name, value)


def test_one_server_is_the_product_of_its_figures():
    found = sizing(ONE)
    assert found.trace_tokens_per_s == 4000.0
    assert found.token_bytes == 10 + 0.5 * 2000
    assert found.trace_bytes_per_s == 4000 * 1010
    assert found.beat_bytes_per_s == 8000
    assert found.buffer_bytes == 4000 * 1010 * 100
    assert found.redis_bytes == pytest.approx(1.2 * 404e6 + 1e6)
    assert found.redis_cores == pytest.approx(10 * 4e-3 + 500e-6)
    assert found.courier_cores == pytest.approx(10 * 16.4e-3)
    assert found.learner_cores == pytest.approx(10 * 10e-3)
    assert found.rollout_s == 5.0
    assert (found.largest_sample_rate, found.limited_by) == (1.0, "")


def test_what_is_of_a_server_grows_with_servers_and_what_is_of_a_courier_does_not():
    one, ten = sizing(ONE), sizing(changed(replicas=10))
    for name in ("trace_bytes_per_s", "beat_bytes_per_s", "redis_bytes", "redis_cores", "learner_cores", "rollout_s"):
        assert getattr(ten, name) == pytest.approx(10 * getattr(one, name)), name
    assert ten.courier_cores == pytest.approx(one.courier_cores)


def test_the_largest_share_of_requests_is_what_the_narrowest_place_carries():
    # 100 servers: 1,000 requests per second.
    found = sizing(changed(replicas=100))
    assert (found.limited_by, found.largest_sample_rate) == ("learner", pytest.approx(1 / (1000 * 10e-3)))
    # 1,800 servers leave a tenth of Redis' core: 0.1 / (18,000 * 4 ms).
    found = sizing(changed(replicas=1800))
    assert (found.limited_by, found.largest_sample_rate) == ("Redis", pytest.approx(0.1 / 72.0))
    # One server of 10,000 output tokens per second: 100 * 16.4 ms = 1.64 cores of its courier.
    found = sizing(changed(tokens_per_s=10_000.0))
    assert (found.limited_by, found.largest_sample_rate) == ("courier", pytest.approx(1 / 1.64))
    # Heartbeats alone fill Redis' core.
    assert sizing(changed(replicas=2000)).largest_sample_rate == 0.0


def test_learning_rounds_claim_so_many_traces_and_no_more():
    # 5 traces a second are claimed of 10, or of 30 where requests are three windows long.
    found = sizing(changed(round_traces=300, round_interval_s=60.0))
    assert (found.limited_by, found.largest_sample_rate) == ("rounds", 0.5)
    long = changed(round_traces=300, round_interval_s=60.0, prompt_tokens=1, output_tokens=4000, tokens_per_s=40_000.0)
    assert long.request_traces == 3
    assert sizing(long).largest_sample_rate == pytest.approx(5 / 30)


def test_a_sample_rate_scales_traces_and_no_heartbeat_and_moves_no_limit():
    full, tenth = sizing(changed(replicas=100)), sizing(changed(replicas=100, sample_rate=0.1))
    assert tenth.trace_bytes_per_s == pytest.approx(full.trace_bytes_per_s / 10)
    assert tenth.beat_bytes_per_s == full.beat_bytes_per_s
    assert tenth.redis_cores == pytest.approx((full.redis_cores - 0.05) / 10 + 0.05)
    assert tenth.largest_sample_rate == full.largest_sample_rate


def test_gpus_and_money_are_unknown_until_the_user_gives_what_no_bench_measured():
    assert (sizing(ONE).learner_gpus, sizing(ONE).cost_per_million) == (None, None)
    assert sizing(changed(gpu_hour=3.6)).cost_per_million is None
    known = sizing(changed(learned_tokens_per_s=2000.0))
    assert (known.learner_gpus, known.cost_per_million) == (2.0, None)
    # Two GPUs at 3.60 an hour are 0.002 a second, in which 1,000 tokens are served.
    assert sizing(changed(learned_tokens_per_s=2000.0, gpu_hour=3.6)).cost_per_million == pytest.approx(2.0)
    # A price of nothing is known.
    assert sizing(changed(learned_tokens_per_s=2000.0, gpu_hour=0.0)).cost_per_million == 0.0


def test_one_learner_has_no_use_for_more_gpus_than_ranks():
    found = sizing(changed(learned_tokens_per_s=500.0))
    assert found.learner_gpus == 8.0
    assert (found.limited_by, found.largest_sample_rate) == ("GPUs", MOST_RANKS * 500.0 / 4000.0)


@pytest.mark.parametrize(
    ("form", "feature_bytes", "token_bytes", "courier_ms"),
    [
        (FeatureForm.CAPTURED, 2000.0, 10 + 1000, 16.4),
        (FeatureForm.INT8, 1004.0, 10 + 1004, 0.4 + 4.016),
        (FeatureForm.TOKENS, 0.0, 10, 0.4),
    ],
)
def test_features_weigh_what_their_form_says(form, feature_bytes, token_bytes, courier_ms):
    fleet = changed(form=form)
    assert fleet.feature_bytes == feature_bytes
    assert sizing(fleet).token_bytes == token_bytes
    assert sizing(fleet).courier_cores == pytest.approx(10 * courier_ms * 1e-3)


@pytest.mark.parametrize(
    ("prompt", "output", "traces", "tokens"),
    [
        (300, 100, 1, 400),
        (2047, 1, 1, 2048),  # fills one window
        (2048, 1, 1, 511 + 1),  # a prompt that fills a window leaves its context
        (8192, 1537, 1, 511 + 1537),
        (8192, 1538, 2, 511 + 1538 + 512),  # a second window repeats 512 tokens
        (8192, 1537 + 1537, 3, 511 + 2 * 1537 + 2 * 512),  # 1,536 new tokens per further window: a third one
    ],
)
def test_traces_of_a_request_hold_its_prompt_or_the_end_of_it_and_repeat_their_context(prompt, output, traces, tokens):
    fleet = changed(prompt_tokens=prompt, output_tokens=output)
    assert (fleet.request_traces, fleet.request_tokens) == (traces, tokens)


@pytest.mark.parametrize(
    "wrong", [{"replicas": 0}, {"tokens_per_s": -1.0}, {"learned_tokens_per_s": 0.0}, {"sample_rate": 0.0}]
)
def test_what_cannot_be_is_refused_by_name(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        changed(**wrong)
