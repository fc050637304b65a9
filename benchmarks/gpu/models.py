"""The target that these checks serve, trained once on local text, and its random draft."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from ...rig.models.target import ARCHITECTURE, DRAFT_LAYERS, TargetModel, ensure_random_draft, ensure_target
from ...rig.models.training import TrainPlan
from ...rig.progress import Report

CONTEXT_TOKENS = 4096


@dataclass(frozen=True, slots=True)
class Size:
    """A target by name: its architecture, and the target layers whose outputs its drafts read."""

    architecture: Mapping[str, int | bool]
    draft_layers: tuple[int, ...]

    @property
    def parameters(self) -> int:
        """Weights of the target, embedding and head included."""
        sizes = self.architecture
        width = sizes["hidden_size"]
        heads = sizes["num_attention_heads"]
        kv_width = width // heads * sizes["num_key_value_heads"]
        layer = 2 * width * (width + kv_width) + 3 * width * sizes["intermediate_size"] + 2 * width
        return sizes["num_hidden_layers"] * layer + 2 * sizes["vocab_size"] * width + width


def llama(width: int, layers: int, *, heads: int, kv_heads: int, inner: int) -> Size:
    """A Llama with 8192 tokens; its drafts read the layers that SGLang chooses by default."""
    sizes: dict[str, int | bool] = {
        **ARCHITECTURE,
        "vocab_size": 8192,
        "hidden_size": width,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": CONTEXT_TOKENS,
    }
    return Size(MappingProxyType(sizes), (1, layers // 2 - 1, layers - 4))


#: Named after their millions of parameters; `tiny` is the demo's target, for smoke tests.
SIZES: Mapping[str, Size] = MappingProxyType(
    {
        "tiny": Size(ARCHITECTURE, DRAFT_LAYERS),
        "152m": llama(width=1024, layers=12, heads=16, kv_heads=4, inner=2816),
        "1.0b": llama(width=2048, layers=16, heads=32, kv_heads=8, inner=8192),
    }
)


def train_plan(name: str, seconds: float) -> TrainPlan:
    """How the target of size `name` is trained; the larger ones with smaller rates and batches for a GPU."""
    if name == "tiny":
        return TrainPlan(seconds=seconds)
    return TrainPlan(
        steps=6000,
        seconds=seconds,
        batch_windows=32,
        window_tokens=512,
        matrix_learning_rate=1e-3,
        learning_rate=3e-3,
    )


def build_models(
    data_dir: Path, name: str, *, plan: TrainPlan, device: str, report: Report
) -> tuple[TargetModel, Path]:
    """The target and a random draft of it, read from `data_dir` if they exist."""
    size = SIZES[name]
    target = ensure_target(data_dir, plan, report=report, architecture=size.architecture, device=device)
    draft = ensure_random_draft(target.folder, data_dir / "drafts" / f"{target.key}-0", 0, size.draft_layers)
    return target, draft
