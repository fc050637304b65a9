"""What `paceline serve` starts, and that no process of it remains."""

import logging
import os
import re
import select
import signal
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import paceline
import pytest
from paceline.buffer.errors import CaptureUnavailable, ConfigError
from paceline.serving import supported_release as release
from paceline.serving.launch import server as launch
from paceline.serving.launch.server import LaunchPlan, launch_plan, run_server

SERVER = (sys.executable, "-m", "sglang.launch_server")
STUBS = str(Path(paceline.__file__).parent / "serving/cpu_host/stubs")


def must_not_be_asked():
    raise AssertionError


def flags_of(plan):
    assert plan.argv[:3] == SERVER
    return list(plan.argv[3:])


def test_without_device_cpu_command_and_environment_are_untouched():
    args = ["--model-path", "m", "--tp=2"]
    plan = launch_plan(args, {"PATH": "/bin", "PYTHONPATH": "/x"}, has_accelerator=lambda: True)
    assert plan == LaunchPlan((*SERVER, *args), {"PATH": "/bin", "PYTHONPATH": "/x"})


def test_another_device_is_believed_without_looking_for_a_gpu():
    plan = launch_plan(["--device", "cuda"], {}, has_accelerator=must_not_be_asked)
    assert flags_of(plan) == ["--device", "cuda"]


def test_no_gpu_and_no_device_is_an_error_that_says_what_to_add():
    with pytest.raises(ConfigError, match="add `--device cpu`"):
        launch_plan(["--model-path", "m"], {}, has_accelerator=lambda: False)


@pytest.mark.parametrize("device", [["--device", "cpu"], ["--device=cpu"], ["--device=cuda", "--device", "cpu"]])
def test_device_cpu_adds_the_cpu_host_in_front_of_the_users_flags(device):
    plan = launch_plan([*device, "--model-path", "m"], {"PATH": "/bin"}, has_accelerator=must_not_be_asked)
    assert flags_of(plan) == [
        "--attention-backend", "cpu_sdpa", "--sampling-backend", "pytorch", "--dtype", "float32",
        "--disable-overlap-schedule", "--skip-server-warmup", "--disable-cuda-graph", "--sleep-on-idle",
        "--max-total-tokens", "16384", "--max-running-requests", "8", *device, "--model-path", "m",
    ]  # fmt: skip
    assert plan.env == {
        "PATH": "/bin",
        "PYTHONPATH": STUBS,
        "PACELINE_CPU_HOST": "1",
        "SGLANG_USE_CPU_ENGINE": "1",
        "TORCHDYNAMO_DISABLE": "1",
        "OMP_NUM_THREADS": str(len(os.sched_getaffinity(0))),
        "OMP_WAIT_POLICY": "PASSIVE",
    }


@pytest.mark.parametrize("given", [["--dtype", "bfloat16"], ["--dtype=bfloat16"]])
def test_a_flag_the_user_gave_has_no_default_in_either_spelling(given):
    flags = flags_of(launch_plan(["--device", "cpu", *given, "--max-total-tokens=99"], {}))
    assert "float32" not in flags
    assert "16384" not in flags
    assert flags[-3:] == [*given, "--max-total-tokens=99"] if len(given) == 2 else flags[-2:]


def test_the_environment_the_user_set_wins_over_defaults_but_not_over_switches():
    env = {"OMP_NUM_THREADS": "1", "TORCHDYNAMO_DISABLE": "0", "PYTHONPATH": "/x", "SGLANG_USE_CPU_ENGINE": "0"}
    plan = launch_plan(["--device", "cpu"], env)
    assert plan.env["OMP_NUM_THREADS"] == "1"
    assert plan.env["TORCHDYNAMO_DISABLE"] == "0"
    assert plan.env["SGLANG_USE_CPU_ENGINE"] == "1"
    assert plan.env["PYTHONPATH"] == f"{STUBS}{os.pathsep}/x"
    assert env["PYTHONPATH"] == "/x"


@pytest.mark.parametrize(
    ("cores", "flags", "expected"),
    [
        ({0, 1}, ["--tp-size", "2"], "0|1"),
        ({7, 4, 5}, ["--tensor-parallel-size=2"], "4,7|5"),
        ({3, 5}, ["--tp", "3"], "3|5|3"),
        ({0, 1}, ["--tp-size", "1"], None),
        ({0, 1}, ["--dp-size=2"], "0|1"),
        ({0, 1}, ["--tp", "2", "--dp", "2"], "0|1|0|1"),
        ({0, 1}, ["--tp-size", "two"], None),
        ({0, 1}, [], None),
    ],
)
def test_several_ranks_share_the_cores_since_sglang_would_want_a_numa_node_each(monkeypatch, cores, flags, expected):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: cores)
    assert launch_plan(["--device", "cpu", *flags], {}).env.get("SGLANG_CPU_OMP_THREADS_BIND") == expected
    set_by_hand = launch_plan(["--device", "cpu", *flags], {"SGLANG_CPU_OMP_THREADS_BIND": "all"})
    assert set_by_hand.env["SGLANG_CPU_OMP_THREADS_BIND"] == "all"


@pytest.mark.parametrize(
    ("allowed", "expected"),
    [("paceline", "paceline,paceline_cpu_host"), ("paceline_cpu_host", "paceline_cpu_host"), ("", "")],
)
def test_a_plugin_allow_list_is_completed(allowed, expected):
    assert launch_plan(["--device", "cpu"], {"SGLANG_PLUGINS": allowed}).env["SGLANG_PLUGINS"] == expected


def test_the_hub_is_offline_only_when_every_model_is_a_local_folder(tmp_path):
    def is_offline(*args):
        return launch_plan(["--device", "cpu", *args], {}).env.get("HF_HUB_OFFLINE") == "1"

    assert is_offline("--model-path", str(tmp_path))
    assert is_offline(f"--model={tmp_path}", "--speculative-draft-model-path", str(tmp_path))
    assert not is_offline("--model-path", "org/model")
    assert not is_offline("--model-path", str(tmp_path), "--speculative-draft-model-path=org/draft")
    assert not is_offline("--model-path", str(tmp_path), "--tokenizer-path", "org/tokens")
    assert not is_offline()


def test_a_config_file_that_could_hide_cpu_flags_is_refused():
    with pytest.raises(ConfigError, match="--config hides flags"):
        launch_plan(["--device", "cpu", "--config", "server.yaml"], {})


@pytest.mark.parametrize("given", [["--page-size", "16"], ["--page-size=16"]])
def test_pages_are_refused_on_a_cpu_alone_where_they_would_end_the_server(given):
    with pytest.raises(ConfigError, match=r"--page-size: got 16, expected 1 on a CPU, .* leave the flag out"):
        launch_plan(["--device", "cpu", *given], {})
    launch_plan(["--device", "cuda", *given], {})


def test_the_switch_leaves_the_cpu_to_sglangs_own_kernels():
    plan = launch_plan(["--device", "cpu"], {"PACELINE_CPU_HOST": "0"}, has_accelerator=must_not_be_asked)
    assert plan == LaunchPlan((*SERVER, "--device", "cpu"), {"PACELINE_CPU_HOST": "0"})


def test_a_malformed_switch_is_an_error_naming_key_and_value():
    with pytest.raises(ConfigError, match="PACELINE_CPU_HOST: got 'yes', expected 0 or 1"):
        launch_plan(["--device", "cpu"], {"PACELINE_CPU_HOST": "yes"})


def test_an_unsupported_sglang_is_started_with_a_warning_that_capture_is_off(monkeypatch, caplog):
    monkeypatch.setattr(release, "version", lambda _name: "0.6.0")
    with caplog.at_level(logging.WARNING):
        launch_plan(["--device", "cpu"], {})
    supported = ", ".join(release.SUPPORTED)
    assert f"SGLang 0.6.0 is installed, paceline supports {supported}: the server runs with capture," in caplog.text
    with pytest.raises(CaptureUnavailable):  # what the plugin finds inside that server
        release.check_release()


def test_a_missing_sglang_is_an_error_that_says_what_to_install(monkeypatch):
    def missing(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(release, "version", missing)
    with pytest.raises(ConfigError, match=re.escape(f"pip install sglang=={release.SUPPORTED[0]}")):
        launch_plan(["--device", "cpu"], {})


def python(code, *args):
    return LaunchPlan((sys.executable, "-c", code, *map(str, args)), {"PATH": os.environ["PATH"]})


def test_the_servers_exit_code_is_returned():
    assert run_server(python("raise SystemExit(3)")) == 3


def test_death_by_a_signal_is_returned_as_a_shell_would():
    assert run_server(python("import os; os.kill(os.getpid(), 9)")) == 128 + 9


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_to_the_launcher_asks_the_server_to_end_in_its_own_way(number):
    server = """if True:
        import os, signal, sys
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
        os.kill(os.getppid(), int(sys.argv[1]))
        while True: signal.pause()
    """
    before = signal.getsignal(number)
    assert run_server(python(server, int(number))) == 7
    assert signal.getsignal(number) is before


def test_a_second_signal_kills_a_server_that_does_not_end():
    server = """if True:
        import os, signal
        signal.signal(signal.SIGTERM, lambda *_: os.kill(os.getppid(), signal.SIGINT))
        os.kill(os.getppid(), signal.SIGTERM)
        while True: signal.pause()
    """
    assert run_server(python(server)) == 128 + signal.SIGKILL


def test_an_ignored_signal_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert run_server(python("import os, signal; os.kill(os.getppid(), signal.SIGHUP)")) == 0
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_signal_that_comes_before_the_server_exists_is_passed_on(monkeypatch):
    class EarlySignal(launch._SignalRelay):
        def aim_at(self, group):
            self(signal.SIGTERM, None)
            super().aim_at(group)

    monkeypatch.setattr(launch, "_SignalRelay", EarlySignal)
    assert run_server(python("import signal; signal.pause()")) == 128 + signal.SIGTERM


def test_no_process_of_the_server_outlives_it(tmp_path):
    """The grandchild holds a pipe open for as long as it lives, so the pipe's end proves its death."""
    pipe = tmp_path / "alive"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    server = """if True:
        import subprocess, sys
        orphan = "import sys, signal; held = open(sys.argv[1], 'w'); print(flush=True); signal.pause()"
        child = subprocess.Popen([sys.executable, "-c", orphan, sys.argv[1]], stdout=subprocess.PIPE)
        child.stdout.readline()
    """
    assert run_server(python(server, pipe)) == 0
    poll = select.poll()
    poll.register(reader)
    assert poll.poll(10_000) == [(reader, select.POLLHUP)]
    os.close(reader)


@pytest.mark.parametrize(
    ("flags", "has_accelerator", "gets_cpu_defaults", "gets_cpu_env"),
    [
        ([], True, False, False),
        ([], False, False, True),
        (["--model-path", "m"], False, False, False),
        (["--model-path", "m", "--device", "cpu"], False, True, True),
    ],
)
def test_the_doctor_resolves_flags_with_the_defaults_that_the_server_would_get(
    flags, has_accelerator, gets_cpu_defaults, gets_cpu_env
):
    plan = launch.examination_plan(flags, {}, has_accelerator=lambda: has_accelerator)
    assert plan.argv[:3] == (sys.executable, "-m", "paceline.serving.launch.doctor")
    defaults = launch.default_flags(flags) if gets_cpu_defaults else []
    assert list(plan.argv[3:]) == [*defaults, *flags]
    assert ("SGLANG_USE_CPU_ENGINE" in plan.env) is gets_cpu_env
