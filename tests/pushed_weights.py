"""A trainer as a server meets it: other weights of the served target, and the HTTP calls that push them."""

import base64
import copy
import pickle
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, PreTrainedModel

#: Noise of a step, relative to a matrix: so large that the greedy answers to nearly all prompts become others.
STEP = 0.4


class Trainer:
    """Has the target of a server, moves its weights, and pushes them to the server at `port`."""

    def __init__(self, target: Path, folder: Path, port: int) -> None:
        self._target = target
        self._folder = folder
        self._port = port
        self._start = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32).eval()

    def at_start(self) -> PreTrainedModel:
        """The model that the server was started with."""
        return self._start

    def stepped(self, seed: int) -> PreTrainedModel:
        """The target after a step that this seed decides."""
        moved = copy.deepcopy(self._start)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in moved.parameters():
                if parameter.dim() > 1:
                    noise = torch.randn(parameter.shape, generator=generator)
                    parameter.add_(noise * parameter.std() * STEP)
        return moved

    def written(self, model: PreTrainedModel, name: str) -> str:
        """A folder that holds `model` as a checkpoint."""
        folder = self._folder / name
        folder.mkdir(parents=True)
        for file in self._target.iterdir():
            if file.suffix != ".safetensors":
                shutil.copy(file, folder)
        tensors = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        return str(folder)

    def post(self, call: str, **body: Any) -> httpx.Response:
        """One call of SGLang's HTTP interface; its answer, whatever it says."""
        return httpx.post(f"http://127.0.0.1:{self._port}/{call}", json=body, timeout=60.0, trust_env=False)

    def do(self, call: str, **body: Any) -> Any:
        """What SGLang says to a call that must succeed."""
        answer = self.post(call, **body)
        assert answer.status_code == 200, (call, answer.text)
        return answer.json()

    def flush(self) -> None:
        """GET /flush_cache."""
        answer = httpx.get(f"http://127.0.0.1:{self._port}/flush_cache", timeout=60.0, trust_env=False)
        assert answer.status_code == 200, answer.text

    def push_tensors(self, model: PreTrainedModel, buckets: int = 1, *, session: dict[str, str], **each: Any) -> None:
        """Through begin, update_weights_from_tensor for each bucket, and end; `each` goes with every bucket."""
        self.do("begin_weight_update", **session)
        for bucket in split(list(model.state_dict().items()), buckets):
            self.load(bucket, **each)
        self.do("end_weight_update")

    def load(self, named: Sequence[tuple[str, torch.Tensor]], **more: Any) -> None:
        """One bucket."""
        payload = base64.b64encode(pickle.dumps(list(named))).decode()
        self.do("update_weights_from_tensor", serialized_named_tensors=[payload], **more)

    def draft_checksums(self) -> dict[str, str]:
        """Of the draft's own tensors, by SGLang: its embedding is the target's, and moves with it."""
        found = self.do("weights_checker", action="checksum", selector="draft")
        (rank,) = found["ranks"]
        return {name: value for name, value in rank["checksums"].items() if "embed_tokens" not in name}


def split(tensors: Sequence[tuple[str, torch.Tensor]], parts: int) -> Iterator[Iterable[tuple[str, torch.Tensor]]]:
    """In as many buckets, in order."""
    size = -(-len(tensors) // parts)
    for begin in range(0, len(tensors), size):
        yield tensors[begin : begin + size]
