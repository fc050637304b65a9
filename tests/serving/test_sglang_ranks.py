"""What ranks decide together: two processes in the process groups that the real SGLang makes, over the loopback."""

import json
import os
import subprocess
import sys
from contextlib import ExitStack

import pytest
from paceline.rig.readiness import free_port
from paceline.serving.cpu_host.defaults import server_env

pytestmark = pytest.mark.servers

#: One rank: the numbers, the pacing and the swaps that it settles with the other, and what commits come to.
RANK = """
import json, sys
from pathlib import Path
from types import SimpleNamespace
from sglang.srt.distributed.parallel_state import init_distributed_environment, initialize_model_parallel
from sglang.srt.runtime_context import get_parallel
from paceline.buffer.settings.kinds import PacingName
from paceline.serving import sglang_ranks
from paceline.serving.pacing.sglang_pacing import SglangPacing
from paceline.serving.swap.commands import Act, SwapCommand
from paceline.serving.swap.sglang_draft import SglangDraft
from paceline.serving.swap.sglang_swap import RankSwap
from paceline.serving.swap.staging import StagedDraft, Staging


class Live(SglangDraft):  # a draft model of one number; its next copy stops half-way while `is_failing`
    held, is_failing = 0.0, False

    def __init__(self):
        pass

    def load(self, draft):
        self.held = 0.5 if self.is_failing else dict(draft.tensors)["fc"]
        if self.is_failing:
            self.is_failing = False
            raise RuntimeError("half of it is copied")

    def why_not_now(self):
        return ""

    def probe(self, draft):
        return None


def commits(swap, rank):  # answer, version and weights after each of four commits; the second rank fails in two
    swap.fault, swap._live = "", Live()
    swap._kept.keep(0, StagedDraft([("fc", 0.0)], 0.0))
    found = []
    for number, fails in ((1, ""), (2, "copy"), (3, "vote"), (4, "")):
        staging = swap.channel.stagings[number] = Staging(draft=StagedDraft([("fc", float(number))], 0.0))
        staging.done.set()
        swap._live.is_failing = rank == 1 and fails == "copy"
        if rank == 1 and fails == "vote":
            staging.done = None  # what makes the vote itself fail
        swap._handle(SwapCommand(act=Act.COMMIT, attempt=number, number=number, file="", sha256=""))
        answer = swap.channel.answers.get_nowait()
        found.append([answer.readiness.name, swap.draft_version, swap._live.held, answer.why])
    return found


rank, address, good_costs, own_costs = int(sys.argv[1]), *sys.argv[2:]
widths = ("pp_size", "attn_dp_size", "attn_cp_size", "moe_ep_size", "moe_dp_size", "attn_dcp_size")
widths = {**dict.fromkeys(widths, 1), "tp_size": 2, "attn_tp_size": 2, "shared_experts_tp_size": None}
get_parallel().override_permanently(**widths)
init_distributed_environment(2, rank, address, rank, "gloo", timeout=100)
initialize_model_parallel("gloo")

found = {"count": sglang_ranks.count(), "least": [sglang_ranks.least(5 + rank), sglang_ranks.least(5 - rank)]}
found["is_same"] = [sglang_ranks.is_same_on_all(value) for value in (7, 7 + rank, 7 - rank, 2**32 - 1)]
found["pacing"] = []
for costs in (good_costs, own_costs):
    pacing = SglangPacing(PacingName.GOODPUT, costs)
    pacing.before_controller(None, SimpleNamespace(speculative_num_steps=3), SimpleNamespace(candidate_steps=[0, 3]))
    found["pacing"].append([pacing.said().policy, pacing.said().reason])
swap = RankSwap(0, Path("cache"))
swap._ranks = sglang_ranks.count()
found["swap"] = [swap._settled(""), swap._settled("no draft here" if rank == 1 else "")]
found["commits"] = commits(swap, rank)
print("RANK", json.dumps(found))
"""


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What each of the two found; the second cannot read its own table of step costs."""
    folder, address = tmp_path_factory.mktemp("ranks"), f"tcp://127.0.0.1:{free_port()}"
    costs = folder / "costs.json"
    costs.write_text('{"cost_ms": {"1": [10, 12, 14, 16]}}')
    env = server_env(["--model-path", "nowhere"], os.environ) | {"GLOO_SOCKET_IFNAME": "lo"}
    with ExitStack() as stack:
        started = []
        for rank, own in enumerate([costs, folder / "gone.json"]):
            command = [sys.executable, "-c", RANK, str(rank), address, str(costs), str(own)]
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
            started.append(stack.enter_context(subprocess.Popen(command, env=env, text=True, **pipes)))
            stack.callback(started[-1].kill)
        said = [rank.communicate(timeout=300) for rank in started]
    assert [rank.returncode for rank in started] == [0, 0], said
    lines = [line for out, _ in said for line in out.splitlines() if line.startswith("RANK ")]
    return [json.loads(line.removeprefix("RANK ")) for line in lines]


def test_two_ranks_find_the_least_value_and_whether_theirs_are_the_same(ranks):
    for found in ranks:
        assert (found["count"], found["least"], found["is_same"]) == (2, [5, 4], [True, False, False, True])


def test_two_ranks_are_paced_by_one_table_and_not_at_all_when_one_cannot_read_it(ranks):
    (both, first), (both_too, second) = (found["pacing"] for found in ranks)
    assert both == both_too == ["goodput", ""]
    assert first == ["off", "another rank cannot pace, or has another setting or table of step costs; see its log"]
    assert second[0] == "off"
    assert "No such file" in second[1]


def test_two_ranks_swap_both_or_neither(ranks):
    assert [found["swap"] for found in ranks] == [
        ["", "another rank cannot swap; see its log"],
        ["", "no draft here"],
    ]


def test_two_ranks_copy_both_or_neither_whatever_fails_on_one(ranks):
    first, second = (found["commits"] for found in ranks)
    copied, kept = ["READY", 1, 1.0, ""], ["REFUSED", 1, 1.0]
    assert first == [
        copied,
        [*kept, "another rank could not copy the weights; see its log"],
        [*kept, ""],
        ["READY", 4, 4.0, ""],
    ]
    assert second == [
        copied,
        [*kept, "RuntimeError: half of it is copied"],
        [*kept, "AttributeError: 'NoneType' object has no attribute 'is_set'"],
        ["READY", 4, 4.0, ""],
    ]
