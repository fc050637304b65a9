"""The CPU host's SGLang plugin: off by default, and exact in what it adds to SGLang's choice of backends."""

import subprocess
import sys

import pytest


def modules_after_registering(env):
    code = "import sys; from paceline.serving.cpu_host.plugin import register; register(); print(*sys.modules)"
    return subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    ).stdout.split()


@pytest.mark.parametrize("env", [{}, {"PACELINE_CPU_HOST": "0"}, {"PACELINE_CPU_HOST": ""}])
def test_a_server_that_is_not_a_cpu_host_loads_nothing(env):
    assert {"sglang", "torch", "sgl_kernel"}.isdisjoint(modules_after_registering(env))
