"""The answers of a real SGLang server to the calls of Rollouts, and a server that gives them without a model.

`recorded_calls` asks a real server everything; `recorded/rollout_server.json` holds what it said, and
tests/e2e/test_rollouts.py compares the two. RecordedServer answers with them: it stands in for a server where what
matters is what Rollouts does with an answer, and keeps the little state that the answers depend on.
"""

import base64
import json
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx

RECORDED = Path(__file__).with_name("recorded_rollout_server.json")
#: Answers that hold more than Rollouts reads, machine names among it: only these keys are kept.
KEPT = {"/server_info": ("tp_size",), "/model_info": ("weight_version",)}
SAMPLING = {"max_new_tokens": 6, "temperature": 0.0, "ignore_eos": True}


def recorded_calls(url: str, bucket: str, folder: str) -> dict[str, dict[str, Any]]:
    """Name of a call -> path, status and JSON that the server at `url` answered; loads `bucket`, then `folder`."""
    generate = {"input_ids": [[5, 6, 7]], "sampling_params": SAMPLING, "return_logprob": True}
    tensors = {"serialized_named_tensors": [bucket], "selector": "target", "flush_cache": True, "weight_version": "1"}
    disk = {"model_path": folder, "weight_version": "2", "flush_cache": True}
    calls: list[tuple[str, str, Any]] = [
        ("version", "/model_info", None),
        ("ranks", "/server_info", None),
        ("generate", "/generate", generate),
        ("refused bucket", "/update_weights_from_tensor", tensors),
        ("refused end", "/end_weight_update", {}),
        ("pause", "/pause_generation", {"mode": "retract"}),
        ("begin", "/begin_weight_update", {"selector": "target"}),
        ("refused begin", "/begin_weight_update", {"selector": "target"}),
        ("bucket", "/update_weights_from_tensor", tensors),
        ("end", "/end_weight_update", {}),
        ("folder", "/update_weights_from_disk", disk),
        ("refused folder", "/update_weights_from_disk", {**disk, "model_path": "/nowhere/at/all"}),
        ("resume", "/continue_generation", {}),
        ("name", "/update_weight_version", {"new_version": "3", "abort_all_requests": False}),
    ]
    with httpx.Client(base_url=url, timeout=120.0, trust_env=False) as client:
        return {name: _called(client, path, body) for name, path, body in calls}


def _called(client: httpx.Client, path: str, body: Any) -> dict[str, Any]:
    response = client.request("GET" if body is None else "POST", path, json=body)
    said = response.json()
    kept = {key: said[key] for key in KEPT[path]} if path in KEPT else said
    return {"path": path, "status": response.status_code, "json": kept}


def shape(value: Any) -> Any:
    """What a reader of an answer relies on: its keys and the types of its values; numbers are alike."""
    if isinstance(value, Mapping):
        return {key: shape(value[key]) for key in sorted(value)}
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    return "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__


class RecordedServer:
    """One server: answers as recorded, under its own version. `calls` are the paths asked for, oldest first."""

    def __init__(self, url: str, version: str = "default", model_path: str = "org/target") -> None:
        self.url = url
        self.version = version
        self.calls = []
        self.model_path = model_path  # a folder, or a name, of which nothing can be read
        self.loaded: dict[str, Any] = {}  # name -> tensor, of all buckets
        self.is_paused = self.is_updating = self.is_down = False
        self.refuses: set[str] = set()  # names of calls
        self.answers: list[dict[str, Any]] | None = None  # of the next /generate, in place of the recorded one
        self.bodies: list[Mapping[str, Any]] = []
        self._recorded = json.loads(RECORDED.read_text(encoding="utf-8"))

    def __call__(self, request: httpx.Request) -> httpx.Response:
        """Answer a request."""
        if self.is_down:
            raise httpx.ConnectError("Connection refused", request=request)
        path = request.url.path
        body = json.loads(request.content or b"{}")
        self.calls.append(path)
        self.bodies.append(body)
        return self._acts()[path](body)

    def _acts(self) -> dict[str, Callable[[Mapping[str, Any]], httpx.Response]]:
        return {
            "/model_info": lambda _: self._say("version", weight_version=self.version, model_path=self.model_path),
            "/server_info": lambda _: self._say("ranks"),
            "/generate": self._generate,
            "/pause_generation": lambda body: self._set("pause", is_paused=True),
            "/continue_generation": lambda body: self._set("resume", is_paused=False),
            "/begin_weight_update": lambda body: self._set(
                "refused begin" if self.is_updating else "begin", is_updating=True
            ),
            "/end_weight_update": lambda body: self._set(
                "end" if self.is_updating else "refused end", is_updating=False
            ),
            "/update_weights_from_tensor": self._bucket,
            "/update_weights_from_disk": self._folder,
            "/update_weight_version": self._name,
        }

    def _say(self, call: str, **changes: Any) -> httpx.Response:
        said = self._recorded[f"refused {call}" if call in self.refuses else call]
        return httpx.Response(said["status"], json={**said["json"], **changes} if changes else said["json"])

    def _set(self, call: str, **state: bool) -> httpx.Response:
        for name, value in state.items():
            setattr(self, name, value)
        return self._say(call)

    def _end(self) -> httpx.Response:
        return self._set("end" if self.is_updating else "refused end", is_updating=False)

    def _generate(self, body: Mapping[str, Any]) -> httpx.Response:
        assert not self.is_paused, "a paused server answers nothing"
        (one,) = self._recorded["generate"]["json"]
        return httpx.Response(200, json=self.answers or [one for _ in body["input_ids"]])

    def _bucket(self, body: Mapping[str, Any]) -> httpx.Response:
        assert self.is_paused, "an update while requests run kills SGLang 0.5.21"
        if not self.is_updating:
            return self._say("refused bucket")
        (packed,) = body["serialized_named_tensors"]
        self.loaded |= dict(pickle.loads(base64.b64decode(packed)))
        self.version = body.get("weight_version", self.version)
        return self._say("bucket")

    def _folder(self, body: Mapping[str, Any]) -> httpx.Response:
        from safetensors.torch import load_file

        assert self.is_paused, "an update while requests run kills SGLang 0.5.21"
        if "folder" not in self.refuses:
            self.loaded = load_file(Path(body["model_path"]) / "model.safetensors")
            self.version = body["weight_version"]
        return self._say("folder")

    def _name(self, body: Mapping[str, Any]) -> httpx.Response:
        self.version = body["new_version"]
        return self._say("name")
