"""What SGLang knows of a request, in the form that capture needs. For the scheduler process only."""

from typing import Any

import numpy as np

from ...buffer.stream.trace import Sampling, VerdictRule, is_label, prompt_key
from ..sglang_speculation import is_counted, sampled_rule
from ..wire.request_forward import Commit, RequestFacts

#: Keys a client may set in ``sampling_params.custom_params``.
OPT_OUT_KEY = "paceline_opt_out"
TENANT_KEY = "paceline_tenant"
LABEL_KEY = "paceline_label"
#: What an `extra_key` or a routing key begins with to opt out as well: SGLang's router removes custom_params. A request
#: id would not do, since SGLang gives each of several answers to one prompt another.
OPT_OUT_MARK = "paceline-opt-out"
#: A client chooses the name, and every trace carries it.
MAX_TENANT_CHARS = 128


def adapter_of(draft_worker: Any, req: Any) -> str:
    """Name of the LoRA adapter that the target answers a request with; empty without one.

    Its id differs from server to server. `draft_worker` is SGLang's EagleDraftWorker.
    """
    if req.lora_id is None:
        return ""
    return str(draft_worker.target_worker.model_runner.lora_manager.lora_refs[req.lora_id].lora_name)


def facts_of(req: Any, adapter: str = "") -> RequestFacts:
    """What the client asked for. `adapter` stands for the label and the tenant where it named none."""
    params = req.sampling_params
    greedy = is_greedy(params)
    edited = is_counted(params) or bool(params.logit_bias) or req.grammar is not None
    # SGLang takes these as a client sends them: its /generate checks no types.
    temperature = 0.0 if greedy else float(params.temperature)
    sampling = Sampling(temperature, int(params.top_k), float(params.top_p), edited)
    custom = custom_params_of(params)
    tenant = str(custom.get(TENANT_KEY, "") or adapter)[:MAX_TENANT_CHARS]
    label, is_refused = _label_of(custom, adapter)
    rule = VerdictRule.GREEDY if greedy else sampled_rule()
    prompt = prompt_key(req.origin_input_ids)
    return RequestFacts(
        tenant=tenant, sampling=sampling, verdict_rule=rule, label=label, is_label_refused=is_refused, prompt=prompt
    )


def _label_of(custom_params: dict[str, Any], adapter: str) -> tuple[str, bool]:
    """The label that the client named, and whether it named one that is refused; null and "" name none."""
    named = custom_params.get(LABEL_KEY)
    if named is None or named == "":
        return adapter if is_label(adapter) else "", False
    return (named, False) if is_label(named) else ("", True)


def custom_params_of(sampling_params: Any) -> dict[str, Any]:
    """What the client asks of paceline; empty when it sent anything but an object."""
    found = sampling_params.custom_params
    return found if isinstance(found, dict) else {}


def opts_out(req: Any) -> bool:
    """Whether the client asked not to be captured, in one of the three ways."""
    if custom_params_of(req.sampling_params).get(OPT_OUT_KEY):
        return True
    # SGLang checks no types of these either.
    return any(str(key).startswith(OPT_OUT_MARK) for key in (req.extra_key, req.routing_key))


def is_greedy(sampling_params: Any) -> bool:
    """Whether it is served at temperature 0, which SGLang writes as top_k 1 at temperature 1."""
    return bool(sampling_params.top_k == 1)


def ids_before(req: Any, position: int) -> bytes:
    """The first `position` tokens of a request, its prompt and then what it was answered, as int32."""
    prompt = req.origin_input_ids[:position]
    parts = (prompt, req.output_ids[: position - len(prompt)])
    return np.concatenate([np.asarray(part, np.int32) for part in parts]).tobytes()


def commit_of(req: Any, commit: Any) -> Commit:
    """What became visible of it by one forward."""
    finish = req.finished_reason.to_json()["type"] if req.finished() else ""
    if commit is None:
        return Commit(-1, (), finish)
    return Commit(commit.output_index, tuple(commit.token_ids), finish)
