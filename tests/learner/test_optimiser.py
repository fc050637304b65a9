"""Which weights move by Muon and which by AdamW, and by how much in their first step."""

import pytest
import torch
from paceline.learner.training.optimiser import DraftOptimiser

RATE, MATRIX_RATE = 1e-3, 2.0


def moved(draft, matrix_rate: float) -> dict[str, torch.Tensor]:
    """What one step changes of every weight, with random gradients; at least 16 x 16 of them in a matrix."""
    optimiser = DraftOptimiser(draft, matrix_rate)
    for weight in draft.parameters():
        weight.grad = torch.randn(weight.shape, generator=torch.Generator().manual_seed(weight.numel()))
    before = {name: weight.detach().clone() for name, weight in draft.named_parameters()}
    optimiser.step(RATE)
    return {name: before[name] - weight.detach() for name, weight in draft.named_parameters()}


def is_matrix(name: str, weight: torch.Tensor) -> bool:
    return weight.dim() == 2 and name != "lm_head.weight"


def test_a_matrix_moves_alike_in_every_direction_by_the_size_of_an_adam_step(make_draft):
    found = {name: change for name, change in moved(make_draft(1), MATRIX_RATE).items() if is_matrix(name, change)}
    assert len(found) == 8
    for change in found.values():
        # arXiv:2502.16982: an orthogonal step times 0.2 * sqrt(longer side). Five iterations leave the singular
        # values of one between 0.5 and 1.5 or so, but for those that a random gradient hardly had.
        size = MATRIX_RATE * RATE * 0.2 * max(change.shape) ** 0.5
        values = torch.linalg.svdvals(change) / size
        assert values.max() < 1.3
        assert 0.6 < values.median() < 1.3


def test_norms_and_the_head_move_by_adam(make_draft):
    draft = make_draft(1)
    found = moved(draft, MATRIX_RATE)
    others = [name for name, weight in draft.named_parameters() if not is_matrix(name, weight)]
    assert "lm_head.weight" in others
    for name in others:
        gradient = draft.get_parameter(name).grad
        torch.testing.assert_close(found[name], RATE * gradient.sign(), rtol=1e-3, atol=1e-6)


def test_at_rate_zero_adam_moves_everything(make_draft):
    draft = make_draft(1)
    for name, change in moved(draft, 0.0).items():
        torch.testing.assert_close(change, RATE * draft.get_parameter(name).grad.sign(), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(("kept", "loading"), [(2.0, 0.0), (0.0, 2.0)])
def test_a_state_of_another_way_to_move_is_left(make_draft, kept, loading):
    draft = make_draft(1)
    saved, optimiser = DraftOptimiser(draft, kept).state_dict(), DraftOptimiser(draft, loading)
    before = optimiser.state_dict()
    assert optimiser.load_state_dict(saved) is False
    assert optimiser.state_dict() == before
    assert DraftOptimiser(draft, kept).load_state_dict(saved) is True


def test_a_shared_head_is_no_weight_of_the_draft(make_draft):
    draft = make_draft(1, shares_head=True)
    optimiser = DraftOptimiser(draft, MATRIX_RATE)
    moving = [
        weight for each in (optimiser._adam, optimiser._muon) for g in each.param_groups for weight in g["params"]
    ]
    assert {id(weight) for weight in moving} == {id(weight) for weight in draft.parameters()}
