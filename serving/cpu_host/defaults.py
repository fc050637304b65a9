"""What a CPU server needs beside the user's own flags: default flags and an environment."""

import os
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Final

from .config import SWITCH

#: Top-level stand-ins for `sgl_kernel` and `torchvision`; on the server's PYTHONPATH and nowhere else.
STUBS: Final = Path(__file__).parent / "stubs"
PLUGIN: Final = "paceline_cpu_host"

_FLAGS: Final[Mapping[str, str | None]] = {
    "--attention-backend": "cpu_sdpa",
    "--sampling-backend": "pytorch",
    "--dtype": "float32",  # bfloat16 loses greedy identity with and without speculation
    "--disable-overlap-schedule": None,
    "--skip-server-warmup": None,
    "--disable-cuda-graph": None,  # else --speculative-adaptive would capture one for every length, and fail
    "--sleep-on-idle": None,  # the idle loop would spin on a core that somebody else needs
    "--max-total-tokens": "16384",  # without it SGLang takes most of the host's memory for its KV pool
    "--max-running-requests": "8",
}


def default_flags(args: Sequence[str]) -> list[str]:
    """The default flags of a CPU server that `args` does not already name.

    They belong *before* the user's flags: argparse keeps the last value, so even a spelling this reader does not
    recognise (an abbreviation) wins over a default.
    """
    given = names_given(args)
    missing = [(name, value) for name, value in _FLAGS.items() if name not in given]
    return [word for pair in missing for word in pair if word is not None]


def unserved(args: Sequence[str]) -> str:
    """Why no CPU server can serve with `args`, or empty: SGLang would start, and end at the first request."""
    # SGLang looks for the last slot of a request by a Triton kernel, which needs a GPU, where a page has several.
    size = value_of(args, "--page-size")
    if size in {None, "1"}:
        return ""
    return f"--page-size: got {size}, expected 1 on a CPU, where SGLang cannot serve pages; leave the flag out"


def server_env(args: Sequence[str], base_env: Mapping[str, str]) -> dict[str, str]:
    """The environment of a CPU server: `base_env`, the CPU host switched on, and defaults where the user set none."""
    defaults = {
        "TORCHDYNAMO_DISABLE": "1",  # else the first speculative request compiles for 18 s
        "OMP_NUM_THREADS": str(len(os.sched_getaffinity(0))),
        "OMP_WAIT_POLICY": "PASSIVE",  # threads that spin while they wait cost 13x beside a busy learner on two cores
    }
    if _needs_no_hub(args):
        defaults["HF_HUB_OFFLINE"] = "1"
    ranks = _times(args, "--tp-size", "--tensor-parallel-size", "--tp")
    ranks *= _times(args, "--dp-size", "--data-parallel-size", "--dp")
    if ranks > 1:
        defaults["SGLANG_CPU_OMP_THREADS_BIND"] = _cores_of_ranks(ranks)
        # Of GPUs: ranks on a CPU share one memory, and whatever else runs may take from it while they compare.
        defaults["SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK"] = "0"
    switches = {SWITCH: "1", "SGLANG_USE_CPU_ENGINE": "1", "PYTHONPATH": _with_stubs(base_env.get("PYTHONPATH", ""))}
    return {**defaults, **base_env, **switches, **_plugin_allowed(base_env.get("SGLANG_PLUGINS"))}


def _times(args: Sequence[str], *names: str) -> int:
    given = value_of(args, *names) or ""
    return int(given) if given.isdecimal() else 1


def _cores_of_ranks(ranks: int) -> str:
    """Cores for each rank, as SGLang reads them; without, it refuses more ranks than this machine has NUMA nodes.

    Every rank has as many as the others, give or take one; where there are too few, some share one.
    """
    cores = sorted(os.sched_getaffinity(0))
    shares = (cores[rank::ranks] or [cores[rank % len(cores)]] for rank in range(ranks))
    return "|".join(",".join(map(str, share)) for share in shares)


def _with_stubs(python_path: str) -> str:
    return os.pathsep.join(filter(None, [str(STUBS), python_path]))


def _plugin_allowed(allow_list: str | None) -> dict[str, str]:
    """SGLANG_PLUGINS is an allow list; where one is set, the CPU host's own entry point has to be on it."""
    if not allow_list or PLUGIN in allow_list.split(","):
        return {}
    return {"SGLANG_PLUGINS": f"{allow_list},{PLUGIN}"}


def _needs_no_hub(args: Sequence[str]) -> bool:
    """True when the model is a local folder and nothing else on the command line would have to be downloaded."""
    target = value_of(args, "--model-path", "--model")
    draft = value_of(args, "--speculative-draft-model-path", "--speculative-draft-model")
    tokenizer = value_of(args, "--tokenizer-path")
    others = [path for path in (draft, tokenizer) if path is not None]
    return target is not None and all(Path(path).is_dir() for path in (target, *others))


def names_given(args: Sequence[str]) -> frozenset[str]:
    """Every `--name` on the command line, whether spelled `--name value`, `--name=value` or alone."""
    return frozenset(arg.partition("=")[0] for arg in args if arg.startswith("--"))


def value_of(args: Sequence[str], *names: str) -> str | None:
    """The value of a flag under any of its `names`; the last one counts, as in argparse. None when absent or bare."""
    found: str | None = None
    for arg, following in zip_longest(args, args[1:], fillvalue=""):
        name, equals, value = arg.partition("=")
        if name in names:
            found = value if equals else following
    return found or None


def is_accelerator_present() -> bool:
    """Whether this torch build sees an accelerator (CUDA, ROCm, XPU, MPS or a registered device).

    Loads torch on the first call, which takes seconds; creates no device context.
    """
    import torch  # noqa: PLC0415 - most launches name their device and never need torch in this process

    return torch.accelerator.is_available()
