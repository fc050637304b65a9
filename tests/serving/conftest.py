"""What tests of the serving side share."""

import sys
from types import SimpleNamespace

import pytest


@pytest.fixture
def resolved(monkeypatch):
    """Set what SGLang resolved, in the names of 0.5.21, which has no block verification."""
    found = {
        "speculative_algorithm": "EAGLE3", "speculative_eagle_topk": 1, "dp_size": 1, "pp_size": 1,
        "speculative_use_rejection_sampling": False, "speculative_accept_threshold_single": 1.0,
        "speculative_accept_threshold_acc": 1.0, "disaggregation_mode": "null",
    }  # fmt: skip
    bags = ("get_spec", "get_parallel", "get_disagg")
    context = SimpleNamespace(**dict.fromkeys(bags, lambda: SimpleNamespace(**found)))
    monkeypatch.setitem(sys.modules, "sglang.srt.runtime_context", context)
    return found
