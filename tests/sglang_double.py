"""A request as SGLang's scheduler has it, with the attributes that capture reads; test_hook_install.py checks them."""

from types import SimpleNamespace


def request(rid, *, top_k=1, custom_params=None, prompt=(), output=(), **changes):
    """A text request without an adapter, greedy unless told otherwise."""
    params = SimpleNamespace(
        top_k=top_k, top_p=1.0, temperature=1.0, frequency_penalty=0, presence_penalty=0, repetition_penalty=1.0,
        logit_bias=None, custom_params=custom_params, min_new_tokens=0,
    )  # fmt: skip
    found = {"sampling_params": params, "grammar": None, "lora_id": None, "multimodal_inputs": None}
    found |= {
        "input_embeds": None,
        "extra_key": None,
        "routing_key": None,
        "origin_input_ids": list(prompt),
        "output_ids": list(output),
    }
    return SimpleNamespace(rid=rid, **found | changes)


def batch_of(reqs, **changes):
    """A batch of these requests on the CPU that is not idle."""
    found = {"device": "cpu", "forward_mode": SimpleNamespace(is_idle=lambda: False), "decoding_reqs": None}
    return SimpleNamespace(reqs=reqs, **found | changes)
