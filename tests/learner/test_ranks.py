"""Several ranks learn what one learner learns, and a rank that dies ends the fit of all."""

import os
import signal
import subprocess
import sys

import pytest
import ranked_fits
import torch
from paceline.learner.model.draft_io import load_draft, load_target_embedding
from paceline.rig.readiness import free_port
from paceline.rig.trace_file import write_traces

#: Sums in another order, over ten fits of some thirty steps.
TOLERANCE = 1e-4


def start(world: int, rank: int, port: int, *given: object) -> "subprocess.Popen[str]":
    told = {"RANK": rank, "WORLD_SIZE": world, "LOCAL_RANK": rank, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    env = {**os.environ, **{name: str(value) for name, value in told.items()}, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, ranked_fits.__file__, *map(str, given)], env=env, stderr=subprocess.PIPE, text=True
    )


@pytest.fixture
def recorded(tiny_speculator, tmp_path):
    """Target, first draft and traces, as a rank is given them."""
    traces = tmp_path / "some.traces"
    write_traces(traces, {}, [tiny_speculator.serve(number) for number in range(5 * ranked_fits.FITS)])
    return tiny_speculator.target, tiny_speculator.draft, traces


def test_ranks_learn_what_one_learner_learns(recorded, tmp_path):
    port, world = free_port(), 3  # of whom most batches give one fewer traces than the others
    processes = [start(world, rank, port, *recorded, tmp_path / "learnt") for rank in range(world)]
    said = [process.communicate(timeout=300)[1] for process in processes]
    assert [process.returncode for process in processes] == [0] * world, said
    alone = ranked_fits.new_trainer(*recorded[:2])
    before = {name: weight.detach().clone() for name, weight in alone.draft.named_parameters()}
    ranked_fits.fits(alone, recorded[2])
    together = load_draft(tmp_path / "learnt", load_target_embedding(recorded[0]))
    for name, weight in together.named_parameters():
        own = dict(alone.draft.named_parameters())[name]
        assert not torch.equal(own, before[name]), name
        assert torch.allclose(weight, own, rtol=TOLERANCE, atol=TOLERANCE), name


def test_a_rank_that_dies_ends_the_others(recorded, tmp_path):
    port = free_port()
    given = (*recorded, tmp_path / "learnt")
    leader, follower = start(2, 0, port, *given), start(2, 1, port, *given, "dies")
    _, said = leader.communicate(timeout=300)
    follower.communicate()
    assert (leader.returncode, follower.returncode) == (1, -signal.SIGKILL), said
    assert not (tmp_path / "learnt").exists()
