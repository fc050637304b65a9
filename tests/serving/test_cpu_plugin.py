"""The CPU host's SGLang plugin: off by default, and exact in what it adds to SGLang's choice of backends."""

import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from paceline.buffer.errors import ConfigError
from paceline.serving.cpu_host import plugin


def modules_after_registering(env):
    code = "import sys; from paceline.serving.cpu_host.plugin import register; register(); print(*sys.modules)"
    return subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    ).stdout.split()


@pytest.mark.parametrize("env", [{}, {"PACELINE_CPU_HOST": "0"}, {"PACELINE_CPU_HOST": ""}])
def test_a_server_that_is_not_a_cpu_host_loads_nothing(env):
    assert {"sglang", "torch", "sgl_kernel"}.isdisjoint(modules_after_registering(env))


def test_a_malformed_switch_is_an_error_naming_key_and_value(monkeypatch):
    monkeypatch.setenv("PACELINE_CPU_HOST", "on")
    with pytest.raises(ConfigError, match="PACELINE_CPU_HOST: got 'on', expected 0 or 1"):
        plugin.register()


def test_cpu_sdpa_needs_no_triton_and_other_backends_are_asked_as_before():
    assert plugin._support_triton(lambda backend: backend == "triton", "triton") is True
    assert plugin._support_triton(lambda backend: backend == "triton", "torch_native") is False
    assert plugin._support_triton(lambda _: pytest.fail("not to be asked"), "cpu_sdpa") is False


def test_sampling_finds_its_kernels_where_a_release_binds_none_on_a_cpu(monkeypatch, cpu_kernels):
    """As 0.5.23's module is without a GPU; tests/e2e/test_sampled.py asks the real one."""
    names = ("top_k_renorm_prob", "top_p_renorm_prob", "tree_speculative_sampling_target_only")
    eagle_utils = SimpleNamespace(**dict.fromkeys(names))
    monkeypatch.setitem(sys.modules, "sgl_kernel", cpu_kernels)
    monkeypatch.setitem(sys.modules, "sglang.srt.speculative", SimpleNamespace(eagle_utils=eagle_utils))
    plugin._offer_sampling_kernels()
    assert vars(eagle_utils) == {name: getattr(cpu_kernels, name) for name in names}


def test_the_highest_score_of_each_row_needs_no_triton():
    assert plugin._row_argmax(torch.tensor([[0.5, 2.0, -1.0], [3.0, 1.0, 2.0]])).tolist() == [1, 0]


@pytest.mark.parametrize(
    ("stamps_children", "creator"), [(True, "_multi_step_backend"), (False, "_plain_backend")], ids=["draft", "extend"]
)
def test_cpu_sdpa_joins_the_backends_a_draft_may_have(stamps_children, creator):
    factory, theirs = object(), {"triton": object()}
    (args, options) = plugin._with_cpu_backend(factory, "decode_attention_backend", theirs, "no {x}", stamps_children)
    _, name, offered, template, stamps = args
    assert (args[0], name, template, stamps, options) == (
        factory, "decode_attention_backend", "no {x}", stamps_children, {},
    )  # fmt: skip
    assert offered["triton"] is theirs["triton"]
    assert (offered["cpu_sdpa"].func, offered["cpu_sdpa"].args) == (getattr(plugin, creator), (factory,))
    assert "cpu_sdpa" not in theirs
