"""A first draft for a target that has none: its sizes, the tokens it may propose, and what the command prints."""

import json
from collections import Counter

import numpy as np
import pytest
import torch
from paceline.buffer.config import BufferConfig
from paceline.buffer.errors import ConfigError
from paceline.buffer.stream.redis_stream import RedisTraceBuffer
from paceline.cli import app
from paceline.learner.first_draft import make_first_draft
from paceline.learner.model.draft_io import load_draft, load_target_embedding
from paceline.learner.model.draft_vocabulary import choose, count_tokens
from paceline.rig.models.target import train_tokenizer
from paceline.serving.sglang_speculation import CHAIN_FLAGS
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer, PreTrainedTokenizerFast
from twins.memory_stream import MemoryTraceBuffer
from typer.testing import CliRunner

WORDS, HIDDEN = 300, 16
TEXT = "the cat sat on the mat\nthe dog sat on the cat\n" * 20
TARGET = {
    "hidden_size": HIDDEN, "intermediate_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6,
    "num_hidden_layers": 32, "vocab_size": WORDS, "rms_norm_eps": 1e-5, "max_position_embeddings": 512,
    "rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}, "tie_word_embeddings": True, "dtype": "float16",
    "bos_token_id": 1, "eos_token_id": [2, 299],
}  # fmt: skip


def written_target(folder, **changes):
    folder.mkdir()
    config = TARGET | changes
    sizes = torch.randn(WORDS, config["hidden_size"], generator=torch.Generator().manual_seed(1))
    tensors = {"model.embed_tokens.weight": sizes, "model.norm.weight": torch.ones(config["hidden_size"])}
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture
def target(tmp_path):
    """A target with a byte-level tokenizer; its head is its embedding."""
    folder = written_target(tmp_path / "target")
    PreTrainedTokenizerFast(tokenizer_object=train_tokenizer([TEXT], WORDS)).save_pretrained(folder)
    return folder


@pytest.fixture
def text(tmp_path):
    (tmp_path / "text").write_text(TEXT)
    return tmp_path / "text"


def most_frequent(target, text, size):
    """By counting one line at a time; the ids that begin and end a text first."""
    tokenizer, counts = AutoTokenizer.from_pretrained(target), Counter()
    for line in text.read_text().splitlines(keepends=True):
        counts.update(tokenizer(line, add_special_tokens=False).input_ids)
    ranked = sorted(set(range(WORDS)) - {1, 2, 299}, key=lambda token: (-counts[token], token))
    return sorted([1, 2, 299, *ranked[: size - 3]])


def test_a_draft_has_the_sizes_of_its_target_and_the_layers_that_sglang_captures(tmp_path, target):
    made = make_first_draft(target, tmp_path / "draft")
    draft = load_draft(made.folder, load_target_embedding(target))
    assert (draft.config.hidden_size, draft.config.head_dim, draft.config.feature_width) == (HIDDEN, 6, 3 * HIDDEN)
    config = json.loads((made.folder / "config.json").read_text())
    # Outputs of these are the inputs of layers 2, 32 / 2 and 32 - 3, which SGLang takes when a draft names none.
    assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [1, 15, 28]
    assert config["rope_parameters"] == TARGET["rope_parameters"]
    assert {tensor.dtype for tensor in load_file(made.folder / "model.safetensors").values()} == {
        torch.float16, torch.int64, torch.bool,
    }  # fmt: skip
    assert torch.equal(draft.lm_head.weight, load_target_embedding(target).half().float())
    assert (made.vocabulary.ids, made.vocabulary.coverage) == (tuple(range(WORDS)), None)


def test_its_tokens_are_the_most_frequent_ones_of_the_text(tmp_path, target, text):
    made = make_first_draft(target, tmp_path / "draft", [text, text], size=20)
    assert list(made.vocabulary.ids) == most_frequent(target, text, 20)
    draft = load_draft(tmp_path / "draft", load_target_embedding(target))
    assert draft.draft_to_target_V.tolist() == list(made.vocabulary.ids)
    assert draft.config.draft_vocab_size == 20


def test_its_tokens_are_the_most_frequent_ones_of_the_traffic(tmp_path, target, make_trace):
    buffer = MemoryTraceBuffer(BufferConfig())
    traces = [make_trace(i, vocab=40, rounds=20) for i in range(5)]
    buffer.append(traces)
    counts = Counter(token for trace in traces for token in trace.tokens.tolist())
    made = make_first_draft(target, tmp_path / "draft", traffic=buffer, size=10)
    ranked = sorted(set(counts) - {1, 2, 299}, key=lambda token: (-counts[token], token))
    assert list(made.vocabulary.ids) == sorted([1, 2, 299, *ranked[:7]])
    assert made.vocabulary.counted == sum(counts.values())
    assert made.vocabulary.coverage == pytest.approx(sum(counts[i] for i in made.vocabulary.ids) / counts.total())
    assert len(list(buffer.replay(9))) == buffer.counts().pending == 5  # nothing was claimed


def test_equally_frequent_tokens_are_taken_by_their_number():
    counts = count_tokens([[5, 5, 9], [7, 7], [9, 3]], 12)
    assert counts.tolist() == [0, 0, 0, 1, 0, 2, 0, 2, 0, 2, 0, 0]
    assert choose(counts, 2, [], print).ids == (5, 7)
    assert choose(counts, 4, [0, 99], print).ids == (0, 5, 7, 9)
    assert choose(counts, 6, [], print).ids == (0, 1, 3, 5, 7, 9)


def test_without_a_size_a_small_vocabulary_is_whole_and_a_large_one_only_without_text():
    notes = []
    some = np.ones(60_000, np.int64)
    assert len(choose(some[:50_000], None, [], notes.append).ids) == 50_000
    assert len(choose(some, None, [], notes.append).ids) == 32_000
    assert notes == []
    assert len(choose(0 * some, None, [], notes.append).ids) == 60_000
    assert notes == ["the draft has all of the target's 60000 tokens; with text it needs 32000, and is faster"]


@pytest.mark.parametrize(
    ("counted", "size", "message"),
    [
        (0, 5, "got size 5 of 9 and no text, expected text to choose them by"),
        (1, 10, "got size 10, expected at most the target's, 9"),
    ],
)
def test_a_size_that_cannot_be_is_refused(counted, size, message):
    with pytest.raises(ConfigError, match=message):
        choose(np.full(9, counted), size, [], print)


def test_a_token_outside_the_vocabulary_is_of_another_target():
    with pytest.raises(ConfigError, match="got token 12, expected ids below the target's vocab_size, 12"):
        count_tokens([[3, 12]], 12)


@pytest.mark.parametrize(
    ("rope", "theta"),
    [
        ({"rope_parameters": {"rope_type": "longrope", "rope_theta": 7.0}}, 7.0),
        ({"rope_parameters": None, "rope_theta": 7, "rope_scaling": {"type": "mrope"}}, 7.0),
        ({"rope_parameters": {"full_attention": {"rope_type": "yarn"}, "rope_type": "proportional"}}, 1e4),
    ],
)
def test_a_rope_that_no_draft_has_is_replaced(tmp_path, rope, theta):
    written_target(tmp_path / "target", **rope)
    make_first_draft(tmp_path / "target", tmp_path / "draft")
    config = json.loads((tmp_path / "draft" / "config.json").read_text())
    assert config["rope_parameters"] == {"rope_type": "default", "rope_theta": theta}


def test_a_rope_that_a_draft_has_is_taken_over(tmp_path):
    rope = {
        "rope_type": "llama3", "factor": 8.0, "rope_theta": 7.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 99.0,
    }  # fmt: skip
    written_target(tmp_path / "target", rope_parameters=rope)
    make_first_draft(tmp_path / "target", tmp_path / "draft")
    assert json.loads((tmp_path / "draft" / "config.json").read_text())["rope_parameters"] == rope


def test_a_target_with_latent_attention_gets_a_draft_with_usual_heads(tmp_path):
    sizes = {"hidden_size": 256, "num_attention_heads": 128, "kv_lora_rank": 512, "head_dim": None}
    written_target(tmp_path / "target", **sizes, num_key_value_heads=128)
    make_first_draft(tmp_path / "target", tmp_path / "draft")
    config = load_draft(tmp_path / "draft", load_target_embedding(tmp_path / "target")).config
    assert (config.num_attention_heads, config.num_key_value_heads, config.head_dim) == (2, 2, 128)


def test_a_text_model_inside_a_larger_one_is_the_target(tmp_path):
    folder = written_target(tmp_path / "target")
    (folder / "config.json").write_text(json.dumps({"model_type": "vision", "text_config": TARGET}))
    assert make_first_draft(folder, tmp_path / "draft").words == WORDS


BAD = {
    "out": (lambda t, x: t.parent.joinpath("draft").mkdir(), "draft: got a folder that exists, expected a new one"),
    "no config": (lambda t, x: (t / "config.json").unlink(), "expected a readable file"),
    "broken config": (lambda t, x: (t / "config.json").write_text("{"), "expected the config.json of a target"),
    "no vocabulary": (lambda t, x: (t / "config.json").write_text("{}"), "got vocab_size None"),
    "no tokenizer": (lambda t, x: [f.unlink() for f in t.glob("tokenizer*")], "expected the tokenizer of the target"),
    "no text": (lambda t, x: x.unlink(), "expected a text file in UTF-8"),
    "no UTF-8": (lambda t, x: x.write_bytes(b"\xff\xfe"), "expected a text file in UTF-8"),
    "no weights": (
        lambda t, x: (t / "model.safetensors").unlink(),
        "expected a tensor named model.embed_tokens.weight",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_is_refused_with_what_was_expected_and_writes_nothing(tmp_path, target, text, name):
    spoil, message = BAD[name]
    spoil(target, text)
    result = CliRunner().invoke(
        app, ["draft", "init", str(target), "--out", str(tmp_path / "draft"), "--text", str(text)]
    )
    assert result.exit_code == 1
    assert message in " ".join(result.stderr.split())
    assert not (tmp_path / "draft" / "config.json").exists()


def test_the_command_prints_how_to_serve_and_train_it(tmp_path, target, text):
    out = tmp_path / "my draft"
    words = ["draft", "init", str(target), "--out", str(out), "--text", str(text), "--vocab", "250"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    first, serve, train = result.stdout.splitlines()
    assert first.startswith(f"{out}: an untrained draft that may propose 250 of 300 tokens, 100.0% of the ")
    assert serve == (
        f"serve it:  PACELINE_REDIS_URL=redis://... paceline serve -- --model-path {target} "
        "--speculative-algorithm EAGLE3 "
        f"--speculative-draft-model-path '{out}' {CHAIN_FLAGS}"
    )
    assert train == (
        f"train it:  PACELINE_REDIS_URL=redis://... PACELINE_TARGET_PATH={target} PACELINE_DRAFT='{out}' paceline learn"
    )
    assert load_draft(out, load_target_embedding(target)).config.draft_vocab_size == 250


def test_the_command_reads_the_traffic_in_redis(tmp_path, target, redis_url, redis_client, make_trace):
    RedisTraceBuffer(redis_client, BufferConfig(speculator="chat")).append([make_trace(3, vocab=40)])
    env = {"PACELINE_REDIS_URL": redis_url, "PACELINE_SPECULATOR": "chat"}
    words = ["draft", "init", str(target), "--out", str(tmp_path / "draft"), "--traffic", "--vocab", "60"]
    result = CliRunner().invoke(app, words, env=env)
    assert result.exit_code == 0, result.output
    assert f"100.0% of the {len(make_trace(3, vocab=40).tokens)} that were counted" in result.stdout


def test_where_no_token_may_reach_a_disk_no_draft_is_made_of_the_traffic(tmp_path, target):
    words = ["draft", "init", str(target), "--out", str(tmp_path / "draft"), "--traffic"]
    result = CliRunner().invoke(app, words, env={"PACELINE_RETENTION": "memory"})
    assert result.exit_code == 1
    assert "--traffic: got PACELINE_RETENTION=memory, expected disk" in result.output
    assert not (tmp_path / "draft").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_attention_heads": 0}, "config.json: num_attention_heads: got 0, expected a whole number above 0"),
        ({"num_hidden_layers": "32"}, "num_hidden_layers: got '32', expected a whole number above 0"),
        ({"num_key_value_heads": 3}, "num_key_value_heads: got 3, expected a divisor of num_attention_heads"),
        ({"vocab_size": -1}, "got vocab_size -1 in its config, expected a whole number above 0"),
        ({"text_config": "llama"}, "text_config: got 'llama', expected a JSON object or null"),
        ({"rope_parameters": {"rope_theta": "x"}}, "rope_theta: got 'x', expected a number"),
    ],
)
def test_a_target_that_no_draft_can_be_made_for_is_named(tmp_path, changes, message):
    target = written_target(tmp_path / "target", **changes)
    with pytest.raises(ConfigError, match=message):
        make_first_draft(target, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_place_that_cannot_be_written_is_named_as_the_option(tmp_path, target, text):
    with pytest.raises(ConfigError, match=r"--out .*/text/draft: .*expected a folder; move away what is there"):
        make_first_draft(target, text / "draft", [text])


def test_a_target_with_a_layer_that_drafts_needs_no_draft_and_it_is_said_how_to_start(tmp_path, target):
    source = json.loads((target / "config.json").read_text()) | {"architectures": ["MiMoForCausalLM"]}
    (target / "config.json").write_text(json.dumps(source))
    with pytest.raises(ConfigError, match=f"NEXTN --speculative-draft-model-path {target}, and set PACELINE_DRAFT"):
        make_first_draft(target, tmp_path / "out")
    assert not (tmp_path / "out").exists()
