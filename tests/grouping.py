"""Which tests share a worker, in which order, and which are slow: by the beginning of a test's id."""

from collections.abc import Iterable
from pathlib import Path

#: Tests that share what is expensive to build, by the beginning of their id; the first that fits counts. One worker of
#: pytest-xdist runs each group, and of other tests those of one file.
GROUPS = {
    "tests/e2e/test_6_demo.py": "demo",
    "tests/e2e/test_9_pacing.py": "paced server",
    "tests/e2e/test_9_catch_up.py": "swept servers",
    "tests/e2e/test_10_drafts.py": "published drafts",
    "tests/e2e/test_12_rollouts.py": "rollout server",
    "tests/e2e/test_13_trl.py": "trainer's server",
    "tests/e2e/test_11_recording.py": "recorded server",
    "tests/e2e/test_15_features.py": "bare server",
    "tests/e2e/test_16_speed.py": "compared servers",
    "tests/e2e/test_17_gpu_checks.py": "checked server",
    "tests/e2e/test_5_mixed.py": "mixed server",
    "tests/e2e/test_5_sampled.py": "sampled servers",
    "tests/e2e/test_5_trees.py": "tree server",
    "tests/e2e/test_11_target.py": "updated target",
    "tests/e2e/": "shared servers",
    "tests/window/real/": "real page",
    "tests/faults/learner/": "killed learners",
    "tests/faults/": "killed server",
}
#: The longest group begins, and what needs the target comes when that group has trained it.
ORDER = (
    "shared servers", "killed learners", "sampled servers", "demo", "paced server", "tree server", "updated target",
    "published drafts", "swept servers", "mixed server", "recorded server", "rollout server", "killed server",
    "trainer's server", "bare server", "compared servers", "checked server",
    "real page",
)  # fmt: skip

#: Tests, by the beginning of their id, that need an SGLang server or a learner process, and others that take long.
SLOW = (
    "tests/e2e/",
    "tests/faults/",
    "tests/window/real/",
    "tests/buffer/test_board_life.py",
    "tests/buffer/test_redis_tls_members.py",
    "tests/learner/test_following.py",
    "tests/learner/test_loop.py",
    "tests/learner/test_mlflow_drafts.py",
    "tests/learner/test_mlflow_refuses.py",
    "tests/learner/test_mlflow_registry.py",
    "tests/learner/test_mlflow_served.py",
    "tests/learner/test_rest.py",
    "tests/learner/test_tasks.py",
    "tests/rig/test_corpus.py",
    "tests/rig/test_processes.py",
    "tests/rig/test_services.py",
    "tests/rig/test_target.py",
    "tests/rig/test_training.py",
    "tests/serving/test_cpu_sampled_verify.py",
    "tests/serving/test_hook_install.py::test_hooks_run",
    "tests/serving/test_hook_install.py::test_the_entry_rank",
    "tests/serving/test_sglang_draft.py",
    "tests/serving/test_sglang_ranks.py",
    "tests/serving/test_sglang_target.py",
    "tests/test_installed_wheel.py",
    "tests/test_operations.py",
    "tests/test_wheel.py",
)


def group_of(nodeid: str) -> str:
    """What one worker runs as a whole: a group of GROUPS, or all tests of a file."""
    return next((GROUPS[start] for start in GROUPS if nodeid.startswith(start)), nodeid.partition("::")[0])


def without_a_test(root: Path, beginnings: Iterable[str]) -> list[str]:
    """Those that no test below `root` begins with: not its file, or no function of that file."""
    return [beginning for beginning in beginnings if not _is_there(root, *beginning.split("::"))]


def _is_there(root: Path, path: str, function: str = "") -> bool:
    files = [path] if path.endswith(".py") else [f"{path}**/test_*.py"]
    found = [file.read_text(encoding="utf-8") for pattern in files for file in root.glob(pattern)]
    return any(f"def {function or 'test_'}" in text for text in found)
