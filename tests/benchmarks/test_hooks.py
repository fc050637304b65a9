"""What the hooks of capture ask of a GPU, held as counts, and how py-spy's samples are read."""

import pytest
from paceline.benchmarks.gpu.cost_servers import Figures
from paceline.benchmarks.hook_cost.forwards import Shape
from paceline.benchmarks.hook_cost.lock_share import shares
from paceline.benchmarks.hook_cost.operations import operations
from paceline.benchmarks.hook_cost.times import hook_times


@pytest.mark.parametrize("batch", [1, 8, 32, 64])
@pytest.mark.parametrize("drafts", [3, 7])
@pytest.mark.parametrize("features", [True, False])
def test_a_round_of_chains_asks_a_gpu_for_one_kernel_one_allocation_and_one_copy(batch, drafts, features):
    asked = operations(Shape(batch, drafts, features))
    assert (asked.launches, asked.allocations, asked.copies, asked.names) == (1, 1, 1, ("pack_round",))


@pytest.mark.parametrize(
    ("features", "launches", "copies"), [(True, ("cat", "_to_copy", "cat"), 2), (False, ("cat", "_to_copy"), 1)]
)
def test_a_prefill_asks_for_a_gather_of_what_is_kept_and_a_cast_of_its_tokens(features, launches, copies):
    asked = operations(Shape(8, 0, features))
    assert (asked.names, asked.allocations, asked.copies) == (launches, len(launches), copies)


@pytest.mark.parametrize("drafts", [3, 0])
def test_requests_that_opt_out_ask_for_nothing(drafts):
    asked = operations(Shape(8, drafts, features=True), is_captured=False)
    assert (asked.launches, asked.allocations, asked.copies) == (0, 0, 0)


def test_the_hooks_are_timed_on_forwards_that_reach_the_line():
    took = hook_times(Shape(2, 3, features=True), forwards=20)
    assert took.hook > 0.0
    assert took.consume > 0.0


def test_a_bench_on_a_gpu_that_was_cut_short_knows_what_it_has(tmp_path):
    first = Figures(tmp_path / "figures.jsonl")
    first.write("rounds", shape="tiny", batch=1, round_ms={"plain": "5.1"})
    assert not first.has("rounds", shape="tiny", batch=1)  # within a run every figure is measured
    again = Figures(tmp_path / "figures.jsonl")
    asked = [("rounds", 1), ("rounds", 8), ("profile", 1)]
    assert [again.has(name, shape="tiny", batch=batch) for name, batch in asked] == [True, False, False]


def test_a_threads_share_is_of_all_samples_those_without_a_holder_included():
    # As py-spy 0.4.2 wrote it of a process with two threads.
    raw = (
        "thread (21592): MainThread;<module> (spin.py:6) 509\n"
        "thread (21594): paceline-swapper;Thread._bootstrap (threading.py:1002);spin (spin.py:3) 190\n"
        "thread (21594): paceline-swapper;Thread._bootstrap (threading.py:1002);wait (threading.py:4) 101\n"
    )
    assert shares(raw, 1000) == {"MainThread": 0.509, "paceline-swapper": 0.291}
