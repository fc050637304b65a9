"""Without features a trace has every token that the target had read, however its window was cut."""

import numpy as np
import pytest
import torch
from paceline.buffer.stream.trace_codec import decode_trace, encode_trace
from paceline.serving.breaker import Breaker
from paceline.serving.capture.prefill_rows import WindowSizes
from paceline.serving.capture.request_choice import RequestChoice
from paceline.serving.capture.sglang_capture import CaptureSettings, SglangCapture
from paceline.serving.courier.split import split_prefill
from paceline.serving.wire.counts import CaptureCounts
from paceline.serving.wire.messages import FEATURES, arrays_of
from paceline.serving.wire.request_forward import NO_FEATURES, NO_TOKENS, TeacherWidth
from sglang_double import batch_of, request
from toy_server import ToyServer, assembler, feed


class BareServer(ToyServer):
    """Captures no features, and what stands before a prefill instead."""

    def prefill(self, **which):
        forward = super().prefill(**which)
        prefix = np.asarray(self.tokens[: forward.start], np.int32)
        return forward._replace(features=NO_FEATURES, prefix=prefix)

    def verify(self, **which):
        return super().verify(**which)._replace(features=NO_FEATURES)


CASES = {
    "a short prompt": ({"prompt_len": 7}, {}, 1),
    "a cached prefix": ({"prompt_len": 20, "cached": 13}, {}, 1),
    "a prompt longer than a window": ({"prompt_len": 60}, {"window_tokens": 24, "context_tokens": 10}, 1),
    "a long answer": ({"prompt_len": 7}, {"window_tokens": 24, "context_tokens": 10}, 2),
    "all of it": ({"prompt_len": 60, "cached": 30}, {"window_tokens": 24, "context_tokens": 10}, 2),
}


@pytest.mark.parametrize("case", CASES)
def test_prefix_and_tokens_are_the_request_from_its_beginning(case):
    served, cut, least = CASES[case]
    server = BareServer(3, **served)
    made, counts = assembler(**cut)
    forwards = [server.prefill(), *(server.verify() for _ in range(20 if least > 1 else 3))]
    traces = feed(made, [*forwards, server.verify(finish="length")])
    assert len(traces) >= least
    assert counts.dropped == {}
    for trace in traces:
        whole = [*trace.prefix.tolist(), *trace.tokens.tolist()]
        assert whole == server.tokens[: len(whole)]
        assert (len(trace.prefix), trace.has_whole_prefix, len(trace.features)) == (trace.offset, True, 0)
        assert not trace.replay_exact
        assert decode_trace(encode_trace(trace)).prefix.tolist() == trace.prefix.tolist()
    assert len(whole) == len(server.tokens)


def test_a_window_after_a_retraction_has_what_was_answered_before_in_its_prefix():
    server = BareServer(6)
    made, _ = assembler()
    forwards = [server.prefill(), *(server.verify() for _ in range(3))]
    again = len(server.tokens) - 2
    before, after = feed(made, [*forwards, server.prefill(start=again), server.verify(finish="length")])
    assert (before.offset, after.offset) == (0, again)
    assert after.prefix.tolist() == server.tokens[:again]


@pytest.mark.parametrize("cut", [{}, {"window_tokens": 24, "context_tokens": 10}])
def test_with_features_no_prefix_is_kept(cut):
    server = ToyServer(3, prompt_len=60)
    made, _ = assembler(**cut)
    traces = feed(made, [server.prefill(), *(server.verify() for _ in range(12)), server.verify(finish="length")])
    assert [len(trace.prefix) for trace in traces] == [0] * len(traces)
    assert all(len(trace.features) for trace in traces)


def test_a_window_whose_beginning_is_not_known_says_so_and_so_do_those_after_it():
    server = BareServer(3, prompt_len=20, cached=13)
    made, _ = assembler(window_tokens=24, context_tokens=10)
    forwards = [server.prefill()._replace(prefix=NO_TOKENS), *(server.verify() for _ in range(20))]
    traces = feed(made, [*forwards, server.verify(finish="length")])
    assert len(traces) >= 2
    assert [(len(trace.prefix), trace.has_whole_prefix) for trace in traces] == [(0, False)] * len(traces)


@pytest.mark.parametrize("features", [True, False])
def test_a_prefill_sends_what_stands_before_it_where_it_sends_no_features(features):
    settings = CaptureSettings(TeacherWidth(4, 1), features=features, sizes=WindowSizes(16, 4))
    capture = SglangCapture(settings, None, RequestChoice(1.0, CaptureCounts(), lambda: 3, lambda: "7"), Breaker())
    # `long` is cut to the last part of its prompt, `again` is prefilled anew with two tokens of its answer before it.
    reqs = [
        request("fresh", prompt=range(5)),
        request("long", prompt=range(100, 120)),
        request("again", prompt=range(200, 204), output=[7, 8, 9]),
    ]
    batch = batch_of(reqs, extend_lens=[5, 8, 1], prefix_lens=[0, 12, 6], input_ids=torch.arange(14))
    capture._before_draft_prefill(None, batch, torch.zeros(14, 2))
    forward = capture._prefill
    sent = forward.to_wire(((0, (1,), ""),) * 3)
    shares = split_prefill(sent.head, arrays_of(sent))
    found = {share.request_id: (share.start, share.prefix.tolist()) for share in shares}
    wanted = {"fresh": [], "long": [*range(100, 117)], "again": [200, 201, 202, 203, 7, 8]}
    assert found == {
        name: (start, [] if features else wanted[name]) for name, start in (("fresh", 0), ("long", 17), ("again", 6))
    }
    # The line to the courier is bounded by what forwards say of their size: prefixes are among it.
    own = sum(tensor.nbytes for tensor in forward.tensors.values())
    assert forward.size_bytes == own + 4 * sum(len(prefix) for _, prefix in found.values())
    assert (FEATURES in forward.tensors, capture._breaker.faults) == (features, 0)
