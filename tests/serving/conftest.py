"""What tests of the serving side share."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

sys.path.append(str(Path(__file__).parent))  # for sglang_forks

from sglang_forks import SglangForks


@pytest.fixture(scope="session")
def sglang_forks(tmp_path_factory) -> Iterator[SglangForks]:
    """Runs scripts beside the real SGLang, each in a process of its own."""
    made = SglangForks(tmp_path_factory.mktemp("forks"))
    yield made
    made.close()


@pytest.fixture
def resolved(monkeypatch):
    """Set what SGLang resolved, in the names of 0.5.21, which has no block verification."""
    found = {
        "speculative_algorithm": "EAGLE3", "speculative_eagle_topk": 1, "attn_dp_size": 1, "pp_size": 1,
        "attn_dp_rank": 0, "enable_dp_attention_local_control_broadcast": False,
        "speculative_use_rejection_sampling": False, "speculative_accept_threshold_single": 1.0,
        "speculative_accept_threshold_acc": 1.0, "disaggregation_mode": "null",
        "speculative_draft_model_path": "draft", "model_path": "target", "speculative_draft_model_revision": None,
        "speculative_num_steps": 3, "speculative_num_draft_tokens": 4, "speculative_draft_window_size": None,
        "speculative_adaptive": False,
        "download_dir": None, "revision": None,
    }  # fmt: skip
    bags = ("get_spec", "get_parallel", "get_disagg", "get_model")
    context = SimpleNamespace(**dict.fromkeys(bags, lambda: SimpleNamespace(**found)))
    features = SimpleNamespace(enable_custom_logit_processor=False)
    deterministic = SimpleNamespace(enable_deterministic_inference=False)
    context.get_exec = lambda: SimpleNamespace(features=features, deterministic=deterministic)
    monkeypatch.setitem(sys.modules, "sglang.srt.runtime_context", context)
    model = SimpleNamespace(num_hidden_layers=4, quantization=None, dtype=torch.float32)
    target = SimpleNamespace(from_server_args=lambda *_, **__: model)
    unquantised = SimpleNamespace(UnquantizedLinearMethod=type("UnquantizedLinearMethod", (), {}))
    monkeypatch.setitem(sys.modules, "sglang.srt.layers.quantization.unquant", unquantised)
    monkeypatch.setitem(sys.modules, "sglang.srt.configs.model_config", SimpleNamespace(ModelConfig=target))
    return found


class LinearBase(torch.nn.Module):
    """A layer as SGLang's, with the method that multiplies with its weights."""

    def __init__(self, quant_method):
        super().__init__()
        self.quant_method = quant_method


class UnquantizedLinearMethod:
    """The method of a layer whose weights are as the file has them."""


class Fp8LinearMethod:
    """Another one."""


@pytest.fixture
def layers(monkeypatch):
    """SGLang's classes of linear layers; tests/serving/test_sglang_draft.py has the real ones."""
    linear = SimpleNamespace(LinearBase=LinearBase)
    unquantised = SimpleNamespace(UnquantizedLinearMethod=UnquantizedLinearMethod)
    monkeypatch.setitem(sys.modules, "sglang.srt.layers.linear", linear)
    monkeypatch.setitem(sys.modules, "sglang.srt.layers.quantization.unquant", unquantised)
    return SimpleNamespace(
        plain=lambda: LinearBase(UnquantizedLinearMethod()), fp8=lambda: LinearBase(Fp8LinearMethod())
    )
