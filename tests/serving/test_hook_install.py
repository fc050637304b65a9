"""Hooks are live or the reason is given: unsupported releases, missing targets, targets of another plugin."""

import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from types import SimpleNamespace

import pytest
from paceline.buffer.errors import CaptureUnavailable
from paceline.buffer.settings.pacing_names import PacingName
from paceline.serving import hook_targets, plugin, replica, sglang_hook_install
from paceline.serving import supported_release as release
from paceline.serving.config import from_env

#: Run apart: SGLang's registry patches modules for the life of a process.
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


def test_hooks_run_and_targets_that_cannot_be_hooked_are_named():
    ended = subprocess.run([sys.executable, "-c", INSTALL], capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    taken, missing = ended.stdout.strip().splitlines()[-2:]
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
    used = {"toy_engine.Runner": "rank width model tp_size", "toy_engine": "Runner Walker", "toy_gone.Runner": "rank"}
    monkeypatch.setattr(hook_targets, "USED", used)
    assert hook_targets.missing_targets() == {
        "toy_engine.Runner.forward": "'Runner' has no attribute 'forward'",
        "toy_engine.Runner.tp_size": "'Runner' has no attribute 'tp_size'",
        "toy_engine.Walker": "'toy_engine' has no attribute 'Walker'",
        "toy_gone.Runner.rank": "No module named 'toy_gone'",
    }


def test_an_unsupported_version_is_named(monkeypatch):
    monkeypatch.setattr(release, "version", lambda _: "0.6.0")
    supported = r"\['0.5.21', '0.5.22', '0.5.23'\]"
    with pytest.raises(CaptureUnavailable, match=f"SGLang: got version 0.6.0, expected one of {supported}"):
        release.check_release()


def test_without_sglang_the_error_says_what_to_install(monkeypatch):
    def absent(_):
        raise PackageNotFoundError

    monkeypatch.setattr(release, "version", absent)
    with pytest.raises(CaptureUnavailable, match=r"pip install sglang==0\.5\.21"):
        release.check_release()


@pytest.fixture
def resolved(monkeypatch):
    """Set what SGLang resolved; tests/e2e/test_4_refusals.py and test_9_pacing.py ask the real one."""
    found = {"speculative_algorithm": "EAGLE3", "speculative_eagle_topk": 1, "dp_size": 1, "pp_size": 1}
    context = SimpleNamespace(get_spec=lambda: SimpleNamespace(**found), get_parallel=lambda: SimpleNamespace(**found))
    monkeypatch.setitem(sys.modules, "sglang.srt.runtime_context", context)
    return found


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"speculative_algorithm": None}, "got --speculative-algorithm None, expected EAGLE3"),
        ({"speculative_eagle_topk": 4}, f"got --speculative-eagle-topk 4, .*, expected 1; .* {plugin.CHAIN_FLAGS}"),
        ({"speculative_use_block_verification": True}, "got --speculative-use-block-verification, expected it off"),
        ({"dp_size": 2}, "got --dp-size 2"),
        ({"pp_size": 2}, "--pp-size 2"),
    ],
)
def test_a_server_that_cannot_be_captured_is_refused_with_its_flags(resolved, changes, message):
    plugin._check_algorithm()
    resolved |= changes
    with pytest.raises(CaptureUnavailable, match=message):
        plugin._check_algorithm()


@pytest.fixture
def double(monkeypatch):
    """A replica that hooks nothing and counts its starts, in place of every one that is built."""
    names = ("after_pull", "after_init_dispatcher", "after_verify", "before_draft_prefill", "after_prefill")
    part = SimpleNamespace(**dict.fromkeys((*names, "before_controller", "before_forward")))
    made = SimpleNamespace(swap=part, capture=part, pacing=part, starts=0)

    def start():
        made.starts += 1

    made.start = start

    def build(settings, breaker):
        made.settings, made.breaker = settings, breaker
        return made

    monkeypatch.setattr(replica, "build_replica", build)
    return made


SCHEDULER = SimpleNamespace(server_args=SimpleNamespace(port=30000))
SETTINGS = from_env({"PACELINE_REDIS_URL": "redis://127.0.0.1:1/0"})


@pytest.mark.parametrize("is_entry", [True, False])
@pytest.mark.parametrize(
    ("fault", "reason"), [(RuntimeError("odd"), "RuntimeError: odd"), (CaptureUnavailable("no chain"), "no chain")]
)
def test_a_fault_while_installing_opens_the_breaker_and_the_replica_still_reports(
    double, monkeypatch, fault, reason, is_entry
):
    monkeypatch.setattr(plugin, "_is_entry_rank", lambda: is_entry)
    monkeypatch.setattr(plugin, "_install", lambda *_, **__: (_ for _ in ()).throw(fault))
    plugin._start(SCHEDULER, SETTINGS)
    assert double.breaker.reason == reason
    assert double.starts == int(is_entry)
    assert double.settings.replica.endswith("-30000")


def test_a_replica_that_cannot_start_has_its_hooks_like_every_other_rank_and_is_off(double, monkeypatch):
    installed = []

    def fail():
        raise OSError("no process left")

    monkeypatch.setattr(plugin, "_is_entry_rank", lambda: True)
    monkeypatch.setattr(plugin, "_install", lambda *_, **__: installed.append("hooks"))
    double.start = fail
    plugin._start(SCHEDULER, SETTINGS)
    assert installed == ["hooks"]
    assert double.breaker.reason == "OSError: no process left"


def test_a_plugin_loader_meets_no_exception(monkeypatch, caplog):
    def broken(_settings):
        raise ImportError("no module named hook_registry")

    monkeypatch.setenv("PACELINE_REDIS_URL", "redis://127.0.0.1:1/0")
    monkeypatch.setattr(plugin, "_hook_scheduler", broken)
    plugin.register()
    assert "capture and swaps are off" in caplog.text
    assert "no module named hook_registry" in caplog.text


def test_a_bad_setting_leaves_the_server_without_capture(monkeypatch, caplog):
    monkeypatch.setenv("PACELINE_REDIS_URL", "redis://127.0.0.1:1/0")
    monkeypatch.setenv("PACELINE_TEACHER_TOP_K", "many")
    plugin.register()
    assert "capture and swaps are off: PACELINE_TEACHER_TOP_K: got 'many'" in caplog.text


@pytest.mark.parametrize(
    ("pacing", "is_entry", "count"), [("goodput", True, 7), ("off", True, 5), ("goodput", False, 4)]
)
@pytest.mark.usefixtures("resolved")
def test_every_rank_is_paced_unless_pacing_is_off(double, pacing, is_entry, count, monkeypatch):
    installed = {}
    monkeypatch.setattr(sglang_hook_install, "install", installed.update)
    plugin._install(double, PacingName(pacing), is_entry_rank=is_entry)
    assert set(installed) < set(hook_targets.TARGETS)
    assert len(installed) == count
    paced = {hook_targets.ADAPTIVE_CONTROLLER, hook_targets.FORWARD}
    assert installed.keys() & paced == (paced if pacing == "goodput" else set())
    assert all(when == "before" for target, (when, _) in installed.items() if target in paced)
