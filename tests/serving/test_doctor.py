"""What the doctor finds, says to do, and ends with; tests/e2e/test_refusals.py asks it about the real SGLang."""

import json
import shutil
import sys
from types import SimpleNamespace

import pytest
import torch
from paceline.buffer.finding import Finding, Level
from paceline.serving import supported_release
from paceline.serving.config import from_env
from paceline.serving.launch import doctor, sglang_quantisation
from safetensors.torch import save_file


@pytest.fixture
def supported(monkeypatch):
    monkeypatch.setattr(supported_release, "version", lambda _: supported_release.SUPPORTED[-1])
    monkeypatch.setattr(doctor, "missing_targets", dict)


def found(settings, flags=()):
    return {finding.topic: finding for finding in doctor.examine(flags, settings)}


def test_an_unsupported_release_ends_the_examination(monkeypatch):
    monkeypatch.setattr(supported_release, "version", lambda _: "0.6.0")
    (finding,) = doctor.examine([], from_env({}))
    assert finding.level is Level.WRONG
    assert finding.sentence.startswith("capture, swaps and pacing are off: SGLang: got version 0.6.0, expected one of")


@pytest.mark.parametrize("has_gpu", [False, True])
def test_missing_hook_targets_are_named_once_for_every_reason(monkeypatch, supported, has_gpu):
    missing = {"sglang.a": "no a", "sglang.b.c": "No module named 'x'", "sglang.b.d": "No module named 'x'"}
    monkeypatch.setattr(doctor, "missing_targets", lambda: missing)
    monkeypatch.setattr(doctor, "is_accelerator_present", lambda: has_gpu)
    (finding,) = doctor.examine([], from_env({}))
    named = "so all is off: no a, for sglang.a; No module named 'x', for sglang.b.c and 1 more"
    assert finding.level is Level.WRONG
    assert finding.sentence.partition("lacks what paceline hooks, ")[2] == named + (
        "" if has_gpu else "; no GPU is visible: add `--device cpu` to the flags of a server on this CPU"
    )


def test_without_flags_nothing_is_said_of_the_server(supported):
    findings = found(from_env({}))
    assert [topic for topic, one in findings.items() if one.level is Level.UNKNOWN] == [*doctor._BY_SERVER]


@pytest.fixture
def sglang_loads(monkeypatch):
    """Names of the plugins that SGLang's loader finds, none at first."""
    names = set()
    loader = SimpleNamespace(GENERAL_PLUGINS_GROUP="group", load_plugins_by_group=lambda _: dict.fromkeys(names))
    monkeypatch.setitem(sys.modules, "sglang.srt.plugins", loader)
    return names


URL = {"PACELINE_REDIS_URL": "redis://127.0.0.1:1/0"}


@pytest.mark.parametrize("is_given", [True, False])
@pytest.mark.parametrize("algorithm", ["EAGLE3", "STANDALONE"])
@pytest.mark.parametrize("is_seeded", [True, False])
def test_answers(resolved, is_given, algorithm, is_seeded):
    resolved["speculative_algorithm"] = algorithm
    bag = sys.modules["sglang.srt.runtime_context"].get_exec()
    bag.features.enable_custom_logit_processor = bag.deterministic.enable_deterministic_inference = is_seeded
    finding = doctor._answers(None, from_env(URL if is_given else {}))
    counts = is_given and algorithm == "EAGLE3"
    assert (finding.level is Level.OK) == (counts and not is_seeded)
    assert ("SGLang counts by rounds" in finding.sentence) == (not counts)
    assert ("seed" in finding.sentence) == ("custom logit processors" in finding.sentence) == is_seeded


@pytest.mark.parametrize(
    ("changes", "environ", "level", "said"),
    [
        ({}, URL, Level.OK, "on, for 100% of requests"),
        ({}, {}, Level.WRONG, "capture is off, and swaps with it: set PACELINE_REDIS_URL"),
        ({"speculative_algorithm": None}, URL, Level.WRONG, "got --speculative-algorithm None, expected EAGLE3"),
        ({"disaggregation_mode": "decode"}, URL, Level.WRONG, "got --disaggregation-mode decode"),
        ({}, {**URL, "PACELINE_CAPTURE_FEATURES": "0"}, Level.OK, "without hidden states, which learners recompute"),
        ({}, {**URL, "PACELINE_FEATURE_FORMAT": "fp8"}, Level.OK, "on, with hidden states in float8_e4m3, for 100%"),
    ],
)
def test_capture(resolved, sglang_loads, changes, environ, level, said):
    sglang_loads |= {"paceline", "other"}
    resolved |= changes
    finding = doctor._capture(None, from_env(environ))
    assert finding.level is level
    assert said in finding.sentence


def test_a_plugin_that_sglang_does_not_load_captures_nothing(resolved, sglang_loads):
    sglang_loads.add("other")
    finding = doctor._capture(None, from_env(URL))
    assert finding.level is Level.WRONG
    assert "SGLang loads the plugins ['other'], expected paceline among them; name it in SGLANG_" in finding.sentence


@pytest.mark.parametrize(
    ("mode", "given", "level", "said"),
    [
        ("disk", {"log_requests": True}, Level.OK, "PACELINE_RETENTION=memory forbids it"),
        ("memory", {"log_requests": False, "crash_dump_folder": ""}, Level.OK, "writes no prompt to a disk"),
        ("memory", {"log_requests": True, "crash_dump_folder": "/x"}, Level.WRONG, "--crash-dump-folder and --log-req"),
    ],
)
def test_flags_by_which_sglang_writes_prompts_are_wrong_where_nothing_may_reach_a_disk(mode, given, level, said):
    flags = dict.fromkeys(doctor.WRITING_FLAGS) | given
    finding = doctor._retention(SimpleNamespace(**flags), from_env({"PACELINE_RETENTION": mode}))
    assert finding.level is level
    assert said in finding.sentence


@pytest.mark.parametrize(
    ("path", "level", "said"),
    [
        (None, Level.WRONG, "got no --speculative-draft-model-path"),
        ("gone", Level.WRONG, "off, so that no learned draft would ever serve: "),
        ("draft", Level.OK, "on: learned drafts replace the one in"),
    ],
)
def test_swap(resolved, tiny_speculator, tmp_path, path, level, said):
    folder = {None: None, "gone": str(tmp_path / "gone"), "draft": str(tiny_speculator.draft)}[path]
    resolved |= {"speculative_draft_model_path": folder, "speculative_draft_model_revision": None}
    finding = doctor._swap(SimpleNamespace(download_dir=None), from_env({"PACELINE_CACHE_DIR": str(tmp_path)}))
    assert finding.level is level
    assert said in finding.sentence


def test_of_an_mtp_layer_that_nobody_learns_nothing_is_read_but_the_config(resolved, tmp_path):
    (tmp_path / "config.json").write_text('{"architectures": ["Qwen3NextForCausalLM"]}')
    resolved |= {"speculative_algorithm": "EAGLE", "speculative_draft_model_path": str(tmp_path)}
    finding = doctor._swap(SimpleNamespace(download_dir=None), from_env({"PACELINE_CACHE_DIR": str(tmp_path)}))
    assert (finding.level, finding.sentence) == (Level.WRONG, "off, since nothing is captured")


@pytest.mark.parametrize(
    ("layers", "level"),
    [
        ([0, 1, 2], Level.OK),
        ([0, 1, 3], Level.OK),  # the last one: some of SGLang's models have it
        ([1, 2, 4], Level.WRONG),
        ([1, 1, 2], Level.WRONG),
        ([-1, 1, 2], Level.WRONG),
    ],
)
def test_a_draft_reads_different_layers_of_its_target(resolved, tiny_speculator, tmp_path, layers, level):
    draft = tmp_path / "draft"
    shutil.copytree(tiny_speculator.draft, draft)
    source = json.loads((draft / "config.json").read_text())
    source["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": layers}
    (draft / "config.json").write_text(json.dumps(source))
    resolved |= {"speculative_draft_model_path": str(draft), "speculative_draft_model_revision": None}
    finding = doctor._swap(SimpleNamespace(download_dir=None), from_env({"PACELINE_CACHE_DIR": str(tmp_path)}))
    assert finding.level is level
    assert ("different layers of the target, 0 to 3" in finding.sentence) is (level is Level.WRONG)


def model_of(monkeypatch, target=None, draft=None, **draft_has):
    """Have SGLang load target and draft in these quantisations, None of which is none, as far as configs tell."""
    common = {"num_hidden_layers": 4, "dtype": torch.float16}
    tied = SimpleNamespace(tie_word_embeddings=False)
    models = {
        False: SimpleNamespace(**common, quantization=target, hf_text_config=tied),
        True: SimpleNamespace(**common | {"quantization": draft, "hf_config": SimpleNamespace(), **draft_has}),
    }
    made = SimpleNamespace(from_server_args=lambda *_, is_draft_model=False, **__: models[is_draft_model])
    monkeypatch.setitem(sys.modules, "sglang.srt.configs.model_config", SimpleNamespace(ModelConfig=made))


class UnquantizedLinearMethod:
    """As SGLang's."""


@pytest.mark.parametrize(
    ("draft", "method", "said"),
    [
        ({}, None, ""),
        ({"draft": "modelopt_fp4"}, UnquantizedLinearMethod(), ""),  # of experts alone
        (
            {"draft": "fp8"},
            8,
            "got fp8 for the draft, by int, expected no quantisation; add --speculative-draft-model-",
        ),
        (
            {"draft": "awq"},
            None,
            "will not start: it cannot load the draft in awq: ValueError: no file; add --speculati",
        ),
        ({"draft": "fp8", "hf_config": SimpleNamespace(quantization_config={"a": 1})}, 8, "; start it with a draft th"),
        ({"dtype": torch.bfloat16}, None, "got torch.bfloat16 for the draft, expected torch.float16 as for the targe"),
        ({"dtype": torch.bfloat16}, None, "; add --dtype float16"),
    ],
)
def test_a_draft_that_sglang_would_quantise_or_not_load_takes_no_learned_one(
    resolved, monkeypatch, tiny_speculator, tmp_path, draft, method, said
):
    def linear_method(_):
        if method is None:
            raise ValueError("no file")
        return method

    model_of(monkeypatch, **draft)
    plain = SimpleNamespace(UnquantizedLinearMethod=UnquantizedLinearMethod)
    monkeypatch.setitem(sys.modules, "sglang.srt.layers.quantization.unquant", plain)
    monkeypatch.setattr(sglang_quantisation, "_linear_method", linear_method)
    resolved |= {"speculative_draft_model_path": str(tiny_speculator.draft), "speculative_draft_model_revision": None}
    finding = doctor._swap(SimpleNamespace(download_dir=None), from_env({"PACELINE_CACHE_DIR": str(tmp_path)}))
    assert finding.level is (Level.WRONG if said else Level.OK)
    assert said in finding.sentence


@pytest.mark.parametrize(
    ("quantisation", "changes", "level", "said"),
    [
        (None, {}, Level.OK, "not quantised"),
        (
            "awq",
            {},
            Level.OK,
            "in awq: hidden states and verdicts are those of the quantised target; its embedding and",
        ),
        ("fp8", {"lm_head.weight": torch.int8}, Level.NOTE, "a learner cannot read lm_head.weight: got I8, expected"),
        ("gptq", {"lm_head.weight": None}, Level.NOTE, "read lm_head.weight: got SafetensorError: "),
    ],
)
def test_target(monkeypatch, tiny_speculator, tmp_path, quantisation, changes, level, said):
    model_of(monkeypatch, quantisation)
    embedding = torch.ones(2, 2)
    types = {"model.embed_tokens.weight": torch.bfloat16, "lm_head.weight": torch.float16} | changes
    stored = {name: embedding.to(dtype) for name, dtype in types.items() if dtype}
    save_file(stored, tmp_path / "model.safetensors")
    given = SimpleNamespace(model_path=str(tmp_path), revision=None, download_dir=None)
    finding = sglang_quantisation.target_finding(given)
    assert finding.level is level
    assert said in finding.sentence


def test_of_a_target_that_is_not_on_this_machine_it_cannot_tell_what_a_learner_reads(monkeypatch):
    model_of(monkeypatch, "awq")
    given = SimpleNamespace(model_path="no/such", revision=None, download_dir=None)
    finding = sglang_quantisation.target_finding(given)
    assert finding.level is Level.UNKNOWN
    assert "cannot tell whether a learner can read it: no/such: got neither a folder" in finding.sentence


REJECTS = {"speculative_use_rejection_sampling": True}


@pytest.mark.parametrize(
    ("changes", "environ", "level", "said"),
    [
        ({}, {}, Level.OK, "the gate judges by it"),
        ({}, {"PACELINE_FEATURE_FORMAT": "int8"}, Level.NOTE, "that are rounded; the gate judges by it, and no replay"),
        ({}, {"PACELINE_CAPTURE_FEATURES": "0"}, Level.NOTE, "that are recomputed; the gate judges by it, and no"),
        ({"speculative_eagle_topk": 4}, {}, Level.OK, "the gate judges by it"),
        (REJECTS, {}, Level.NOTE, "verified by the rule rejection"),
        (REJECTS, {}, Level.NOTE, "a learned draft goes live after a canary, on a single server in turns of 30 s"),
        (REJECTS, {"PACELINE_CANARY_TURN_S": "0"}, Level.NOTE, "which needs a second server"),
    ],
)
def test_replay(resolved, changes, environ, level, said):
    resolved |= changes
    finding = doctor._replay(None, from_env(environ))
    assert finding.level is level
    assert said in finding.sentence


@pytest.mark.parametrize(
    ("changes", "environ", "level", "said"),
    [
        ({"speculative_adaptive": False}, {}, Level.NOTE, "off: every round drafts 3 steps; --speculative-adaptive"),
        ({}, {}, Level.OK, "the policy goodput chooses"),
        ({}, {"PACELINE_PACING": "off"}, Level.NOTE, "off by PACELINE_PACING"),
        ({"tp_size": 2}, {}, Level.WRONG, "several ranks need PACELINE_PACING_COSTS"),
        ({"tp_size": 2}, {"PACELINE_PACING": "sweep"}, Level.OK, "the policy sweep chooses"),
    ],
)
def test_pacing(resolved, changes, environ, level, said):
    resolved |= {"speculative_adaptive": True, "speculative_num_steps": 3, "tp_size": 1} | changes
    finding = doctor._pacing(None, from_env(environ))
    assert finding.level is level
    assert said in finding.sentence


@pytest.mark.parametrize(("backend", "level"), [("triton", Level.NOTE), ("fa3", Level.OK)])
def test_pacing_on_attention_that_has_no_plain_step(resolved, backend, level):
    resolved |= {"speculative_adaptive": True, "tp_size": 1}
    finding = doctor._pacing(SimpleNamespace(attention_backend=backend), from_env({}))
    assert (finding.level, "is no plain step" in finding.sentence) == (level, level is Level.NOTE)


def test_the_report_is_one_line_or_one_object_per_finding(monkeypatch, capsys):
    answer = [Finding("capture", Level.NOTE, "on"), Finding("Redis", Level.WRONG, "gone")]
    monkeypatch.setattr(doctor, "examine", lambda flags, _: iter(answer if flags == ["--x"] else []))
    assert doctor.main(["--x"]) == 1
    assert capsys.readouterr().out == "note     capture   on\nwrong    Redis     gone\n"
    assert doctor.main(["--json", "--x"]) == 1
    said = [SimpleNamespace(**json.loads(line)) for line in capsys.readouterr().out.splitlines()]
    assert [(one.topic, one.level, one.sentence) for one in said] == [
        ("capture", "note", "on"),
        ("Redis", "wrong", "gone"),
    ]


def test_what_ends_the_examination_is_a_finding_after_those_before_it(monkeypatch, capsys):
    def broken(_flags, _settings):
        yield Finding("SGLang", Level.OK, "fine")
        raise PermissionError(13, "Permission denied", "/home/x")

    monkeypatch.setattr(doctor, "examine", broken)
    assert doctor.main(["--debug"]) == 1
    said = capsys.readouterr()
    assert said.out.splitlines()[0] == "ok       SGLang    fine"
    assert said.out.splitlines()[1].startswith("wrong    doctor    /home/x: got Permission denied, expected the right")
    assert "Traceback" in said.err


def test_pages_on_the_cpu_host_are_wrong_before_sglang_is_asked(monkeypatch, supported):
    monkeypatch.setenv("PACELINE_CPU_HOST", "1")
    found = [*doctor.examine(["--page-size", "16"], from_env({}))]
    assert (found[1].topic, found[1].level) == ("flags", Level.WRONG)
    assert found[1].sentence.startswith("--page-size: got 16, expected 1 on a CPU")


def test_a_setting_out_of_range_is_the_one_finding(monkeypatch, capsys):
    monkeypatch.setenv("PACELINE_SAMPLE_RATE", "7")
    assert doctor.main([]) == 1
    assert capsys.readouterr().out.startswith("wrong    settings  PACELINE_SAMPLE_RATE: got '7'")
