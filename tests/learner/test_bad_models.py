"""A learner ends at its start, naming the setting, when its draft or its target cannot be learned with."""

import json
from dataclasses import replace

import pytest
import torch
from paceline.buffer.board.redis_board import RedisVersionBoard
from paceline.buffer.config import BufferConfig
from paceline.buffer.errors import ConfigError
from paceline.cli import app
from paceline.learner.config import LearnerConfig
from paceline.learner.disk import require_writable
from paceline.learner.recovery import check_models, open_state
from safetensors.torch import load_file, save_file
from twins.memory_board import MemoryVersionBoard
from twins.memory_stream import MemoryTraceBuffer
from typer.testing import CliRunner


@pytest.fixture
def config(tiny_speculator, tmp_path):
    return LearnerConfig(
        target="target",
        target_path=tiny_speculator.target,
        initial_draft=tiny_speculator.draft,
        data_dir=tmp_path / "data",
        cache_dir=tmp_path / "cache",
        device="cpu",
    )


def edited(**changes):
    def edit(draft, target):
        config = json.loads((draft / "config.json").read_text())
        (draft / "config.json").write_text(json.dumps(config | changes))

    return edit


def without(name):
    return lambda draft, target: (draft / name).unlink()


def half_of_it(draft, target):
    listed = dict.fromkeys(load_file(draft / "model.safetensors"), "model-00001-of-00002.safetensors")
    (draft / "model.safetensors").rename(draft / "model-00001-of-00002.safetensors")
    listed["norm.weight"] = "model-00002-of-00002.safetensors"
    (draft / "model.safetensors.index.json").write_text(json.dumps({"weight_map": listed}))


def a_shard_without_a_tensor(draft, target):
    half_of_it(draft, target)
    save_file({"other": torch.ones(1)}, draft / "model-00002-of-00002.safetensors")


def pickle_of_a_training_run(draft, target):
    tensors = load_file(draft / "model.safetensors")
    (draft / "model.safetensors").unlink()
    torch.save({"epoch": 3, "model": tensors}, draft / "pytorch_model.bin")


def a_target_of_other_sizes(draft, target):
    save_file({"model.embed_tokens.weight": torch.ones(32, 8)}, target / "model.safetensors")


def not_finite(draft, target):
    tensors = load_file(draft / "model.safetensors")
    save_file(tensors | {"fc.weight": tensors["fc.weight"] * float("nan")}, draft / "model.safetensors")


def of_numbers_that_are_none(draft, target):
    tensors = load_file(draft / "model.safetensors")
    save_file(tensors | {"d2t": tensors["d2t"].float()}, draft / "model.safetensors")


LAYERS = "eagle_aux_hidden_state_layer_ids"
BAD = {
    "no finite numbers": (not_finite, "values in fc.weight that are no finite numbers, expected a draft without any"),
    "a map of floats": (of_numbers_that_are_none, r"d2t: got torch.float32 of shape \(32,\), expected one whole"),
    "no table": (
        lambda draft, target: (draft / "config.json").write_text("[1]"), "config.json: got a list, expected a JSON",
    ),
    "a size in quotes": (edited(hidden_size="16"), "hidden_size: got '16', expected a whole number above 0"),
    "no heads": (edited(num_attention_heads=0), "num_attention_heads: got 0, expected a whole number above 0"),
    "a size below 0": (edited(intermediate_size=-1), "intermediate_size: got -1, expected a whole number above 0"),
    "a size that is true": (edited(vocab_size=True), "vocab_size: got True, expected a whole number above 0"),
    "heads that do not divide": (edited(num_key_value_heads=3), "num_key_value_heads: got 3, expected a divisor of"),
    "an odd head": (edited(head_dim=7), "head_dim: got 7, expected an even number"),
    "no epsilon": (edited(rms_norm_eps=None), "rms_norm_eps: got None, expected a number above 0"),
    "a list for a table": (edited(eagle_config=[1]), r"eagle_config: got \[1\], expected a JSON object or null"),
    "one layer twice": (edited(eagle_config={LAYERS: [1, 1, 2]}), r"got \[1, 1, 2\], expected a list of different"),
    "a rope that stands": (edited(rope_parameters={"rope_theta": 0}), "rope_theta: got 0, expected a number above 0"),
    "another hidden size": (a_target_of_other_sizes, r"target embedding: got \(32, 8\), expected \(32, 16\)"),
    "another target's vocabulary": (edited(vocab_size=33, draft_vocab_size=33), r"got \(32, 16\), expected \(33, 16\)"),
    "half a sharded draft": (half_of_it, r"PACELINE_DRAFT: .*index.json: got 'model-00002-of-00002.* for norm"),
    "a shard without its tensor": (
        a_shard_without_a_tensor, r"PACELINE_DRAFT: .*files without \{'norm.weight': 'model-00002-of-00002",
    ),
    "a pickle of more than tensors": (
        pickle_of_a_training_run, r"PACELINE_DRAFT: .*pytorch_model.bin: got int for 'epoch', dict for 'model'",
    ),
    "an unknown rope": (edited(rope_parameters={"rope_type": "spiral"}), "rope type: got 'spiral', expected one of"),
    "a rope for pictures": (edited(rope_scaling={"mrope_section": [1, 1]}), "rope type: got 'mrope'"),
    "no config": (without("config.json"), r"PACELINE_DRAFT: .* got no config\.json"),
    "no weights": (without("model.safetensors"), r"PACELINE_DRAFT: .* got \['config.json'\], expected model"),
    "a target that shares its head and has none": (
        lambda draft, target: (
            edited(draft_vocab_size=None)(draft, target), save_file(
                {"model.embed_tokens.weight": torch.ones(32, 16)}, target / "model.safetensors"),
        ), r"expected a tensor named lm_head\.weight",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_it_is_an_error_at_the_start_and_nothing_is_published(config, name):
    spoil, message = BAD[name]
    check_models(config, MemoryVersionBoard())
    spoil(config.initial_draft, config.target_path)
    board = MemoryVersionBoard()
    with pytest.raises(ConfigError, match=message):
        check_models(config, board)
    with pytest.raises(ConfigError, match=message):
        open_state(config, MemoryTraceBuffer(config.buffer), board)
    assert board.events() == []
    assert not config.versions_dir.exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"initial_draft": "someone/draft"}, r"PACELINE_DRAFT: someone/draft: got neither .* run `hf download"),
        ({"target_path": "someone/target"}, r"PACELINE_TARGET_PATH: someone/target: got neither .* run `hf download"),
    ],
)  # fmt: skip
def test_an_id_that_is_not_on_this_machine_is_named_with_its_setting(config, changes, message):
    with pytest.raises(ConfigError, match=message):
        check_models(
            replace(config, **{name: type(config.target_path)(value) for name, value in changes.items()}),
            MemoryVersionBoard(),
        )


def test_with_a_version_at_work_the_first_draft_may_be_gone(config):
    board = MemoryVersionBoard()
    open_state(config, MemoryTraceBuffer(config.buffer), board)
    (config.initial_draft / "model.safetensors").unlink()
    check_models(config, board)
    assert open_state(config, MemoryTraceBuffer(config.buffer), board).trainer.draft.config.hidden_size == 16


def test_the_command_ends_at_once_with_one_line(config, redis_url, redis_client):
    pickle_of_a_training_run(config.initial_draft, config.target_path)
    env = {
        "PACELINE_REDIS_URL": redis_url,
        "PACELINE_TARGET_PATH": str(config.target_path),
        "PACELINE_DRAFT": str(config.initial_draft),
        "PACELINE_DATA_DIR": str(config.data_dir),
    }
    ended = CliRunner().invoke(app, ["learn"], env=env)
    assert ended.exit_code == 1
    assert "PACELINE_DRAFT: " in ended.stderr
    assert "got int for 'epoch'" in " ".join(ended.stderr.split())
    assert "Traceback" not in ended.stderr
    assert RedisVersionBoard(redis_client, BufferConfig()).events() == []


def test_a_data_folder_that_cannot_be_written_ends_a_learner_at_its_start(tmp_path):
    (tmp_path / "file").touch()
    require_writable(tmp_path / "new" / "data", "PACELINE_DATA_DIR")
    for folder in (tmp_path / "file", tmp_path / "file" / "data"):
        with pytest.raises(ConfigError, match=rf"PACELINE_DATA_DIR: got {folder}, expected a folder to write to; "):
            require_writable(folder, "PACELINE_DATA_DIR")
