"""The swap protocol on a double of SGLang's scheduler: stages, commits, refuses, times out, and never waits."""

import queue
import re
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import fsspec
import msgspec
import odd_stores
import pytest
import torch
from paceline.buffer.board.member_status import SwapSaid
from paceline.buffer.board.weights_file import sha256_of
from paceline.buffer.errors import StoreUnavailable, WeightsRefused
from paceline.serving import sglang_ranks
from paceline.serving.swap import sglang_swap, swap_channel
from paceline.serving.swap.commands import Act, Readiness, SwapCommand
from paceline.serving.swap.fetch import fetch
from paceline.serving.swap.fetched_weights import FetchedWeights
from paceline.serving.swap.sglang_draft import SglangDraft
from paceline.serving.swap.sglang_resume import after_resume_of
from paceline.serving.swap.sglang_swap import RankSwap
from paceline.serving.swap.staging import StagedDraft, Staging, read_layout
from paceline.serving.swap.swap_channel import Answer
from paceline.serving.swap.swap_client import SwapClient
from paceline.serving.swap.swap_follower import SwapFollower
from paceline.serving.swap.swap_record import SwapRecord
from safetensors.torch import save_file
from waiting import until

odd_stores.register()


class Updater:
    """Takes tensors like SGLang's weight updater."""

    def __init__(self):
        self.loaded = []
        self.model = torch.nn.Linear(3, 2, bias=False)

    def update_weights_from_tensor(self, tensors, load_format):
        self.loaded.append({name: tensor.clone() for name, tensor in tensors})
        with torch.no_grad():
            self.model.weight.copy_(self.loaded[-1]["fc.weight"])
        return True, "Success"


@pytest.fixture
def folder(tmp_path):
    """Three drafts, 0 is the one the server was started with."""
    for number in range(3):
        (tmp_path / f"{number}").mkdir()
        save_file({"fc.weight": torch.full((2, 3), float(number))}, tmp_path / f"{number}" / "model.safetensors")
    return tmp_path


def nothing_released():
    """What swaps read of the scheduler's own weight updater; tests/e2e/test_swap.py has the real one."""
    return SimpleNamespace(offload_tags=set())


@pytest.fixture
def swap(folder):
    """A bound RankSwap, without SGLang's dispatcher."""
    made = RankSwap(0, folder)
    made._scheduler = SimpleNamespace(
        running_batch=SimpleNamespace(reqs=[1, 2, 3]), weight_updater=nothing_released(), draft_worker=SimpleNamespace()
    )
    updater = Updater()
    runner = SimpleNamespace(device="cpu", dtype=torch.float32, weight_updater=updater, model=updater.model)
    made._live = SglangDraft(made._scheduler, runner)
    made._layout = read_layout(folder / "0")
    made._kept.keep(0, StagedDraft([("fc.weight", torch.zeros(2, 3))], 0.0))
    made.fault = ""
    made.client = SwapClient(made)
    return made


class Scheduler(threading.Thread):
    """Iterates like SGLang's event loop: pull, then handle what was pulled."""

    def __init__(self, swap):
        super().__init__(daemon=True)
        self.swap, self.ended, self.pause = swap, threading.Event(), threading.Event()

    def run(self):
        while not self.ended.is_set():
            self.iterate()
            self.pause.wait(0.001)

    def iterate(self):
        received = []
        self.swap.after_pull(received)
        for command in received:
            self.swap._handle(command)

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.join()


def file_of(folder, number):
    file = folder / f"{number}" / "model.safetensors"
    return str(file), sha256_of(file)


@pytest.mark.parametrize("has_copy", [True, False])
def test_a_copy_that_dflash_made_of_its_weights_is_made_again_of_the_new_ones(swap, folder, has_copy):
    worker, made = swap._scheduler.draft_worker, []
    worker._fused_kv_helper = "of the first weights" if has_copy else None
    worker._init_fused_kv_helper = lambda: made.append(swap._live._runner.model.weight.clone())
    with Scheduler(swap):
        swap.client.swap(1, *file_of(folder, 1))
    assert [copy.tolist() for copy in made] == [torch.full((2, 3), 1.0).tolist()] * has_copy


def test_a_swap_loads_the_files_tensors_and_sets_the_version(swap, folder):
    with Scheduler(swap):
        outcome = swap.client.swap(1, *file_of(folder, 1))
    assert (outcome.number, outcome.running, swap.draft_version) == (1, 3, 1)
    assert torch.equal(swap._live._runner.weight_updater.loaded[0]["fc.weight"], torch.full((2, 3), 1.0))
    assert swap.channel.stagings == {}


def test_an_entry_rank_that_asks_for_no_swap_notes_those_that_another_asked_for(swap, folder):
    record = SwapRecord()
    follower = SwapFollower(swap, record)
    file, digest = file_of(folder, 1)
    for act in (Act.COMMIT, Act.PREPARE, Act.COMMIT):  # the first one comes before the file is staged
        swap._handle(SwapCommand(act=act, attempt=7, number=1, file=file, sha256=digest))
        if act is Act.PREPARE:
            assert swap.channel.stagings[7].done.wait(30.0)
        else:
            follower.note(swap.channel.answers.get())
    assert [(done.number, done.before, done.running) for done in [record.last]] == [(1, 0, 3)]
    assert record.done == 1
    assert swap.effect.digests == (digest, digest)


def test_a_fault_while_a_swap_is_noted_ends_no_follower(swap, caplog):
    record = SwapRecord()
    said = SwapSaid(number=1, stage_ms=4.0, commit_ms=1.0, at=2.0, running=3)
    swap.effect.settle = lambda sha256, _probe: {"known": None}[sha256]
    SwapFollower(swap, record).start()
    for sha256 in ("of no file", "known"):
        swap.channel.answers.put(Answer(attempt=1, readiness=Readiness.READY, outcome=said, sha256=sha256))
    until(lambda: record.done == 1, "the swap to be noted")
    assert record.last == msgspec.structs.replace(said, before=0)
    assert [line.getMessage() for line in caplog.records] == [
        "paceline: a swap that another rank asked for is not noted"
    ]


def test_pacing_is_notified_of_a_swap_once_the_version_is_set_and_of_no_refused_one(swap, folder):
    notified = []
    swap._draft_changed = lambda _took_s: notified.append((swap.draft_version, threading.current_thread().name))
    with Scheduler(swap) as scheduler:
        swap.client.swap(1, *file_of(folder, 1))
        with pytest.raises(OSError, match="not a readable safetensors file"):
            swap.client.swap(2, str(folder / "gone"), "x")
    assert notified == [(1, scheduler.name)]


def test_a_version_withdrawn_while_it_is_staged_is_not_loaded(swap, folder):
    with Scheduler(swap) as scheduler:
        with pytest.raises(TimeoutError, match="version 1: it was withdrawn while it was staged"):
            swap.client.swap(1, *file_of(folder, 1), lambda: False)
        swap.client.swap(2, *file_of(folder, 2))
    scheduler.iterate()
    assert (swap.draft_version, swap.channel.stagings) == (2, {})
    assert len(swap._live._runner.weight_updater.loaded) == 1


@pytest.mark.guarantee("alarm-swap-without-effect")
def test_an_update_that_reports_success_and_did_nothing_is_detected(swap, folder):
    with Scheduler(swap):
        swap.client.swap(1, *file_of(folder, 1))
        assert set(swap.effect.digests) == {file_of(folder, 1)[1]}
        swap._live._runner.weight_updater.update_weights_from_tensor = lambda *_, **__: (True, "Success")
        swap.client.swap(2, *file_of(folder, 2))
    assert swap.effect.digests == (file_of(folder, 2)[1], file_of(folder, 1)[1])


def test_the_weights_before_are_kept_and_need_no_disk(swap, folder):
    with Scheduler(swap):
        swap.client.swap(1, *file_of(folder, 1))
        swap.client.swap(0, "/gone/model.safetensors", "x")
        swap.client.swap(2, *file_of(folder, 2))
        with pytest.raises(OSError, match="not a readable safetensors file"):
            swap.client.swap(1, "/gone/model.safetensors", "x")
    assert swap.draft_version == 2
    assert sorted(swap._kept) == [0, 2]


def test_a_first_draft_that_ships_the_embedding_comes_back_from_disk_once_it_is_not_kept_any_more(swap, folder):
    first = {"fc.weight": torch.zeros(2, 3), "embed_tokens.weight": torch.arange(6.0).reshape(3, 2)}
    save_file(first, folder / "0" / "model.safetensors")
    swap._layout = read_layout(folder / "0")
    with Scheduler(swap):
        for number in (1, 2):
            swap.client.swap(number, *file_of(folder, number))
        assert sorted(swap._kept) == [1, 2]
        assert swap.client.swap(0, *file_of(folder, 0)).number == 0
    loaded = swap._live._runner.weight_updater.loaded[-1]
    assert [*loaded] == ["fc.weight"]
    assert torch.equal(loaded["fc.weight"], torch.zeros(2, 3))


def test_a_refused_file_changes_nothing_and_leaves_nothing_staged(swap, folder):
    file, _ = file_of(folder, 1)
    with Scheduler(swap) as scheduler:
        with pytest.raises(WeightsRefused, match="the file was changed"):
            swap.client.swap(1, file, "0" * 64)
        while swap.channel.stagings:
            scheduler.pause.wait(0.001)
    assert (swap.draft_version, swap._live._runner.weight_updater.loaded) == (0, [])


def test_a_scheduler_that_does_not_iterate_is_a_time_out_and_never_hangs_afterwards(swap, folder, monkeypatch):
    monkeypatch.setattr(swap_channel, "PICKUP_S", 0.05)
    monkeypatch.setattr(swap_channel, "STAGE_S", 0.05)
    with pytest.raises(TimeoutError, match="not staged in time"):
        swap.client.swap(1, *file_of(folder, 1))
    with pytest.raises(TimeoutError, match="no iteration"):
        swap.client.swap(0, *file_of(folder, 0))
    monkeypatch.setattr(swap_channel, "STAGE_S", 60.0)
    monkeypatch.setattr(swap_channel, "PICKUP_S", 60.0)
    with Scheduler(swap):  # meets the commands of both attempts that were abandoned, then this one
        assert swap.client.swap(2, *file_of(folder, 2)).number == 2


def test_a_commit_before_its_staging_is_done_answers_not_yet_at_once(swap):
    swap.channel.stagings[7] = Staging()
    swap._handle(SwapCommand(act=Act.COMMIT, attempt=7, number=1, file="", sha256=""))
    assert swap.channel.answers.get_nowait().readiness is Readiness.NOT_YET
    assert 7 in swap.channel.stagings


def test_ranks_commit_together_or_not_at_all(swap, monkeypatch):
    votes = queue.SimpleQueue()

    def least(own):
        votes.put(own)
        return min(own, int(Readiness.NOT_YET))  # another rank still stages

    monkeypatch.setattr(sglang_ranks, "least", least)
    swap._ranks = 2
    swap._handle(SwapCommand(act=Act.COMMIT, attempt=1, number=0, file="", sha256=""))  # ready here: version 0 is kept
    swap._handle(SwapCommand(act=Act.COMMIT, attempt=2, number=9, file="", sha256=""))  # unknown here, and it votes too
    assert [votes.get_nowait(), votes.get_nowait()] == [2, 1]
    assert swap._live._runner.weight_updater.loaded == []
    assert {swap.channel.answers.get_nowait().readiness for _ in range(2)} == {Readiness.NOT_YET}


def test_a_rank_that_could_not_bind_votes_against_every_swap(folder, monkeypatch):
    monkeypatch.setattr(sglang_ranks, "least", lambda own: own)
    unbound = RankSwap(0, folder)
    unbound._ranks, unbound.fault = 2, "FileNotFoundError: no such draft here"
    unbound._handle(
        SwapCommand(act=Act.PREPARE, attempt=1, number=1, file=str(folder / "1" / "model.safetensors"), sha256="")
    )
    assert unbound.channel.stagings[1].done.wait(10.0)
    unbound._handle(SwapCommand(act=Act.COMMIT, attempt=1, number=1, file="", sha256=""))
    answer = unbound.channel.answers.get_nowait()
    assert answer.readiness is Readiness.REFUSED
    assert "this rank cannot swap: FileNotFoundError: no such draft here" in answer.why


def test_a_commit_that_was_never_prepared_is_refused_by_a_rank_that_could_not_bind(monkeypatch):
    votes = []
    monkeypatch.setattr(sglang_ranks, "least", lambda own: votes.append(own) or own)
    unbound = RankSwap(0, folder)
    unbound._ranks, unbound.fault = 2, "FileNotFoundError: no such draft here"
    unbound._handle(
        SwapCommand(act=Act.COMMIT, attempt=1, number=0, file="", sha256="")
    )  # a draft that the entry rank keeps
    answer = unbound.channel.answers.get_nowait()
    assert (answer.readiness, votes) == (Readiness.REFUSED, [0])
    assert answer.why == "this rank cannot swap: FileNotFoundError: no such draft here"


class Dispatcher(list):
    """Takes handlers with +=, like SGLang's."""


def scheduler_of(folder):
    """What RankSwap reads of a scheduler whose draft is in `folder`."""
    if folder.is_dir():
        (folder / "config.json").write_text("{}")
    scheduler = Started(folder)
    scheduler._request_dispatcher = Dispatcher()
    return scheduler


@pytest.fixture
def dispatchers(monkeypatch, layers):
    """SGLang's class of dispatchers, without SGLang; the end-to-end tests have the real one."""
    fake = SimpleNamespace(TypeBasedDispatcher=lambda handlers: handlers)
    monkeypatch.setitem(sys.modules, "sglang", SimpleNamespace(utils=fake))
    monkeypatch.setitem(sys.modules, "sglang.utils", fake)


ELSEWHERE = "another rank cannot swap; see its log"


@pytest.mark.parametrize(
    ("draft", "others", "vote", "fault"),
    [("0", 1, 1, ""), ("0", 0, 1, ELSEWHERE), ("gone", 1, 0, "ConfigError"), ("gone", 0, 0, "ConfigError")],
)
@pytest.mark.usefixtures("dispatchers")
def test_ranks_settle_once_at_start_whether_they_swap(folder, monkeypatch, draft, others, vote, fault):
    votes = []
    monkeypatch.setattr(sglang_ranks, "count", lambda: 2)
    monkeypatch.setattr(sglang_ranks, "least", lambda own: votes.append(own) or min(own, others))
    made, scheduler = RankSwap(0, folder), scheduler_of(folder / draft)
    made.after_init_dispatcher(None, scheduler)
    assert votes == [vote]
    assert made.fault.partition(":")[0] == fault
    assert scheduler._request_dispatcher == [(SwapCommand, made._handle)]  # it answers in any case
    if fault:
        with pytest.raises(TimeoutError, match=f"draft swaps are off: {fault}"):
            SwapClient(made).swap(1, *file_of(folder, 1))


@pytest.mark.usefixtures("dispatchers")
def test_ranks_that_cannot_settle_do_not_swap(folder, monkeypatch):
    monkeypatch.setattr(sglang_ranks, "count", lambda: 2)
    monkeypatch.setattr(sglang_ranks, "least", lambda _: (_ for _ in ()).throw(RuntimeError("the other is gone")))
    made = RankSwap(0, folder)
    made.after_init_dispatcher(None, scheduler_of(folder / "0"))
    assert made.fault == "RuntimeError: the other is gone"


@pytest.mark.usefixtures("dispatchers")
def test_a_quantised_draft_leaves_swaps_off_and_names_the_flag(folder, layers, monkeypatch):
    monkeypatch.setattr(sglang_ranks, "count", lambda: 1)
    scheduler = scheduler_of(folder / "0")
    ((_, runner),) = scheduler.draft_worker.weight_update_runners()
    runner.model.add_module("fc", layers.plain())
    made = RankSwap(0, folder)
    made.after_init_dispatcher(None, scheduler)
    assert made.fault == ""
    runner.model.add_module("o_proj", layers.fp8())
    made.after_init_dispatcher(None, scheduler)
    assert made.fault == (
        "WeightsRefused: o_proj of the served draft: got Fp8LinearMethod, expected no quantisation; "
        "start the server with --speculative-draft-model-quantization unquant"
    )


@pytest.mark.usefixtures("dispatchers")
def test_a_scheduler_that_does_not_tell_what_it_released_leaves_swaps_off(folder, monkeypatch):
    monkeypatch.setattr(sglang_ranks, "count", lambda: 1)
    scheduler = scheduler_of(folder / "0")
    del scheduler.weight_updater.offload_tags
    made = RankSwap(0, folder)
    made.after_init_dispatcher(None, scheduler)
    assert made.fault == "AttributeError: 'types.SimpleNamespace' object has no attribute 'offload_tags'"


RELEASED = "SGLang has released kv_cache, weights; the swap follows resume_memory_occupation"


def test_nothing_is_copied_or_read_while_memory_is_released_and_the_swap_follows(swap, folder, monkeypatch):
    released, scheduler = swap._scheduler.weight_updater.offload_tags, Scheduler(swap)
    released |= {"weights", "kv_cache"}
    seen, answer = [], swap.channel.answers.put

    def resume_after_three(given):
        seen.append((given.readiness, given.probe, swap.waits_for))
        if len(seen) == 3:
            released.clear()
        answer(given)

    monkeypatch.setattr(
        swap.channel,
        "answers",
        SimpleNamespace(put=resume_after_three, get=swap.channel.answers.get, empty=lambda: True),
    )
    monkeypatch.setattr(swap_channel, "NOT_YET_S", 0.0)
    with scheduler:
        assert swap.client.swap(1, *file_of(folder, 1)).number == 1
    assert seen[:3] == 3 * [(Readiness.NOT_YET, None, RELEASED)]
    assert (seen[3][0], swap.waits_for, len(swap._live._runner.weight_updater.loaded)) == (Readiness.READY, "", 1)


def test_a_swap_that_waits_for_released_memory_too_long_is_tried_again_and_says_why(swap, folder, monkeypatch):
    swap._scheduler.weight_updater.offload_tags |= {"weights", "kv_cache"}
    monkeypatch.setattr(swap_channel, "STAGE_S", 0.0)
    with Scheduler(swap) as scheduler, pytest.raises(TimeoutError, match=f"version 0: {RELEASED}, for 0.0 s"):
        swap.client.swap(0, *file_of(folder, 0))
    scheduler.iterate()  # meets the end of it
    assert (swap.waits_for, swap._live._runner.weight_updater.loaded) == ("", [])


def test_a_commit_that_is_done_after_it_was_given_up_on_is_reported_with_its_lateness(swap, folder, monkeypatch):
    monkeypatch.setattr(swap_channel, "PICKUP_S", 0.01)
    with pytest.raises(TimeoutError, match="no iteration"):
        swap.client.swap(0, *file_of(folder, 0))
    assert swap.client.take_late() == []
    given_up_at = swap.channel._given_up[1][1]
    Scheduler(swap).iterate()
    (late,) = swap.client.take_late()
    assert (late.number, late.late_s) == (0, late.at - given_up_at)
    assert (swap.effect.digests[0], swap.client.take_late()) == (file_of(folder, 0)[1], [])


def test_a_late_commit_is_settled_before_the_one_that_came_after_it(swap, folder, monkeypatch):
    monkeypatch.setattr(swap_channel, "PICKUP_S", 0.01)
    with pytest.raises(TimeoutError, match="no iteration"):
        swap.client.swap(0, *file_of(folder, 0))
    monkeypatch.setattr(swap_channel, "PICKUP_S", 60.0)
    with Scheduler(swap):
        swap.client.swap(1, *file_of(folder, 1))
    assert [late.number for late in swap.client.take_late()] == [0]
    assert (swap.draft_version, swap.effect.digests[0]) == (1, file_of(folder, 1)[1])


@pytest.mark.parametrize("broken", ["_least_ready", "_staged"])
def test_a_fault_in_a_handler_is_a_refusal_and_no_exception(swap, folder, monkeypatch, broken):
    def fail(*_):
        raise AttributeError("another release")

    monkeypatch.setattr(swap, broken, fail)
    with Scheduler(swap), pytest.raises(WeightsRefused, match="AttributeError: another release"):
        swap.client.swap(1, *file_of(folder, 1))
    assert swap.draft_version == 0


def test_a_preparation_that_cannot_even_begin_is_refused(swap, folder, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("can't start new thread")

    with Scheduler(swap):
        monkeypatch.setattr(sglang_swap.threading, "Thread", fail)
        with pytest.raises(OSError, match="can't start new thread"):
            swap.client.swap(1, *file_of(folder, 1))
    assert swap.draft_version == 0


def test_a_copy_that_fails_is_a_refusal_and_the_version_stays(swap, folder):
    swap._live._runner.weight_updater.update_weights_from_tensor = lambda *_, **__: (False, "no room")
    with Scheduler(swap), pytest.raises(WeightsRefused, match="SGLang refused the weights: no room"):
        swap.client.swap(1, *file_of(folder, 1))
    assert swap.draft_version == 0


def test_a_rank_that_does_not_receive_is_left_alone(swap):
    swap.channel.inbox.put(SwapCommand(act=Act.ABANDON, attempt=1, number=1, file="", sha256=""))
    swap.after_pull(None)
    assert not swap.channel.inbox.empty()


def test_an_unbound_swap_reports_that_it_is_off():
    with pytest.raises(TimeoutError, match="draft swaps are off: SGLang has not built"):
        SwapClient(RankSwap(0, Path("c"))).swap(1, "x", "y")


def test_the_same_number_with_another_digest_is_another_draft(swap, folder):
    with Scheduler(swap):
        swap.client.swap(1, *file_of(folder, 1))
        swap.client.swap(0, *file_of(folder, 0))
        swap.client.swap(1, *file_of(folder, 2))  # a board that lost its data gave the number again
    assert torch.equal(swap._live._runner.weight_updater.loaded[-1]["fc.weight"], torch.full((2, 3), 2.0))
    assert sorted(swap._kept) == [0, 1]


def test_a_copy_that_fails_half_way_is_undone_with_the_draft_before(swap, folder):
    updater = swap._live._runner.weight_updater
    load = updater.update_weights_from_tensor

    def half(tensors, load_format):
        updater.update_weights_from_tensor = load
        load(tensors, load_format)
        raise RuntimeError("half of it is copied")

    updater.update_weights_from_tensor = half
    with Scheduler(swap), pytest.raises(WeightsRefused, match="half of it is copied"):
        swap.client.swap(1, *file_of(folder, 1))
    assert swap.draft_version == 0
    assert torch.equal(updater.loaded[-1]["fc.weight"], torch.zeros(2, 3))


@pytest.mark.parametrize("scheduler", [None, SimpleNamespace(), SimpleNamespace(running_batch=None)])
def test_running_requests_that_cannot_be_read_are_none_and_cost_no_commit(swap, folder, scheduler):
    swap._scheduler = scheduler
    assert swap.running() == []
    with Scheduler(swap):
        assert swap.client.swap(1, *file_of(folder, 1)).running == 0


def test_a_command_that_cannot_join_the_requests_raises_nothing(swap, caplog):
    swap.channel.inbox.put(SwapCommand(act=Act.ABANDON, attempt=1, number=1, file="", sha256=""))
    swap.after_pull(("requests of", "another release"))
    assert "a swap command is lost" in caplog.text


class Started:
    """What a scheduler offers to a swap that binds: the runner of the draft it was started with."""

    def __init__(self, draft, revision=None, downloads=None):
        updater = Updater()
        named = SimpleNamespace(model_path=str(draft), revision=revision)
        runner = SimpleNamespace(
            device="cpu", dtype=torch.float32, weight_updater=updater, model=updater.model, model_config=named
        )
        self.draft_worker = SimpleNamespace(weight_update_runners=lambda: (("draft", runner),))
        self.server_args = SimpleNamespace(download_dir=downloads)
        self.weight_updater = nothing_released()


def published(folder, form):
    """Draft 1 as others publish it: the name that the server is given, and where it downloads to."""
    (folder / "1" / "config.json").write_text("{}")
    whole = folder / "1" / "model.safetensors"
    match form:
        case "shards":
            whole.rename(folder / "1" / "a.safetensors")
            (folder / "1" / "model.safetensors.index.json").write_text('{"weight_map": {"fc.weight": "a.safetensors"}}')
        case "half the shards":
            whole.unlink()
            (folder / "1" / "model.safetensors.index.json").write_text('{"weight_map": {"fc.weight": "a.safetensors"}}')
        case "pickle":
            whole.unlink()
            torch.save({"fc.weight": torch.ones(2, 3)}, folder / "1" / "pytorch_model.bin")
        case "nested pickle":
            whole.unlink()
            torch.save({"state_dict": {"fc.weight": torch.ones(2, 3)}}, folder / "1" / "pytorch_model.bin")
        case "id":
            home = folder / "hub" / "models--someone--draft"
            (home / "refs").mkdir(parents=True)
            (home / "snapshots").mkdir()
            (home / "refs" / "v2").write_text("c0ffee")
            (folder / "1").rename(home / "snapshots" / "c0ffee")
            return "someone/draft", folder / "hub"
    return folder / "1", None


def bound(swap, scheduler, monkeypatch):
    monkeypatch.setattr(swap, "_register", lambda scheduler: None)
    swap.after_init_dispatcher(None, scheduler)
    swap.client = SwapClient(swap)
    return swap


@pytest.mark.usefixtures("layers")
@pytest.mark.parametrize("form", ["one file", "shards", "pickle", "id"])
def test_a_server_may_be_started_with_every_form_of_a_draft(folder, monkeypatch, form):
    name, downloads = published(folder, form)
    swap = bound(RankSwap(7, folder / "cache"), Started(name, "v2", downloads), monkeypatch)
    assert swap.fault == ""
    assert [*swap._kept] == [7]
    first = swap._kept[7]
    assert [(name, tensor.tolist()) for name, tensor in first.tensors] == [("fc.weight", [[1.0] * 3] * 2)]
    # Equal tensors are equal bytes, in whichever form they came: the learner publishes this digest as version 0.
    save_file({"fc.weight": torch.ones(2, 3)}, folder / "as-published", metadata={"format": "pt"})
    expected = sha256_of(folder / "as-published") if form in {"shards", "pickle"} else first.sha256
    assert swap.effect.digests[1] == first.sha256 == expected


@pytest.mark.usefixtures("layers")
@pytest.mark.parametrize(
    ("form", "reason"),
    [
        ("half the shards", "ConfigError: .*got 'a.safetensors' for fc.weight, expected a file in"),
        ("nested pickle", "ConfigError: .*pytorch_model.bin: got dict for 'state_dict', expected a dictionary"),
    ],
)  # fmt: skip
def test_a_draft_that_is_not_whole_leaves_swaps_off_with_the_reason(folder, monkeypatch, form, reason):
    name, downloads = published(folder, form)
    swap = bound(RankSwap(0, folder / "cache"), Started(name, None, downloads), monkeypatch)
    assert re.match(reason, swap.fault)
    with pytest.raises(TimeoutError, match="draft swaps are off: ConfigError"):
        swap.client.swap(2, *file_of(folder, 2))


@pytest.mark.usefixtures("layers")
def test_a_draft_with_the_targets_head_never_loads_one(folder, monkeypatch):
    (folder / "1" / "config.json").write_text('{"draft_vocab_size": null}')
    scheduler = Started(folder / "1")
    ((_, runner),) = scheduler.draft_worker.weight_update_runners()
    runner.model.load_lm_head_from_target = True
    swap = bound(RankSwap(0, folder / "cache"), scheduler, monkeypatch)
    save_file({"fc.weight": torch.ones(2, 3), "lm_head.weight": torch.ones(4, 2)}, folder / "2" / "model.safetensors")
    with Scheduler(swap), pytest.raises(WeightsRefused, match=r"lm_head\.weight: belongs to the target"):
        swap.client.swap(2, *file_of(folder, 2))
    assert runner.weight_updater.loaded == []


def lost_weights(swap):
    """What SGLang's allocator leaves of a model whose memory it released."""
    with torch.no_grad():
        swap._live._runner.model.weight.fill_(float("nan"))


def drafts_with(swap):
    return swap._live._runner.model.weight[0, 0].item()


@pytest.mark.guarantee("draft-put-back")
@pytest.mark.parametrize("tags", [None, [], ["weights"], ["kv_cache", "weights"]])
def test_the_live_draft_is_copied_in_again_when_sglang_takes_the_memory_of_weights_back(swap, folder, tags):
    body = after_resume_of(swap)
    with Scheduler(swap):
        swap.client.swap(2, *file_of(folder, 2))
    lost_weights(swap)
    assert body(None, None, SimpleNamespace(tags=tags)) is None
    assert (drafts_with(swap), swap.draft_version) == (2.0, 2)


def test_the_draft_is_left_alone_when_other_memory_comes_back(swap):
    after_resume_of(swap)(None, None, SimpleNamespace(tags=["kv_cache", "cuda_graph"]))
    assert swap._live._runner.weight_updater.loaded == []


@pytest.mark.guarantee("no-exception-reaches-sglang")
def test_a_draft_that_cannot_be_put_back_costs_no_exception_and_is_logged(swap, caplog):
    def fail(*_, **__):
        raise RuntimeError("no memory")

    swap._live._runner.weight_updater.update_weights_from_tensor = fail
    after_resume_of(swap)(None, None, SimpleNamespace(tags=None))
    assert "the weights of version 0 could not be put back" in caplog.text
    after_resume_of(swap)(None, None, None)
    assert "the draft was not put back" in caplog.text


def test_without_swaps_nothing_is_put_back(tmp_path):
    after_resume_of(RankSwap(0, tmp_path))(None, None, SimpleNamespace(tags=None))


@pytest.mark.guarantee("store-away")
def test_while_a_store_is_slow_the_scheduler_waits_for_nothing_and_then_the_swap_is_done(swap, folder, tmp_path):
    file, sha256 = file_of(folder, 1)
    place = f"slow-{sha256[:16]}/model.safetensors"
    fsspec.filesystem("memory").pipe_file(f"/{place}", Path(file).read_bytes())

    def fetch_here(arguments):
        uri, digest, cache, max_bytes, *_ = arguments
        fetch(uri, digest, Path(cache), max_bytes=int(max_bytes))

    swap._fetched = FetchedWeights(tmp_path / "cache", 1 << 20, fetch_here)
    scheduler = Scheduler(swap)  # iterated here
    with ThreadPoolExecutor(1) as pool:
        outcome = pool.submit(swap.client.swap, 1, f"slow://{place}", sha256)
        until(lambda: scheduler.iterate() or odd_stores.Slow.asked.is_set(), "the store is asked")
        commit = SwapCommand(act=Act.COMMIT, attempt=1, number=1, file="", sha256=sha256)
        assert swap._commit(commit).readiness is Readiness.NOT_YET
        assert swap.draft_version == 0
        odd_stores.Slow.go.set()
        until(lambda: scheduler.iterate() or outcome.done(), "the swap is done")
    assert (outcome.result().number, swap.draft_version) == (1, 1)
    assert torch.equal(swap._live._runner.weight_updater.loaded[0]["fc.weight"], torch.full((2, 3), 1.0))


@pytest.mark.guarantee("store-away")
def test_a_store_that_is_away_costs_the_swap_alone(swap, folder, tmp_path):
    def away(_):
        raise StoreUnavailable("s3://bucket/v1: got NoCredentialsError, expected published weights")

    swap._fetched = FetchedWeights(tmp_path / "cache", 1 << 20, away)
    with Scheduler(swap):
        with pytest.raises(OSError, match="StoreUnavailable: s3://bucket/v1: got NoCredentialsError"):
            swap.client.swap(1, "s3://bucket/v1/model.safetensors", "0" * 64)
        assert swap.client.swap(2, *file_of(folder, 2)).number == 2
