"""Captured hidden states and log-probabilities against transformers, in the server's dtype and in float32.

Two kernels of one dtype round differently, so no fixed tolerance is right. The yardstick is the dtype's own noise: the
distance of transformers in the server's dtype from transformers in float32 on the same tokens. A captured value may
differ from transformers in the server's dtype by TIMES_NOISE of that, or by a floor where there is no noise (float32).
Axes: F captured rows, D feature width, T tokens, V vocabulary, N verified nodes of a round, K teacher entries.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from ...learner.model.eagle3_config import Eagle3Config
from .checks import Captured, Finding

TIMES_NOISE = 3.0
FEATURE_FLOOR = 1e-3  # of a row's length
LOGPROB_FLOOR = 2e-2  # nats; log-probabilities travel as float16
#: One verify round of so many is checked: each costs two forward passes.
EVERY_ROUND = 3


@dataclass(slots=True)
class Distances:
    """Distances from transformers in the server's dtype, and that dtype's distances from float32, case by case."""

    captured: list[float] = field(default_factory=list)
    noise: list[float] = field(default_factory=list)
    misplaced: list[float] = field(default_factory=list)  # of each row from the reference of the next position

    def finding(self, name: str, floor: float, unit: str) -> Finding:
        """Whether the farthest captured value is within tolerance, and how many cases would show an error of one row.

        Where text repeats itself neighbouring rows are alike, and a case there does not show that its row is right.
        """
        if not self.captured:
            return Finding(name=name, found="nothing to compare", wanted="something", cases=0, is_right=False)
        allowed = max(TIMES_NOISE * max(self.noise), floor)
        telling = sum(distance > allowed for distance in self.misplaced)
        contrast = f"; {telling} of {len(self.misplaced)} would show one row off" if self.misplaced else ""
        return Finding(
            name=name,
            found=f"max {max(self.captured):.2g}, median {np.median(self.captured):.2g} {unit}{contrast}",
            wanted=f"max <= {allowed:.2g} (noise of the dtype: max {max(self.noise):.2g})",
            cases=len(self.captured),
            is_right=max(self.captured) <= allowed,
        )


@dataclass(frozen=True, slots=True)
class Reference:
    """The target in the server's dtype and in float32, and the layers its draft reads."""

    served: PreTrainedModel
    exact: PreTrainedModel
    layers: tuple[int, ...]

    @classmethod
    def load(cls, target: Path, draft: Path, dtype: str, device: str) -> "Reference":
        """Read both from the target's folder."""
        source: Mapping[str, object] = Eagle3Config.from_json(draft / "config.json").source
        eagle = source["eagle_config"]
        assert isinstance(eagle, Mapping)
        models = [
            AutoModelForCausalLM.from_pretrained(target, dtype=kind).eval().to(device)
            for kind in (getattr(torch, dtype), torch.float32)
        ]
        return cls(models[0], models[1], tuple(eagle["eagle_aux_hidden_state_layer_ids"]))


@torch.inference_mode()
def feature_finding(pairs: Sequence[Captured], reference: Reference) -> Finding:
    """Every captured hidden row, as its distance over the reference row's length."""
    found = Distances()
    for pair in pairs:
        features = torch.from_numpy(pair.trace.feature_numbers())
        rows = slice(pair.trace.offset, pair.trace.offset + len(features))
        served_FD = _features(reference.served, pair.whole, reference.layers)[rows]
        exact_FD = _features(reference.exact, pair.whole, reference.layers)[rows]
        found.captured += _relative(features, served_FD)
        found.noise += _relative(served_FD, exact_FD)
        found.misplaced += _relative(features[:-1], served_FD[1:])
    return found.finding("hidden rows against transformers", FEATURE_FLOOR, "of the row")


@torch.inference_mode()
def teacher_finding(pairs: Sequence[Captured], reference: Reference, label: str) -> Finding:
    """Top-K log-probabilities of verified nodes on the proposed path, including those after a rejection.

    Of a greedy request the best token alone is captured, without its log-probability: how much less probable it is than
    the best of transformers.
    """
    found = Distances()
    after_rejection = 0
    for pair in pairs:
        rounds = pair.trace.rounds
        for r in range(0, len(rounds), EVERY_ROUND):
            root = pair.trace.offset + int(rounds.starts[r])
            path = [*pair.whole[: root + 1], *rounds.drafted[r].tolist()]
            ids_NK = torch.from_numpy(rounds.teacher_ids[r].astype(np.int64))
            served_NV, exact_NV = (_logprobs(model, path, root) for model in (reference.served, reference.exact))
            served_NK = served_NV.gather(1, ids_NK)
            exact_NK = exact_NV.gather(1, ids_NK)
            got_NK = torch.from_numpy(rounds.teacher_logprobs[r].astype(np.float32))
            if pair.trace.sampling.temperature == 0.0:
                got_NK = served_NV.amax(1, keepdim=True)
            found.captured += (got_NK - served_NK).abs().amax(1).tolist()
            found.noise += (served_NK - exact_NK).abs().amax(1).tolist()
            after_rejection += len(got_NK) - 1 - int(rounds.accepted[r])
    return found.finding(f"{label}: teacher ({after_rejection} after a rejection)", LOGPROB_FLOOR, "nats")


def _features(model: PreTrainedModel, tokens: Sequence[int], layers: Sequence[int]) -> Tensor:
    out = model(torch.tensor([tokens], device=model.device), output_hidden_states=True, use_cache=False)
    features: Tensor = torch.cat([out.hidden_states[layer + 1][0] for layer in layers], -1).float().cpu()
    return features


def _logprobs(model: PreTrainedModel, path: Sequence[int], root: int) -> Tensor:
    logits_NV = model(torch.tensor([path], device=model.device), use_cache=False).logits[0, root:]
    return torch.log_softmax(logits_NV.float().cpu(), -1)


def _relative(got_FD: Tensor, wanted_FD: Tensor) -> list[float]:
    distances: list[float] = ((got_FD - wanted_FD).norm(dim=1) / wanted_FD.norm(dim=1)).tolist()
    return distances
