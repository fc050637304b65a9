"""Hooks are live or the reason is given: unsupported releases, missing targets, targets of another plugin."""

import json
import socket
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from types import SimpleNamespace

import pytest
from paceline.buffer.errors import CaptureUnavailable
from paceline.buffer.settings.kinds import PacingName
from paceline.serving import (
    hook_targets,
    plugin,
    replica,
    sglang_hook_install,
    sglang_speculation,
    shared_parts,
)
from paceline.serving import supported_release as release
from paceline.serving.breaker import Breaker
from paceline.serving.clock.step_clock import StepClock
from paceline.serving.config import from_env

INSTALL = """
import sys, types
from paceline.buffer.errors import CaptureUnavailable
from paceline.serving.sglang_hook_install import install
sys.modules["toy"] = types.ModuleType("toy")
sys.modules["toy"].double = lambda x: 2 * x
seen = []
install({"toy.double": ("after", lambda result, *args: seen.append((result, args)))})
assert sys.modules["toy"].double(4) == 8 and seen == [(8, (4,))], seen
for hooks in ({"toy.double": ("before", print)}, {"toy.gone": ("after", print)}):
    try:
        install(hooks)
    except CaptureUnavailable as fault:
        print(fault)
"""


def test_hooks_run_and_targets_that_cannot_be_hooked_are_named(sglang_forks):
    taken, missing = sglang_forks.run(INSTALL).strip().splitlines()[-2:]
    assert taken == "hook targets: got ['toy.double'] already patched by another plugin, expected them free"
    assert missing.startswith("hook targets: got no ['toy.gone'] in SGLang")


#: A toy engine: `rank` has a default, `width` a declared field, `model` an instance alone, `tp_size` another object.
ENGINE = """
class Base:
    def __init__(self, draft):
        self.model: object = draft
        draft.tp_size = 2

class Runner(Base):
    rank = 0
    width: int
"""


def test_the_check_names_what_hook_bodies_read_and_the_engine_does_not_have(monkeypatch, tmp_path):
    (tmp_path / "toy_engine.py").write_text(ENGINE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(hook_targets, "TARGETS", ("toy_engine.Runner.forward", "toy_engine.Base.__init__"))
    (tmp_path / "toy_parts").mkdir()
    (tmp_path / "toy_parts" / "__init__.py").touch()
    (tmp_path / "toy_parts" / "vision.py").write_text("import toy_torchvision")
    (tmp_path / "toy_parts" / "flags.py").write_text("class Flags:\n    SKIP = True\n\nenvs = Flags()")
    used = {
        "toy_engine.Runner": "rank width model tp_size",
        "toy_engine": "Runner Walker",
        "toy_gone.Runner": "rank",
        "toy_parts.vision.Eye": "lens",
        "toy_parts.flags.envs": "SKIP",
    }
    monkeypatch.setattr(hook_targets, "USED", used)
    assert hook_targets.missing_targets() == {
        "toy_engine.Runner.forward": "'Runner' has no attribute 'forward'",
        "toy_engine.Runner.tp_size": "'Runner' has no attribute 'tp_size'",
        "toy_engine.Walker": "'toy_engine' has no attribute 'Walker'",
        "toy_gone.Runner.rank": "No module named 'toy_gone'",
        "toy_parts.vision.Eye.lens": "No module named 'toy_torchvision'",
    }


def test_without_sglang_the_error_says_what_to_install(monkeypatch):
    def absent(_):
        raise PackageNotFoundError

    monkeypatch.setattr(release, "version", absent)
    with pytest.raises(CaptureUnavailable, match=r"pip install sglang==0\.5\.23"):
        release.check_release()


#: Of weight updates.
FOLLOWING = {
    hook_targets.SELECT_RUNNERS, hook_targets.BEGIN_UPDATE, hook_targets.END_UPDATE, *hook_targets.LOADS,
    hook_targets.RECORD_UPDATE, hook_targets.NAME_VERSION, hook_targets.FLUSH_CACHE,
}  # fmt: skip
#: Of draft swaps.
SWAPPING = {hook_targets.PULL_REQUESTS, hook_targets.INIT_DISPATCHER, hook_targets.RESUME_MEMORY}
#: Of the step clock, which runs whether or not pacing sits.
CLOCK = {
    hook_targets.FORWARD, hook_targets.ACTIVATE_STEP, hook_targets.RESOLVE_TOKENS, hook_targets.PREFILL_RESULT,
    hook_targets.STREAM_OUTPUT,
}  # fmt: skip
CATCH_UP = {
    hook_targets.SKIPPED_DRAFT, hook_targets.DRAFT, hook_targets.WARM_DRAFT, hook_targets.RELEASE_CACHE,
}  # fmt: skip
#: Of counting penalties and ends by tokens.
TOKENS = {hook_targets.EAGLE_SAMPLE, hook_targets.OVERLAPS, hook_targets.FINISH}
#: Of DFLASH, in place of those around EAGLE's worker.
BLOCKS = {
    hook_targets.BLOCK_WORKER, hook_targets.BLOCK_FORWARD, hook_targets.ACCEPT_BLOCK, hook_targets.KEEP_FEATURES,
}  # fmt: skip


@pytest.fixture
def double(monkeypatch):
    """Parts that hook nothing and count their starts, in place of all that are built; the hooks are noted."""
    names = ("after_pull", "after_init_dispatcher", "after_verify", "before_draft_prefill", "after_prefill")
    part = SimpleNamespace(**dict.fromkeys((*names, "before_controller")))

    def hooking(targets, **more):
        return SimpleNamespace(hooks=lambda: dict.fromkeys(targets, ("around", None)), **more)

    followed, refused = [], []
    in_blocks = TOKENS - {hook_targets.EAGLE_SAMPLE} | {hook_targets.ADJUST_LOGITS}
    followers = {
        "target": hooking(FOLLOWING),
        "catch_up": hooking(CATCH_UP, refuse=refused.append),
        "tokens": hooking(TOKENS, fault="", block_hooks=lambda: dict.fromkeys(in_blocks, ("around", None))),
        "forwards": hooking(BLOCKS, follow=lambda *told: followed.append(told), algorithm="DFLASH"),
    }
    parts = {"swap": part, "capture": part, "pacing": part, "clock": StepClock()}
    made = SimpleNamespace(**followers, **parts, starts=0, hooks={}, followed=followed, refused=refused)

    def start():
        made.starts += 1

    made.start = start

    def build(settings, breaker, _shared, _identity):
        made.breaker = breaker
        return made

    def build_shared(settings):
        made.settings = settings
        return made

    monkeypatch.setattr(replica, "build_replica", build)
    # Other than in SGLang's scheduler process there is nothing resolved; test_sglang_speculation.py is about that.
    monkeypatch.setattr(sglang_speculation, "why_replay_is_no_proof", lambda: "")
    monkeypatch.setattr(shared_parts, "build_shared", build_shared)
    monkeypatch.setattr(sglang_hook_install, "install", made.hooks.update)
    return made


@pytest.fixture
def breakers(monkeypatch):
    """Every breaker that the plugin makes."""
    made = []
    monkeypatch.setattr(plugin, "Breaker", lambda: made.append(Breaker()) or made[-1])
    return made


SCHEDULER = SimpleNamespace(server_args=SimpleNamespace(port=30000))
SETTINGS = from_env({"PACELINE_REDIS_URL": "redis://127.0.0.1:1/0"})


@pytest.mark.parametrize("is_entry", [True, False])
@pytest.mark.parametrize("broken", ["_install_shared", "_install_capture"])
@pytest.mark.parametrize(
    ("fault", "reason"), [(RuntimeError("odd"), "RuntimeError: odd"), (CaptureUnavailable("no chain"), "no chain")]
)
@pytest.mark.usefixtures("resolved")
def test_a_fault_while_installing_opens_the_breaker_and_the_replica_still_reports(
    double, breakers, monkeypatch, fault, reason, broken, is_entry
):
    monkeypatch.setattr(plugin, "_is_entry_rank", lambda: is_entry)
    monkeypatch.setattr(plugin, broken, lambda *_, **__: (_ for _ in ()).throw(fault))
    plugin._start(SCHEDULER, SETTINGS)
    assert breakers[0].reason == (reason if is_entry or broken == "_install_shared" else "")
    assert double.starts == int(is_entry)
    assert double.settings.replica.endswith("-30000")
    assert hook_targets.DRAFT_PREFILL not in double.hooks


@pytest.mark.parametrize(
    ("ranks", "end"),
    [({}, ""), ({"dp_rank": None, "attn_dp_rank": 0}, ""), ({"dp_rank": 2}, "-dp2"), ({"attn_dp_rank": 1}, "-dp1")],
)
@pytest.mark.parametrize("given", ["", "rep", "rack 1/node:2"])
def test_every_data_parallel_rank_of_a_server_is_a_replica_of_its_own(resolved, ranks, end, given):
    resolved |= ranks
    name = plugin._replica_name(replace(SETTINGS, replica=given), SCHEDULER)
    assert name == (given or f"{socket.gethostname()}-30000") + end


@pytest.mark.usefixtures("resolved")
def test_a_name_that_no_terminal_and_no_redis_takes_is_made_one_that_they_take():
    name = plugin._replica_name(replace(SETTINGS, replica="a\udcff\x1b[2J\nb"), SCHEDULER)
    assert name == "a??[2J?b".replace("?", "\N{REPLACEMENT CHARACTER}")


@pytest.mark.usefixtures("resolved")
def test_a_replica_that_cannot_start_has_its_hooks_like_every_other_rank_and_is_off(double, monkeypatch):
    def fail():
        raise OSError("no process left")

    monkeypatch.setattr(plugin, "_is_entry_rank", lambda: True)
    double.start = fail
    plugin._start(SCHEDULER, SETTINGS)
    assert hook_targets.PULL_REQUESTS in double.hooks
    assert double.breaker.reason == "OSError: no process left"


#: The plugin's second stage on ranks of the real SGLang, a process each: prints what is live, and why capture is off.
RANKS = """
import json, os, subprocess, sys, tempfile
from types import SimpleNamespace
from sglang.srt import runtime_context
from paceline.serving import breaker, config, hook_targets, plugin
from sglang.srt.plugins.hook_registry import HookRegistry

def fail(*_, **__):
    raise OSError("nothing left")

def serve(rank, fault):
    resolved = SimpleNamespace(
        speculative_algorithm="EAGLE3", speculative_eagle_topk=1, attn_dp_size=1, pp_size=1, tp_size=2, pp_rank=0,
        attn_dp_rank=0, enable_dp_attention_local_control_broadcast=False,
        attn_tp_rank=rank, attn_cp_rank=0, disaggregation_mode="null", speculative_use_rejection_sampling=False,
        speculative_accept_threshold_single=1.0, speculative_accept_threshold_acc=1.0,
        speculative_draft_model_path="draft", model_path="target", weight_version="default",
    )
    for bag in ("get_spec", "get_parallel", "get_disagg", "get_model", "get_serving"):
        setattr(runtime_context, bag, lambda: resolved)
    match fault:
        case "no folder": tempfile.mkdtemp = fail
        case "no process": subprocess.Popen = fail
    made = breaker.Breaker()
    plugin.Breaker = lambda: made
    plugin._start(SimpleNamespace(server_args=SimpleNamespace(port=30000)), config.from_env())
    live = HookRegistry._patched.intersection(hook_targets.TARGETS)
    live = {target: [hook.__qualname__ for _, hook, _ in HookRegistry._hooks[target]] for target in live}
    print("RANK", json.dumps([rank, fault, live, made.reason]), flush=True)

for rank, fault in ((0, ""), (1, ""), (0, "no process"), (0, "no folder")):
    child = os.fork()
    if not child:
        serve(rank, fault)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""


@pytest.fixture(scope="module")
def ranks(sglang_forks, tmp_path_factory):
    """(rank, what fails on it) -> hooks that are live there, by target, and why its capture is off."""
    env = {
        "TMPDIR": str(tmp_path_factory.mktemp("ranks")),
        "PACELINE_REDIS_URL": "redis://127.0.0.1:1/0",
        "PACELINE_PACING": "sweep",
    }
    lines = [line.removeprefix("RANK ") for line in sglang_forks.run(RANKS, **env).splitlines() if line[:5] == "RANK "]
    return {(rank, fault): (hooks, reason) for rank, fault, hooks, reason in map(json.loads, lines)}


@pytest.mark.parametrize(
    ("fault", "captures", "reason"),
    [("", True, ""), ("no process", True, "OSError: nothing left"), ("no folder", False, "OSError: nothing left")],
)
def test_the_entry_rank_hooks_what_the_others_do_whatever_fails_on_it_alone(ranks, fault, captures, reason):
    hooks, said = ranks[0, fault]
    shared, nothing_said = ranks[1, ""]
    assert (said, nothing_said) == (reason, "")
    own = {hook_targets.DRAFT_PREFILL, hook_targets.FORWARD_PREFILL}
    assert hooks.keys() & own == (own if captures else set())
    assert {target: bodies for target, bodies in hooks.items() if target not in own} == shared
    assert shared.keys() == FOLLOWING | SWAPPING | CLOCK | CATCH_UP | TOKENS | {hook_targets.ADAPTIVE_CONTROLLER}


def test_a_plugin_loader_meets_no_exception(monkeypatch, caplog):
    def broken(_settings):
        raise ImportError("no module named hook_registry")

    monkeypatch.setenv("PACELINE_REDIS_URL", "redis://127.0.0.1:1/0")
    monkeypatch.setattr(plugin, "_hook_scheduler", broken)
    plugin.register()
    assert "capture and swaps are off" in caplog.text
    assert "no module named hook_registry" in caplog.text


@pytest.mark.parametrize(
    ("pacing", "is_entry", "count"), [("goodput", True, 28), ("off", True, 27), ("goodput", False, 26)]
)
@pytest.mark.usefixtures("resolved")
def test_every_rank_is_paced_unless_pacing_is_off(double, pacing, is_entry, count):
    plugin._install(replace(SETTINGS, pacing=PacingName(pacing)), Breaker(), is_entry_rank=is_entry)
    installed = double.hooks
    assert set(installed) < set(hook_targets.TARGETS)
    assert len(installed) == count
    paced = {hook_targets.ADAPTIVE_CONTROLLER}
    assert installed.keys() & paced == (paced if pacing == "goodput" else set())
    assert installed.keys() & CLOCK == CLOCK
    early = {hook_targets.ADAPTIVE_CONTROLLER, hook_targets.FORWARD}
    assert all(when == "before" for target, (when, _) in installed.items() if target in early)


@pytest.mark.parametrize("is_entry", [True, False])
def test_blocks_are_followed_in_their_own_worker_and_capture_hears_of_them_on_the_entry_rank(
    double, monkeypatch, is_entry
):
    monkeypatch.setattr(sglang_speculation, "drafts_blocks", lambda: True)
    monkeypatch.setattr(sglang_speculation, "check_speculation", lambda: None)
    breaker = Breaker()
    plugin._install(SETTINGS, breaker, is_entry_rank=is_entry)
    results = CLOCK - {hook_targets.FORWARD, hook_targets.ACTIVATE_STEP}
    tokens = TOKENS - {hook_targets.EAGLE_SAMPLE} | {hook_targets.ADJUST_LOGITS}
    assert double.hooks.keys() == FOLLOWING | SWAPPING | BLOCKS | results | tokens
    assert set(double.hooks) < set(hook_targets.TARGETS)
    assert double.followed == ([(double.capture, breaker)] if is_entry else [])
    assert double.refused == ["the server drafts all it can in every round (DFLASH)"]


def test_without_a_model_rounds_come_as_those_of_eagle_do_and_no_hidden_states_are_kept(double, resolved, caplog):
    resolved["speculative_algorithm"] = "NGRAM"
    double.forwards.hooks = lambda: {hook_targets.NGRAM_FORWARD: ("around", None)}
    breaker = Breaker()
    settings = plugin._with_kept_states(SETTINGS)
    plugin._install(settings, breaker, is_entry_rank=True)
    results = CLOCK - {hook_targets.FORWARD, hook_targets.ACTIVATE_STEP}
    assert double.hooks.keys() == FOLLOWING | SWAPPING | results | TOKENS | {hook_targets.NGRAM_FORWARD}
    assert double.followed == [(double.capture, breaker)]
    assert double.tokens.after_verify is double.capture.after_verify
    assert (settings.capture_features, breaker.reason) == (False, "")
    assert "traces hold tokens alone, as by PACELINE_CAPTURE_FEATURES=0" in caplog.text


@pytest.mark.guarantee("target-updated")
def test_updates_are_guarded_on_a_server_whose_speculation_cannot_be_captured(double, resolved):
    resolved["speculative_algorithm"] = "STANDALONE"
    breaker = Breaker()
    plugin._install(SETTINGS, breaker, is_entry_rank=False)
    assert "got --speculative-algorithm STANDALONE" in breaker.reason
    assert double.hooks.keys() == FOLLOWING
