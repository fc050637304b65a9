"""Which weights move by Muon and which by AdamW, and by how much in their first step."""

import pytest
import torch
from paceline.learner.training.muon import Muon
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


@pytest.mark.parametrize(("low_precision", "tolerance"), [(False, 0.03), (True, 1e-6)])
@pytest.mark.parametrize("shape", [(24, 40), (40, 24), (16, 16)])
def test_muon_is_torchs_but_for_what_bfloat16_rounds(shape, low_precision, tolerance):
    generator = torch.Generator().manual_seed(3)
    start = torch.randn(shape, generator=generator)
    weights = [torch.nn.Parameter(start.clone()) for _ in range(2)]
    rest = {"lr": 0.1, "weight_decay": 0.0, "adjust_lr_fn": "match_rms_adamw"}
    ours, torchs = Muon([weights[0]], low_precision=low_precision, **rest), torch.optim.Muon([weights[1]], **rest)
    for _ in range(3):
        weights[0].grad = torch.randn(shape, generator=generator)
        weights[1].grad = weights[0].grad.clone()
        ours.step()
        torchs.step()
        moved, expected = (weight.detach() - start for weight in weights)
        assert (moved - expected).norm() < tolerance * expected.norm()
    kept, theirs = (each.state_dict()["state"][0]["momentum_buffer"] for each in (ours, torchs))
    assert torch.equal(kept, theirs)


def test_muon_is_the_iteration_of_its_source_in_float64():
    generator = torch.Generator().manual_seed(5)
    weight = torch.nn.Parameter(torch.randn(12, 20, generator=generator))
    start = weight.detach().double()
    weight.grad = torch.randn(12, 20, generator=generator)
    Muon([weight], lr=0.1, weight_decay=0.0, adjust_lr_fn="match_rms_adamw").step()
    x = weight.grad.double() / weight.grad.double().norm()  # the first momentum has the gradient's direction
    for _ in range(5):
        x = 3.4445 * x - 4.7750 * (x @ x.T @ x) + 2.0315 * (x @ x.T @ x @ x.T @ x)
    torch.testing.assert_close(weight.detach().double(), start - 0.1 * 0.2 * 20**0.5 * x, rtol=1e-4, atol=1e-5)


def test_a_weight_without_a_gradient_stays():
    weight = torch.nn.Parameter(torch.ones(4, 4))
    Muon([weight], lr=0.1, weight_decay=0.0, adjust_lr_fn="match_rms_adamw").step()
    assert torch.equal(weight.detach(), torch.ones(4, 4))
