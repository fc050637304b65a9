"""What the CPU host makes of quantised weights that SGLang's own loader has read."""

import json
import os
import subprocess
import sys

from paceline.benchmarks.matrix.quantised import FORMATS
from paceline.serving.cpu_host.defaults import server_env

#: Loads a matrix into a layer, as SGLang does, and says how far its outputs are from the matrix's, as a share.
OUTPUTS = """
import json
import torch
from sglang.srt.layers.linear import ReplicatedLinear
from sglang.srt.layers.quantization import get_quantization_config
from paceline.benchmarks.matrix.quantised import FORMATS
from paceline.serving.cpu_host.dense_weights import dense_config

torch.manual_seed(0)
x, matrix, found = torch.randn(5, 64), torch.randn(96, 64), {}
for name, (described, stored) in FORMATS.items():
    config = dense_config(get_quantization_config, described["quant_method"]).from_config(dict(described))
    layer = ReplicatedLinear(64, 96, False, params_dtype=torch.float32, quant_config=config, prefix="down_proj")
    for part, value in stored(matrix).items():
        parameter = getattr(layer, part)
        parameter.weight_loader(parameter, value)
    layer.quant_method.process_weights_after_loading(layer)
    got = layer.quant_method.apply(layer, x, None)
    found[name] = float((got - x @ matrix.T).norm() / (x @ matrix.T).norm())
print("FOUND", json.dumps(found))
"""


def test_every_format_gives_the_products_of_the_matrices_it_was_made_from_but_for_its_rounding():
    env = server_env(["--model-path", "nowhere"], os.environ)
    said = subprocess.run([sys.executable, "-c", OUTPUTS], env=env, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stderr
    (line,) = [line for line in said.stdout.splitlines() if line.startswith("FOUND ")]
    apart = json.loads(line.removeprefix("FOUND "))
    assert apart.keys() == FORMATS.keys()
    for name, share in apart.items():
        bits = 4 if name in {"AWQ", "GPTQ", "compressed-tensors, INT4"} else 8
        assert 0.001 < share < {8: 0.04, 4: 0.12}[bits], name
