"""Two real servers on one board: a canary drafts on one of them, and a bad one never reaches the other."""

import itertools
import random
import re
import string
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import httpx
import pytest
import torch
from matrix import cases
from paceline.buffer.board.member_status import MemberStatus
from paceline.buffer.board.reason import ReasonCode
from paceline.buffer.board.version import VersionState
from paceline.buffer.board.weights_file import WEIGHTS_FILE, sha256_of, weights_file
from paceline.learner.judging.replay import replay_traces
from paceline.learner.model.draft_io import load_draft, load_target_embedding, save_draft
from paceline.learner.training.trainer import DraftTrainer, TrainingPlan
from paceline.policies.acceptance import Tally, replayed_tally
from paceline.policies.verdict_words import sentence
from paceline.rig.reader import drain_check
from safetensors.torch import load_file, save_file
from waiting import until

pytestmark = pytest.mark.e2e

FIRST, SECOND = "e2e-0", "e2e-1"
MAX_ROUNDS, MAX_WAVES = 200, 20
CONCURRENCY = 4  # requests at a time on each replica
ELSEWHERE = 60  # requests of another domain
NUMBERS = itertools.count()  # of requests here
#: Which of two alarms comes first, or before the harm test, depends on what the draft proposes in vain.
ALARM = re.compile(r"silent_death; accept length 1\.0|degenerate_draft; \d+% of \d+ drafts are one token")
BAD_DRAFT = re.compile(rf"({ALARM.pattern})|accept far less")


@pytest.fixture(scope="module")
def ports(rig, learned, second_server):
    """Both replicas' ports; the second follows the board to the live version by itself."""
    live = rig.board.read().live
    until(lambda: drafts(rig, SECOND) == live, "the second replica to draft with the live version")
    return rig.port, second_server


def beat(rig, replica):
    return rig.board.heartbeats().get(f"replica:{replica}", MemberStatus())


def drafts(rig, replica):
    return beat(rig, replica).draft_version


def ask(rig, port, most):
    """One request, of the same kind everywhere; returns how it finished."""
    number = next(NUMBERS)
    text = rig.texts[number % 40][(number // 40 % 10) * 200 :][:160]
    params = {"temperature": 0.0, "ignore_eos": True, "max_new_tokens": most}
    body = {"rid": f"canary-{number}", "text": text, "sampling_params": params}
    answer = httpx.post(f"http://127.0.0.1:{port}/generate", json=body, timeout=300.0, trust_env=False)
    return answer.json()["meta_info"]["finish_reason"]["type"]


@contextmanager
def traffic(rig, ports):
    """Requests at both replicas until the body ends; yields how they finished."""
    over, reasons = threading.Event(), []

    def go_on(port):
        while not over.is_set():
            reasons.append(ask(rig, port, 48))

    with ThreadPoolExecutor(2 * CONCURRENCY) as pool:
        asking = [pool.submit(go_on, port) for port in ports for _ in range(CONCURRENCY)]
        try:
            yield reasons
        finally:
            over.set()
            for job in asking:
                job.result()


def wave(rig, ports, requests):
    """So many short requests at each replica, and then none until both have told of them and have heard of the other.

    What a server serves while Redis or a courier waits for this machine is no property of the product.
    """
    with ThreadPoolExecutor(2 * CONCURRENCY) as pool:
        reasons = list(pool.map(lambda port: ask(rig, port, 24), requests * [*ports]))
    for _ in range(2):  # each tells, and then has heard what the other told
        told = [drain_check(partial(beat, rig, member)) for member in (FIRST, SECOND)]
        until(lambda told=told: {is_told() for is_told in told} == {True}, "both replicas to tell")
    return reasons


def changed(rig, like, folder: Path, change):
    """Weights of version `like`, changed, in `folder`."""
    tensors = load_file(weights_file(rig.board.read().rows[like].version.weights_uri))
    folder.mkdir()
    save_file({name: change(name, tensor).contiguous() for name, tensor in tensors.items()}, folder / WEIGHTS_FILE)
    return folder


def publish(rig, like, folder: Path):
    """A candidate with the weights in `folder`, otherwise as version `like`."""
    number = rig.board.next_number()
    version = rig.board.read().rows[like].version
    made = replace(version, number=number, weights_uri=folder.as_uri(), sha256=sha256_of(folder / WEIGHTS_FILE))
    rig.board.register(made, "test", "made for a canary")
    return number


def rounds_of(rig, number):
    """Replica -> verify rounds drafted by the version."""
    rounds = {}
    for entry in rig.buffer.replay(100_000):
        if entry.trace.draft_version == number:
            rounds[entry.trace.replica] = rounds.get(entry.trace.replica, 0) + len(entry.trace.rounds)
    return rounds


def random_head(name, tensor):
    if not tensor.is_floating_point():
        return tensor  # the vocabulary map
    return torch.randn(tensor.shape, generator=torch.Generator().manual_seed(1)).to(tensor.dtype) * 0.02


def flipped_sign(name, tensor):
    return -tensor if name == "lm_head.weight" else tensor


def numbers(draw):
    return ", ".join(str(draw.randrange(10_000)) for _ in range(40))


def capitals(draw):
    return " ".join("".join(draw.choices(string.ascii_uppercase, k=draw.randrange(2, 8))) for _ in range(40))


def bytes_in_rows(draw):
    return ",\n    ".join(", ".join(f"0x{draw.randrange(256):02x}" for _ in range(8)) for _ in range(6))


def taught(rig, kind):
    """A draft that learned to continue texts of one kind, and the traces of the last of them."""
    draw = random.Random(0)
    jobs = [{"rid": f"{kind.__name__}-{i}", "text": kind(draw)[:160], "max_tokens": 64} for i in range(ELSEWHERE)]
    rig.generate_all(jobs)
    rig.drained()
    traces = {entry.trace.request_id: entry.trace for entry in rig.buffer.replay(100_000)}
    own = [traces[job["rid"]] for job in jobs]
    trainer = DraftTrainer(load_draft(rig.draft, load_target_embedding(rig.target)), TrainingPlan(steps=rig.steps))
    for begin in range(0, ELSEWHERE - 20, 20):
        trainer.fit(own[begin : begin + 20], own[:begin])
    return trainer.draft, own[-20:]


@pytest.fixture(scope="module")
def elsewhere_draft(rig, learned, rig_elsewhere, tmp_path_factory):
    """A draft that does well on another domain and badly on source code, which all other requests here continue.

    Several domains are tried: one of them is far from what the target makes of source code.
    """
    code = [rig.traces_of(f"after-{i}")[0] for i in range(20)]
    live = rig.board.read().rows[rig.board.read().live].version
    served = load_draft(weights_file(live.weights_uri).parent, load_target_embedding(rig.target))
    bound, seen = (accept_length(served, code, rig.steps) - 1.0) / 8, {}
    for kind in (numbers, capitals, bytes_in_rows):
        draft, own = taught(rig_elsewhere, kind)
        seen[kind.__name__] = here, there = [accept_length(draft, some, rig.steps) - 1.0 for some in (code, own)]
        if here < bound and there > 1.0:
            folder = tmp_path_factory.mktemp("elsewhere")
            save_draft(draft, folder)
            return folder
    raise AssertionError(f"accepted on code and at home: got {seen}, expected one under {bound:.3f} and over 1.0")


def accept_length(draft, traces, steps):
    runs = replay_traces(draft, traces, steps)
    return sum(map(replayed_tally, traces, runs), Tally()).accept_length


@pytest.fixture(
    params=cases([random_head, flipped_sign, "elsewhere"], everyday=[random_head]),
    ids=["random", "flipped", "elsewhere"],
)
def bad_draft(rig, learned, tmp_path, request):
    """Weights that must not draft source code."""
    if request.param == "elsewhere":
        return request.getfixturevalue("elsewhere_draft")
    return changed(rig, rig.board.read().live, tmp_path / "bad", request.param)


@pytest.mark.guarantee("bad-canary-leaves")
def test_a_bad_draft_is_out_within_two_hundred_rounds_and_never_reaches_a_second_replica(rig, ports, bad_draft):
    live = rig.board.read().live
    number = publish(rig, live, bad_draft)
    replica = (FIRST, SECOND)[number % 2]
    reasons = wave(rig, ports, 32)
    rig.board.move(number, VersionState.CANARY, "test", "try it", replica=replica)
    until(lambda: drafts(rig, replica) == number, "the canary")
    for _ in range(MAX_WAVES):
        reasons += wave(rig, ports, 2)
        if rig.board.read().canary is None:
            break
    until(lambda: drafts(rig, replica) == live, "the roll back")
    row = rig.board.read().rows[number]
    assert (row.state, rig.board.read().live) == (VersionState.ROLLED_BACK, live)
    assert BAD_DRAFT.search(sentence(row.why)), row.why
    reasons += wave(rig, ports, 2)
    rounds = rounds_of(rig, number)
    assert set(rounds) == {replica}
    assert rounds[replica] <= MAX_ROUNDS
    assert set(reasons) == {"length"}


@pytest.mark.guarantee("alarm-silent-death")
def test_a_useless_draft_is_rolled_back_even_when_it_went_live_at_once(rig, ports):
    live = rig.board.read().live
    with traffic(rig, ports) as reasons:
        until(lambda: len(reasons) >= 48, "the live version to be observed on both replicas")
        rig.board.move(0, VersionState.LIVE, "test", "the random initial draft")
        until(lambda: rig.board.read().live == live, "the alarm")
        until(lambda: {drafts(rig, FIRST), drafts(rig, SECOND)} == {live}, "the roll back")
    row = rig.board.read().rows[0]
    assert row.state is VersionState.ROLLED_BACK
    assert ALARM.search(sentence(row.why)), row.why
    assert set(reasons) == {"length"}


@pytest.mark.servers
def test_a_better_canary_goes_live_on_a_replica_that_is_alone(rig, learned, rig_elsewhere):
    board, better = rig_elsewhere.board, rig.board.read().rows[rig.board.read().live].version
    start = {"weights_uri": rig.draft.as_uri(), "sha256": sha256_of(rig.draft / WEIGHTS_FILE)}
    first, number = board.next_number(), board.next_number()
    board.register(replace(better, number=first, parent=None, **start), "test", "random weights")
    board.register(replace(better, number=number, parent=first), "test", "learned weights")
    board.move(first, VersionState.LIVE, "test", "nothing better yet")
    until(lambda: drafts(rig_elsewhere, FIRST) == first, "the first version")
    with traffic(rig_elsewhere, 2 * [rig_elsewhere.port]) as reasons:
        board.move(number, VersionState.CANARY, "test", "try it", replica=FIRST)
        until(lambda: board.read().canary is None, "the canary's verdict", 180.0)
    state = board.read()
    assert (state.live, state.rows[number].state) == (number, VersionState.LIVE)
    assert state.rows[number].why.code is ReasonCode.CANARY_GAINS
    assert board.events()[-1].by == f"replica:{FIRST}"
    rig_elsewhere.drained()
    assert min(rounds_of(rig_elsewhere, version)[FIRST] for version in (first, number)) > 100  # they took turns
    assert set(reasons) == {"length"}
