"""The small target: trained from local text, complete or absent, and readable by other tools."""

from pathlib import Path

import pytest
import torch
from paceline.rig.models.target import TargetModel, ensure_random_draft, ensure_target, greedy, load_tokenizer
from paceline.rig.models.training import TrainPlan
from transformers import AutoModelForCausalLM, AutoTokenizer

PLAN = TrainPlan(seconds=1.5, batch_windows=4, window_tokens=32)
TEXT = "def draft(self):\n    return self.wheel  # naïve\n"


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def target(data_dir: Path) -> TargetModel:
    return ensure_target(data_dir, PLAN, domains=["prose"])


def test_a_target_is_trained_once_and_then_found(target: TargetModel, data_dir: Path) -> None:
    before = (target.folder / "model.safetensors").stat().st_mtime_ns
    again = ensure_target(data_dir, PLAN, domains=["prose"])
    assert again == target
    assert (target.folder / "model.safetensors").stat().st_mtime_ns == before
    assert [path.name for path in (data_dir / "targets").iterdir()] == [target.key]


def test_a_target_reports_its_steps_and_its_held_out_loss(target: TargetModel) -> None:
    assert target.steps >= 1
    assert set(target.held_out_loss) == {"prose"}
    assert 0.0 < target.held_out_loss["prose"] < 20.0


def test_transformers_loads_the_target_and_its_tokenizer(target: TargetModel) -> None:
    model = AutoModelForCausalLM.from_pretrained(target.folder)
    tokenizer = AutoTokenizer.from_pretrained(target.folder)
    assert (model.dtype, model.config.num_hidden_layers, model.config.hidden_size) == (torch.float32, 4, 256)
    assert tokenizer(TEXT).input_ids == load_tokenizer(target.folder).encode(TEXT).ids
    assert tokenizer.decode(tokenizer(TEXT).input_ids) == TEXT


def test_a_random_draft_depends_on_its_seed_and_is_written_once(target: TargetModel, tmp_path: Path) -> None:
    first, again, other = (ensure_random_draft(target.folder, tmp_path / name, seed) for name, seed in
                           (("a", 1), ("b", 1), ("c", 2)))  # fmt: skip
    weights = [(folder / "model.safetensors").read_bytes() for folder in (first, again, other)]
    assert weights[0] == weights[1] != weights[2]
    assert ensure_random_draft(target.folder, first, 99) == first
    assert (first / "model.safetensors").read_bytes() == weights[0]


def test_greedy_with_a_cache_equals_greedy_without_one(target: TargetModel) -> None:
    model = AutoModelForCausalLM.from_pretrained(target.folder).eval()
    tokens = load_tokenizer(target.folder).encode(TEXT).ids
    fed = list(tokens)
    for _ in range(6):
        fed.append(int(model(torch.tensor([fed])).logits[0, -1].argmax()))
    assert greedy(model, tokens, 6) == tuple(fed[len(tokens) :])


def test_an_interrupted_build_leaves_no_files(data_dir: Path, tmp_path: Path) -> None:
    def report(done: float, note: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ensure_target(tmp_path, PLAN, domains=["prose"], report=report)
    assert list(tmp_path.iterdir()) == []
