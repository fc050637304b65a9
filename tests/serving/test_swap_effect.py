"""Whether a swap changed the model, by its own parameters."""

import pytest
import torch
from paceline.serving.swap.swap_effect import MIN_CHANGED, SAMPLED_VALUES, SwapEffect, take_probe, try_probe

WIDE = 10 * SAMPLED_VALUES


class Model(torch.nn.Module):
    """Two parameters; `fused` holds what a file calls q and k."""

    def __init__(self):
        super().__init__()
        self.fused = torch.nn.Parameter(torch.zeros(2, WIDE))
        self.shared = torch.nn.Parameter(torch.ones(3))

    def take(self, staged):
        with torch.no_grad():
            self.fused.copy_(torch.stack([tensor for _, tensor in staged]))


def staged(seed):
    made = torch.Generator().manual_seed(seed)
    return [(name, torch.randn(WIDE, generator=made)) for name in ("q", "k")]


@pytest.fixture
def model():
    return Model()


def swapped(effect, model, seed, *, takes=True):
    """Swap the weights of `seed` in and return the status of the effect."""
    if takes:
        model.take(staged(seed))
    effect.settle(f"sha-{seed}", take_probe(staged(seed), model))
    return effect.digests


def test_a_copy_that_copies_nothing_is_seen_and_one_that_does_again_ends_it(model):
    effect = SwapEffect()
    assert swapped(effect, model, 0) == ("sha-0", "sha-0")
    assert swapped(effect, model, 1) == ("sha-1", "sha-1")
    assert swapped(effect, model, 2, takes=False) == ("sha-2", "sha-1")
    assert swapped(effect, model, 3, takes=False) == ("sha-3", "sha-1")
    assert swapped(effect, model, 1, takes=False) == ("sha-1", "sha-1")
    assert swapped(effect, model, 4) == ("sha-4", "sha-4")


def test_the_same_weights_under_another_digest_need_no_effect(model):
    effect = SwapEffect()
    swapped(effect, model, 0)
    effect.settle("written again", take_probe(staged(0), model))
    assert effect.digests[1] == "written again"


@pytest.mark.parametrize(("share", "loaded"), [(MIN_CHANGED / 2, "b"), (2 * MIN_CHANGED, "a")])
def test_a_file_that_hardly_differs_need_not_show_in_the_model(model, share, loaded):
    effect, before = SwapEffect(), torch.zeros(SAMPLED_VALUES)
    after = before.clone()
    after[: int(share * SAMPLED_VALUES)] = 1.0
    effect.settle("a", take_probe([("q", before)], model))
    effect.settle("b", take_probe([("q", after)], model))
    assert effect.digests[1] == loaded


def test_without_a_probe_a_swap_is_taken_to_have_worked(model, caplog):
    effect = SwapEffect()
    swapped(effect, model, 0)
    assert try_probe([], model) is None
    assert "the effect of a swap is not known" in caplog.text
    effect.settle("b", None)
    assert effect.digests == ("b", "b")
    assert swapped(effect, model, 1)[1] == "sha-1"


def test_a_probe_is_a_copy(model):
    probe = take_probe(staged(0), model)
    before = probe.model.clone()
    model.take(staged(1))
    assert torch.equal(probe.model, before)
    assert len(probe.model) == SAMPLED_VALUES + 3
