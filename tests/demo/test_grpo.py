"""What `make rollouts` makes of its steps; the run itself needs TRL and minutes."""

import io
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from paceline.buffer.errors import ConfigError
from paceline.demo.grpo.notes import StepNote, compared
from paceline.demo.grpo.steps import accept_lengths, step_rows, steps_table
from paceline.demo.grpo.tasks import digit_share, verified
from paceline.policies.acceptance import Tally
from paceline.rig.chat.logic import Task
from rich.console import Console

FIGURES = {
    "rollout/seconds": 9.0,
    "rollout/tail_seconds": 0.5,
    "rollout/accept_length": 1.4,
    "rollout/sync_seconds": 0.2,
}


def test_rows_hold_what_is_known_of_each_step_and_no_more() -> None:
    notes = [StepNote(version="0", figures=FIGURES, kl=0.0, entropy=1.5, logprob_error=1e-6)]
    notes.append(
        StepNote(version="1", figures={**FIGURES, "rollout/draft_lag": 1.0}, kl=0.25, entropy=1.25, logprob_error=2e-6)
    )
    rows = step_rows(notes, [0.1, 0.2], {"1": (Tally(30, 60), Tally(15, 60))})
    assert [(row.step, row.reward, row.kl, row.accept_length) for row in rows] == [
        (0, 0.1, 0.0, 1.4),
        (1, 0.2, 0.25, 1.4),
    ]
    assert [row.entropy for row in rows] == [1.5, 1.25]
    assert [(row.traced, row.frozen, row.draft_lag) for row in rows] == [(None, None, None), (1.5, 1.25, 1.0)]
    console = Console(width=200, file=io.StringIO())
    with console.capture() as shown:
        console.print(steps_table(rows))
    first, second = [line.split() for line in shown.get().splitlines() if "e-06" in line]
    assert first.count("-") == 4  # in traces, frozen, draft, lag
    assert {"0.2500", "1.500", "1.250", "1"} <= set(second)


def test_the_frozen_draft_stands_beside_what_was_served_by_target_version(tiny_speculator) -> None:
    by_hand = defaultdict(Tally)
    traces = [tiny_speculator.serve(i, target_version=str(i % 2)) for i in range(6)]
    for trace in traces:
        by_hand[trace.target_version] += Tally(int(trace.visible_accepted().sum()), len(trace.rounds))
    found = accept_lengths(traces, tiny_speculator.draft, tiny_speculator.target)
    assert {version: served for version, (served, _) in found.items()} == dict(by_hand)
    assert {version: frozen for version, (_, frozen) in found.items()} == dict(by_hand)  # it served them itself


class Chances(torch.nn.Module):
    """A model whose next token does not depend on the text."""

    def __init__(self, logits: list[float]) -> None:
        super().__init__()
        self.logits = torch.tensor(logits)

    def forward(self, ids):
        return SimpleNamespace(logits=self.logits.expand(*ids.shape, -1))


def test_kl_and_the_error_of_log_probabilities_are_those_of_the_definition() -> None:
    policy = torch.tensor([0.0, 1.0, 2.0])
    start = torch.tensor([1.0, 0.0, 0.5])
    p, q = (torch.softmax(logits / 0.5, 0) for logits in (policy, start))
    served = torch.log(p[[2, 0]]).tolist()
    made = {"prompt_ids": [[1]], "completion_ids": [[2, 0]], "logprobs": [[served[0], served[1] - 0.125]]}
    kl, entropy, error = compared(Chances(policy.tolist()), Chances(start.tolist()), made, 0.5)
    assert kl == pytest.approx(float((p * (p / q).log()).sum()), rel=1e-5)
    assert entropy == pytest.approx(float(-(p * p.log()).sum()), rel=1e-5)
    assert error == pytest.approx(0.125, rel=1e-4)


def test_the_last_number_of_a_completion_is_scored_by_the_task_of_its_prompt() -> None:
    class Sums:
        def score_answer(self, answer: str, entry: dict[str, int]) -> float:
            return float(answer == str(entry["sum"]))

    reward = verified({f"{n} + {n}?": Task({"sum": 2 * n}, Sums()) for n in (1, 2)})
    asked = ["1 + 1?", "1 + 1?", "2 + 2?", "2 + 2?"]
    completions = ["1 + 1 = 2", "4", "no idea", "-4 or 4."]
    assert reward(prompts=asked, completions=completions, completion_ids=[]) == [1.0, 0.0, 0.0, 1.0]


def test_text_is_rewarded_for_its_share_of_digits() -> None:
    assert digit_share(["a1b2", "", "77"], prompts=[]) == [0.5, 0.0, 1.0]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"json": Path("/nowhere/at/all.json")}, "--json /nowhere/at/all.json: got a folder that does not exist"),
        ({"record": Path(__file__).parent}, "--record .*: got a folder that exists, expected a new one"),
    ],
)
def test_a_report_that_cannot_be_written_is_refused_before_anything_is_made(tmp_path: Path, changes, said) -> None:
    pytest.importorskip("trl")
    from paceline.demo.grpo.run import GrpoOptions, run_grpo

    fields = {"is_chat": False, "steps": 1, "temperature": 0.5, "rejection": False, "learning_rate": 1e-4}
    fields |= {"taught_at": None, "seed": 0, "data_dir": tmp_path / "data", "json": None, "record": None}
    with pytest.raises(ConfigError, match=said):
        run_grpo(GrpoOptions(**(fields | changes)))
    assert list(tmp_path.iterdir()) == []
