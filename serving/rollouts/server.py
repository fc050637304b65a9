"""RolloutServer: the HTTP calls of one SGLang server that making rollouts and changing weights need."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import httpx

from ...buffer.errors import RolloutFailed

#: A control call answers at once, unless weights are loaded in it.
_CONTROL_S = 60.0
_TARGET = {"selector": "target"}

_log = logging.getLogger(__name__)


class RolloutServer:
    """One server by its URL; threads may share it. Every method blocks for its answer and retries nothing.

    RolloutFailed, with URL and path, when the server cannot be reached or refuses.
    """

    def __init__(self, url: str, timeout_s: float, api_key: str | None = None) -> None:
        self.url = url.rstrip("/")
        self._timeout_s = timeout_s
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._client = httpx.Client(base_url=self.url, headers=headers, timeout=_CONTROL_S, trust_env=False)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def version(self) -> str:
        """The target version that the server says it serves."""
        return str(self._model_info()["weight_version"])

    def model_path(self) -> str | None:
        """Where the server read the target's weights last; None when it does not say."""
        return self._model_info().get("model_path")

    def ranks(self) -> int:
        """Over how many ranks the target's tensors are split."""
        return int(self._ask("GET", "/server_info").get("tp_size") or 1)

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Mapping[str, Any]) -> list[dict[str, Any]]:
        """SGLang's answers, in the order of `prompts`; blocks until the last is there, `timeout_s` at most."""
        body = {"input_ids": [list(ids) for ids in prompts], "sampling_params": dict(sampling), "return_logprob": True}
        answers: list[dict[str, Any]] = self._ask("POST", "/generate", body, self._timeout_s)
        if len(answers) != len(prompts):
            raise self._failed("/generate", f"{len(answers)} answers", str(len(prompts)))
        return answers

    def pause(self) -> None:
        """Stop computing and take the KV cache from the requests that run; they go on after `resume`.

        Loading weights empties the cache. With requests that hold a part of it, SGLang 0.5.21 dies of that.
        """
        self._ask("POST", "/pause_generation", {"mode": "retract"})

    def resume(self) -> None:
        """Compute again."""
        self._ask("POST", "/continue_generation", {})

    def load_folder(self, folder: str, version: str) -> None:
        """Have the server read the target's weights from the safetensors files in `folder`."""
        body = {"model_path": folder, "weight_version": version, "flush_cache": True}
        self._ask("POST", "/update_weights_from_disk", body, self._timeout_s)

    def begin_update(self) -> None:
        """Open an update of the target in parts; ends one that a trainer left open, which was killed in it."""
        try:
            self._ask("POST", "/begin_weight_update", _TARGET)
        except RolloutFailed as refused:
            try:
                self.end_update()
            except RolloutFailed:
                raise refused from None
            _log.warning("%s: ended an update of the target that another trainer left open", self.url)
            self._ask("POST", "/begin_weight_update", _TARGET)

    def load_bucket(self, bucket: str, ranks: int, version: str | None) -> None:
        """One part, as `weights.buckets` makes it. The last names the version, and empties the cache."""
        body = {"serialized_named_tensors": [bucket] * ranks, "selector": "target", "flush_cache": version is not None}
        named = body if version is None else {**body, "weight_version": version}
        self._ask("POST", "/update_weights_from_tensor", named, self._timeout_s)

    def end_update(self) -> None:
        """Close the update."""
        self._ask("POST", "/end_weight_update", {})

    def name_version(self, version: str) -> None:
        """Say what the weights that the server has now are called."""
        self._ask("POST", "/update_weight_version", {"new_version": version, "abort_all_requests": False})

    def _model_info(self) -> dict[str, Any]:
        found: dict[str, Any] = self._ask("GET", "/model_info")
        return found

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None, wait_s: float = _CONTROL_S) -> Any:
        try:
            response = self._client.request(method, path, json=body, timeout=wait_s)
        except httpx.HTTPError as fault:
            raise self._failed(path, f"{type(fault).__name__} ({fault})", "an answer") from fault
        if response.is_error:
            raise self._failed(path, f"HTTP {response.status_code} ({response.text[:400]})", "200")
        return response.json()

    def _failed(self, path: str, got: str, expected: str) -> RolloutFailed:
        return RolloutFailed(f"{self.url}{path}: got {got}, expected {expected}")
