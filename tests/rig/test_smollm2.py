"""The real chat model that comes in a package: made once, and it answers."""

from pathlib import Path

import pytest
import torch
from paceline.rig.models.smollm2 import ensure_smollm2
from paceline.rig.models.target import chat_template, greedy, load_tokenizer
from transformers import AutoModelForCausalLM


@pytest.mark.servers
def test_the_model_answers_a_question_and_is_made_once(tmp_path: Path) -> None:
    made = ensure_smollm2(tmp_path)
    written = (made.folder / "model.safetensors").stat().st_mtime_ns
    assert ensure_smollm2(tmp_path) == made
    assert (made.folder / "model.safetensors").stat().st_mtime_ns == written
    model = AutoModelForCausalLM.from_pretrained(made.folder)
    assert (model.dtype, sum(weight.numel() for weight in model.parameters())) == (torch.bfloat16, 134_515_008)
    chat = chat_template(made.folder)
    assert chat is not None
    asked = chat([{"role": "user", "content": "What is the capital of France? Answer in one sentence."}])
    assert "Paris" in load_tokenizer(made.folder).decode(greedy(model, asked, 12))
