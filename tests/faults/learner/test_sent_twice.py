"""A thousand traces delivered twice and more, in any order: each is learned at most once, and repeats are counted."""

import random
from dataclasses import replace

import pytest
from paceline.buffer.stream.trace_codec import encode_trace

SERVED = 50
TRACES = 1000
COPIES = 2100


@pytest.fixture
def post(world):
    """A thousand traces of a thousand requests, and more than twice as many deliveries of them in random order."""
    served = [world.speculator.serve(number) for number in range(SERVED)]
    traces = [replace(served[n % SERVED], trace_id=f"trace-{n}", request_id=f"request-{n}") for n in range(TRACES)]
    rng = random.Random(0)
    deliveries = [*traces, *traces, *rng.choices(traces, k=COPIES - 2 * TRACES)]
    rng.shuffle(deliveries)
    return traces, deliveries


@pytest.mark.guarantee("delivered-twice")
@pytest.mark.fault_matrix  # tests/buffer/test_trace_buffer_contract.py has the same for one trace
def test_what_the_stream_still_holds_is_stored_once_and_learned_once(world, post):
    traces, deliveries = post
    learner = world.learner(PASSES="1")
    third = COPIES // 3
    # The learner works in between: repeats come before and after a trace was learned.
    for begin in range(0, COPIES, third):
        for at in range(begin, begin + third, 50):
            world.buffer.append(deliveries[at : at + 50])
        world.learn_all(learner)
    world.assert_accounted(traces)
    world.assert_sound()


@pytest.mark.guarantee("delivered-twice")
def test_what_the_stream_has_forgotten_is_known_to_the_learner_and_counted_as_a_duplicate(world, post):
    _, deliveries = post
    learner = world.learner(PASSES="1", REPLAY_TRACES=str(TRACES))
    half = COPIES // 2
    for part in (deliveries[:half], deliveries[half:]):
        world.buffer._append_raw([encode_trace(trace) for trace in part])
        world.learn_all(learner)
    counts = world.buffer.counts()
    once = {key: counts.acked[key] for key in ("learned", "held_out")}
    assert sum(once.values()) == TRACES
    assert counts.acked["duplicate"] == COPIES - TRACES
    assert (counts.delivered, counts.pending, counts.dead_lettered, counts.trimmed) == (COPIES, 0, 0, 0)
    world.assert_sound()
