"""Which drafts take new weights, by the layers that the real SGLang makes."""

import json

#: Makes a layer as SGLang does without quantisation, with `--quantization fp8` and with `w8a8_int8`.
LAYERS = """
import json
from types import SimpleNamespace
import torch
from sglang.srt.layers.linear import ReplicatedLinear
from sglang.srt.layers.quantization.fp8 import Fp8Config
from sglang.srt.layers.quantization.w8a8_int8 import W8A8Int8Config
from paceline.buffer.errors import WeightsRefused
from paceline.serving.swap.sglang_draft import SglangDraft

scheduler = SimpleNamespace(weight_updater=SimpleNamespace(offload_tags=set()))
found = []
for config in (None, Fp8Config(), W8A8Int8Config({})):
    layer = ReplicatedLinear(8, 8, bias=False, quant_config=config, prefix="o_proj")
    model = torch.nn.ModuleDict({"fc": torch.nn.Linear(8, 8), "o_proj": layer})
    try:
        SglangDraft(scheduler, SimpleNamespace(device="cpu", model=model)).check_unquantised()
        found.append("")
    except WeightsRefused as refusal:
        found.append(str(refusal))
print("FOUND", json.dumps(found))
"""


def test_a_draft_with_a_quantised_layer_of_sglangs_is_refused(sglang_forks):
    (line,) = [line for line in sglang_forks.run(LAYERS).splitlines() if line.startswith("FOUND ")]
    hint = "expected no quantisation; start the server with --speculative-draft-model-quantization unquant"
    assert json.loads(line.removeprefix("FOUND ")) == [
        "",
        f"o_proj of the served draft: got Fp8LinearMethod, {hint}",
        f"o_proj of the served draft: got W8A8Int8LinearMethod, {hint}",
    ]
