"""Which tests share a worker, in which order, and which are slow: by the beginning of a test's id."""

from collections.abc import Iterable
from pathlib import Path

#: Files that use one server, one after another: each builds on what those before it left on the server's board.
ON_THE_SHARED_SERVER = (
    "tests/e2e/test_capture.py",
    "tests/e2e/test_heartbeat_counters.py",
    "tests/e2e/test_swap.py",
    "tests/e2e/test_loop.py",
    "tests/e2e/test_refusals.py",
    "tests/e2e/test_canary.py",
    "tests/e2e/test_redis_and_courier_fail.py",
)
#: Groups of more than one file, by the beginning of their tests' ids; the first that fits counts. One worker of
#: pytest-xdist runs each group. Any other file is a group of its own.
GROUPS = {
    **dict.fromkeys(ON_THE_SHARED_SERVER, "shared server"),
    "tests/window/real/": "real page",
    "tests/faults/learner/": "killed learners",
    "tests/faults/": "killed server",
    **{f"tests/learner/test_mlflow_{of}.py": "real MLflow" for of in ("drafts", "refuses", "registry", "served")},
    **{f"tests/serving/test_{of}.py": "forks of SGLang" for of in ("hook_install", "sglang_draft", "sglang_target")},
}
#: Groups that begin: the longest first, and those that need the target when the first has trained it.
ORDER = (
    "shared server",
    "killed learners",
    "tests/learner/test_loop.py",
    "forks of SGLang",
    "killed server",
    "tests/e2e/test_demo.py",
    "tests/e2e/test_sampled.py",
    "tests/e2e/test_pacing.py",
    "tests/e2e/test_draft_trees.py",
    "tests/e2e/test_target_updates.py",
    "tests/e2e/test_fleet.py",
    "tests/e2e/test_fail_over.py",
    "tests/e2e/test_published_drafts.py",
    "tests/e2e/test_catch_up.py",
    "tests/e2e/test_pacing_costs.py",
    "tests/e2e/test_mixed_chunks.py",
    "tests/e2e/test_recording.py",
    "tests/e2e/test_rollouts.py",
    "tests/e2e/test_rollouts_killed.py",
    "tests/e2e/test_trl.py",
    "tests/e2e/test_recomputed_features.py",
    "tests/e2e/test_demo_speed.py",
    "tests/e2e/test_gpu_benches.py",
    "real page",
    "real MLflow",
    "tests/learner/test_rest.py",
    "tests/learner/test_ranks.py",
    "tests/learner/test_tasks.py",
    "tests/learner/test_line.py",
    "tests/learner/test_following.py",
)

#: Tests, by the beginning of their id, that need an SGLang server or a learner process, and others that take long.
SLOW = (
    "tests/e2e/",
    "tests/faults/",
    "tests/window/real/",
    "tests/benchmarks/test_width.py",
    "tests/buffer/test_board_life.py",
    "tests/buffer/test_redis_tls_members.py",
    "tests/demo/test_own_target.py::test_a_target_with_a_template",
    "tests/learner/test_following.py",
    "tests/learner/test_loop.py",
    "tests/learner/test_mlflow_drafts.py",
    "tests/learner/test_mlflow_refuses.py",
    "tests/learner/test_mlflow_registry.py",
    "tests/learner/test_mlflow_served.py",
    "tests/learner/test_rest.py",
    "tests/learner/test_tasks.py",
    "tests/learner/test_version_store.py",
    "tests/rig/test_chat_downloads.py",
    "tests/rig/test_chat_local.py",
    "tests/rig/test_corpus.py",
    "tests/rig/test_processes.py",
    "tests/rig/test_smollm2.py",
    "tests/rig/test_services.py",
    "tests/rig/test_target.py",
    "tests/rig/test_training.py",
    "tests/serving/test_cpu_sampled_verify.py",
    "tests/serving/test_hook_install.py::test_hooks_run",
    "tests/serving/test_hook_install.py::test_the_entry_rank",
    "tests/serving/test_s3_weights.py",
    "tests/serving/test_sglang_draft.py",
    "tests/serving/test_sglang_ranks.py",
    "tests/serving/test_sglang_target.py",
    "tests/test_installed_wheel.py",
    "tests/test_operations.py",
    "tests/test_wheel.py",
)


def group_of(nodeid: str) -> str:
    """Return the group that one worker runs as a whole: one of GROUPS, or the file of the test."""
    return next((GROUPS[start] for start in GROUPS if nodeid.startswith(start)), nodeid.partition("::")[0])


def in_order(nodeids: Iterable[str]) -> list[str]:
    """Return ids with those of ON_THE_SHARED_SERVER in its order, all at the place of the first that was given."""
    given = list(nodeids)
    shared = {each for each in given if each.startswith(ON_THE_SHARED_SERVER)}
    first = next((place for place, each in enumerate(given) if each in shared), 0)
    rank = {file: place for place, file in enumerate(ON_THE_SHARED_SERVER)}
    moved = sorted((each for each in given if each in shared), key=lambda each: rank[each.partition("::")[0]])
    return [*given[:first], *moved, *(each for each in given[first:] if each not in shared)]


def without_a_test(root: Path, beginnings: Iterable[str]) -> list[str]:
    """Return the beginnings that fit no test below `root`: no such file, or no such function in it."""
    return [beginning for beginning in beginnings if not _is_there(root, *beginning.split("::"))]


def _is_there(root: Path, path: str, function: str = "") -> bool:
    files = [path] if path.endswith(".py") else [f"{path}**/test_*.py"]
    found = [file.read_text(encoding="utf-8") for pattern in files for file in root.glob(pattern)]
    return any(f"def {function or 'test_'}" in text for text in found)
