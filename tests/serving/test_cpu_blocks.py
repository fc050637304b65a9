"""What the CPU host does for DFLASH; tests/e2e/test_dflash.py serves with it."""

import sys
from types import SimpleNamespace

import pytest
import torch
from paceline.serving.cpu_host import block_drafts


def test_keys_and_values_of_committed_tokens_are_kept_and_no_others():
    slots = torch.tensor([[3, 1, 4], [0, 6, 2]])
    keys, values = torch.arange(1.0, 13.0).view(6, 1, 2), torch.arange(21.0, 33.0).view(6, 1, 2)
    kept_keys, kept_values = torch.zeros(7, 1, 2), torch.zeros(7, 1, 2)
    block_drafts.store_committed(
        keys, values, kept_keys, kept_values, slots, torch.tensor([2, 1], dtype=torch.int32), 2, torch.float32
    )
    for kept, given in ((kept_keys, keys), (kept_values, values)):
        assert kept[[3, 1, 0]].flatten().tolist() == given[[0, 1, 3]].flatten().tolist()
        assert kept[[4, 6, 2, 5]].abs().sum() == 0


@pytest.mark.parametrize("is_draft", [True, False])
def test_embeddings_are_what_the_target_made_of_tokens_and_not_rounded(is_draft):
    exact = torch.tensor([[0.1, 0.2]])
    batch = SimpleNamespace(input_embeds=exact if is_draft else None, replace_embeds=None)

    def arguments(_runner, batch, _proxies):
        return {} if batch.input_embeds is None else {"input_embeds": batch.input_embeds.bfloat16()}

    found = block_drafts.exact_embeddings(arguments, SimpleNamespace(dtype=torch.float32), batch, None)
    assert found == ({"input_embeds": exact} if is_draft else {})


def test_the_flags_of_blocks_are_read_as_of_a_platform_that_has_them(monkeypatch):
    hook = SimpleNamespace(current_platform="a CPU")
    monkeypatch.setitem(sys.modules, "sglang.srt.arg_groups", SimpleNamespace(speculative_hook=hook))
    seen = []

    def handle(flags):
        platform = hook.current_platform
        seen.append((flags, platform.is_out_of_tree(), platform.supports_speculative_algorithm("DFLASH")))
        backends = ("cpu_sdpa", "flashinfer")
        seen.append([platform.supports_speculative_draft_attention_backend("DFLASH", name) for name in backends])
        seen.append(platform.get_default_speculative_draft_attention_backend("DFLASH"))
        raise ValueError("of another flag")

    with pytest.raises(ValueError, match="of another flag"):
        block_drafts.allowing("cpu_sdpa")(handle, "flags")
    assert seen == [("flags", True, True), [True, False], "cpu_sdpa"]
    assert hook.current_platform == "a CPU"
