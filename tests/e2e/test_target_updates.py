"""A trainer changes the served target: the server lives, its draft stays as it is, and traces say who judged."""

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
import torch
from paceline.rig.models.target import greedy
from paceline.serving.target.sglang_guard import REFUSED
from paceline.serving.target.target_updates import LOADING
from pushed_weights import Trainer, split
from transformers import AutoTokenizer, DynamicCache
from waiting import until

pytestmark = pytest.mark.e2e

PROMPTS, TOKENS = 3, 16
#: Requests in flight, tokens of the longest and of the others.
IN_FLIGHT, LONG, SHORT = 6, 200, 64


@dataclass
class Updated:
    """A server and the trainer of its target."""

    rig: Any
    trainer: Trainer
    tokenize: Any
    seen: list[list[list[int]]] = field(default_factory=list)  # the answers of every target so far

    def prompts(self, count=PROMPTS, characters=120):
        return [self.tokenize(text[:characters]) for text in self.rig.texts[:count]]

    def answers(self, name, count=PROMPTS, tokens=TOKENS):
        jobs = [{"rid": f"{name}-{i}", "text": self.rig.texts[i][:120], "max_tokens": tokens} for i in range(count)]
        return self.rig.generate_all(jobs)

    def assert_serves(self, model, name, version):
        """Greedy answers are the model's own and those of no target before it, and their traces name `version`."""
        answers = self.answers(name)
        wanted = [list(greedy(model, prompt, TOKENS)) for prompt in self.prompts()]
        assert [answer["output_ids"] for answer in answers] == wanted
        assert wanted not in self.seen
        self.seen.append(wanted)
        status = self.rig.drained()
        found = [trace for i in range(PROMPTS) for trace in self.rig.traces_of(f"{name}-{i}")]
        assert [trace.target_version for trace in found] == [version] * PROMPTS
        assert (status.target.version, status.target.reason, status.swap) == (version, "", "on")
        assert status.account.captured == status.account.delivered + sum(status.account.dropped.values())
        return status


@pytest.fixture(scope="module")
def updated(models, start_rig, tmp_path_factory):
    """A server of its own: other tests need the target as it was."""
    folder = tmp_path_factory.mktemp("updated")
    more = ["--max-total-tokens", "8192"]
    with start_rig(models, folder, more, {"PACELINE_TARGET_VERSION": "6"}) as rig:
        tokenizer = AutoTokenizer.from_pretrained(rig.target)
        trainer = Trainer(rig.target, folder / "pushed", rig.port)
        yield Updated(rig, trainer, lambda text: tokenizer(text, add_special_tokens=False).input_ids)


@pytest.mark.servers
def test_before_any_update_traces_name_the_version_of_the_settings(updated):
    status = updated.assert_serves(updated.trainer.at_start(), "start", "6")
    assert (status.target.updates, status.target.update_ms) == (0, None)
    assert not status.target.stale_prefixes


def from_disk(trainer, model):
    trainer.do("update_weights_from_disk", model_path=trainer.written(model, "named"), weight_version="40")


def from_disk_unnamed(trainer, model):
    trainer.do("update_weights_from_disk", model_path=trainer.written(model, "unnamed"))


def in_one_bucket(trainer, model):
    trainer.push_tensors(model, session={}, weight_version="step-3")  # selector "all", as every client by default


def in_many_buckets_unnamed(trainer, model):
    trainer.push_tensors(model, 5, session={"selector": "target"}, selector="target")


def as_slime_does(trainer, model):
    trainer.do("pause_generation")
    trainer.flush()
    trainer.do("update_weights_from_disk", model_path=trainer.written(model, "slime"), weight_version="41")
    trainer.do("continue_generation")


def as_areal_does(trainer, model):
    trainer.do("update_weights_from_disk", model_path=trainer.written(model, "areal"), abort_all_requests=True)


#: In this order: an unnamed update is counted from the one before it.
WAYS = [
    (from_disk, "40"),
    (from_disk_unnamed, "41"),
    (in_one_bucket, "step-3"),
    (in_many_buckets_unnamed, "step-3+1"),
    (as_slime_does, "41"),
    (as_areal_does, "42"),
]


@pytest.mark.servers
@pytest.mark.guarantee("target-updated")
@pytest.mark.parametrize(("push", "version"), WAYS, ids=[push.__name__ for push, _ in WAYS])
def test_pushed_weights_serve_and_the_draft_stays_bit_by_bit(updated, push, version):
    before, drafts = updated.rig.status(), updated.trainer.draft_checksums()
    assert len(drafts) > 5
    model = updated.trainer.stepped(sum(push.__name__.encode()))
    push(updated.trainer, model)
    status = updated.assert_serves(model, push.__name__, version)
    assert updated.trainer.draft_checksums() == drafts
    assert status.target.updates == before.target.updates + 1
    assert status.target.update_ms > 0
    assert status.account.dropped == before.account.dropped


@pytest.mark.servers
def test_an_update_of_the_draft_is_refused_and_the_server_serves_on(updated):
    before, drafts = updated.rig.status(), updated.trainer.draft_checksums()
    answer = updated.trainer.post("begin_weight_update", selector="draft")
    assert (answer.status_code, answer.json()) == (400, {"success": False, "message": REFUSED})
    answer = updated.trainer.post("update_weights_from_disk", model_path="/nowhere")
    assert (answer.status_code, answer.json()["success"]) == (400, False)
    answered = updated.answers("refused")
    status = updated.rig.drained()
    assert updated.trainer.draft_checksums() == drafts
    assert (status.target.version, status.target.updates) == (before.target.version, before.target.updates)
    (trace,) = updated.rig.traces_of("refused-0")
    assert trace.tokens[trace.context_len :].tolist() == answered[0]["output_ids"]
    assert trace.target_version == before.target.version


@pytest.mark.servers
def test_a_name_given_afterwards_is_that_of_the_weights_from_then_on(updated):
    before = updated.rig.status()
    updated.trainer.do("update_weight_version", new_version="50")
    answer = updated.rig.generate("named-afterwards", updated.rig.texts[5][:120], 8)
    assert answer["meta_info"]["weight_version"] == "50"
    status = updated.rig.drained()
    (trace,) = updated.rig.traces_of("named-afterwards")
    assert trace.target_version == status.target.version == "50"
    assert status.target.updates == before.target.updates


class InFlight:
    """Greedy requests that run on a server: entered once the longest of them has streamed some tokens."""

    def __init__(self, updated, name):
        self.updated, self.name = updated, name
        self.pool = ThreadPoolExecutor(IN_FLIGHT)
        self.last = ""  # line of the stream

    def __enter__(self):
        jobs = [
            {"rid": f"{self.name}-{i}", "text": self.updated.rig.texts[i][:120], "max_tokens": SHORT}
            for i in range(1, IN_FLIGHT)
        ]
        self.others = [self.pool.submit(self.updated.rig.generate, **job) for job in jobs]
        self.streamed = self.stream()
        next(self.streamed)
        return self

    def __exit__(self, *_):
        self.pool.shutdown()

    def stream(self):
        """Yields once, under way; then reads the rest."""
        params = {"temperature": 0.0, "ignore_eos": True, "max_new_tokens": LONG}
        body = {"rid": f"{self.name}-0", "text": self.updated.rig.texts[0][:120], "sampling_params": params}
        url = f"http://127.0.0.1:{self.updated.rig.port}/generate"
        client = httpx.Client(timeout=300.0, trust_env=False)
        with client, client.stream("POST", url, json={**body, "stream": True}) as reply:
            lines = (line for line in reply.iter_lines() if line.startswith("data: {"))
            for number, self.last in enumerate(lines):
                if number == 8:
                    yield

    def answers(self):
        """Of all requests in order, once all have ended; the first is the longest."""
        assert next(self.streamed, None) is None
        return [json.loads(self.last.removeprefix("data: ")), *(future.result() for future in self.others)]


def spans(answer):
    """(version, first token, end) of each part of an answer, as SGLang itself reports them."""
    return [(span["version"], span["start"], span["end"]) for span in answer["meta_info"]["weight_versions"]]


def from_scratch(model, read, prompt, count):
    """Greedy answer of a target that read everything itself."""
    return list(greedy(model, prompt, count))


def on_what_others_read(model, read, prompt, count):
    """As `from_scratch`, with the keys and values that `read`, another target, computed of all but the last token."""
    if read is None:
        return list(greedy(model, prompt, count))
    cache, fed, output = DynamicCache(config=model.config), torch.tensor([prompt[-1:]]), []
    with torch.inference_mode():
        read(torch.tensor([prompt[:-1]]), past_key_values=cache, use_cache=True)
        for _ in range(count):
            step = model(fed, past_key_values=cache, use_cache=True)
            fed = step.logits[:, -1:].argmax(-1)
            output.append(int(fed))
    return output


def check_parts(updated, name, answers, models, continued):
    """Every trace holds what its target says next, by `continued`; the longest request was cut where SGLang says."""
    cut = 0
    for i, (answer, prompt) in enumerate(zip(answers, updated.prompts(IN_FLIGHT), strict=True)):
        traces, text, read, parts = updated.rig.traces_of(f"{name}-{i}"), [*prompt], None, []
        for number, trace in enumerate(traces):
            new, version = trace.tokens[trace.context_len :].tolist(), trace.target_version
            assert new == continued(models[version], read, text, len(new))
            if number == 0 or continued is on_what_others_read:  # a retracted request may be read again as a whole
                assert trace.replay_exact == (number == 0 and trace.offset == 0)
            parts.append((version, len(text) - len(prompt), len(text) - len(prompt) + len(new)))
            text, read = text + new, models[version]
        assert text[len(prompt) :] == answer["output_ids"]
        assert parts == spans(answer)
        cut += len(parts) > 1
    assert [version for version, _, _ in spans(answers[0])] == list(models)
    assert cut >= 1


@pytest.mark.servers
def test_requests_in_flight_are_retracted_and_go_on_with_the_new_target_where_their_traces_say(updated):
    models = {"71": updated.trainer.stepped(71), "72": updated.trainer.stepped(72)}
    updated.trainer.push_tensors(models["71"], session={}, weight_version="71")
    before = updated.rig.status()
    with InFlight(updated, "retracted") as under_way:
        updated.trainer.do("pause_generation", mode="retract")
        updated.trainer.push_tensors(models["72"], 2, session={}, weight_version="72")
        updated.trainer.do("continue_generation")
        answers = under_way.answers()
    status = updated.rig.drained()
    check_parts(updated, "retracted", answers, models, from_scratch)
    assert (status.account.dropped, status.target.stale_prefixes) == (before.account.dropped, False)


@pytest.mark.rollouts
def test_requests_in_flight_go_on_in_place_with_the_keys_of_the_old_target(updated):
    models = {"81": updated.trainer.stepped(81), "82": updated.trainer.stepped(82)}
    updated.trainer.push_tensors(models["81"], session={}, weight_version="81")
    before = updated.rig.status()
    with InFlight(updated, "in-place") as under_way:
        updated.trainer.do("pause_generation", mode="in_place")
        updated.trainer.push_tensors(models["82"], 2, session={}, flush_cache=False, weight_version="82")
        updated.trainer.do("continue_generation")
        answers = under_way.answers()
    status = updated.rig.drained()
    check_parts(updated, "in-place", answers, models, on_what_others_read)
    assert (status.account.dropped, status.target.stale_prefixes) == (before.account.dropped, True)
    updated.trainer.flush()
    assert not updated.rig.drained().target.stale_prefixes


@pytest.mark.rollouts
@pytest.mark.guarantee("target-loading-not-captured")
def test_what_runs_or_begins_while_weights_are_loaded_is_lost_and_counted_and_all_else_is_delivered(updated):
    old, new = updated.trainer.stepped(91), updated.trainer.stepped(92)
    updated.trainer.push_tensors(old, session={}, weight_version="91")
    before = updated.rig.drained()
    first, second = split(list(new.state_dict().items()), 2)
    with InFlight(updated, "mixture") as under_way:
        updated.trainer.do("pause_generation", mode="in_place")
        updated.trainer.do("begin_weight_update")
        updated.trainer.load(first, flush_cache=False)
        updated.trainer.do("continue_generation")
        began = updated.answers("began-in-it", count=2)
        assert updated.rig.drained().target.reason == LOADING
        under_way.answers()
    updated.trainer.load(second)
    updated.trainer.do("end_weight_update")
    assert len(began) == 2
    status = updated.assert_serves(new, "after-it", "92")
    lost = Counter(status.account.dropped) - Counter(before.account.dropped)
    ran = {i: updated.rig.traces_of(f"mixture-{i}") for i in range(IN_FLIGHT)}
    ended_before = {i: traces for i, traces in ran.items() if traces}
    assert 0 not in ended_before
    assert [trace.target_version for traces in ended_before.values() for trace in traces] == ["91"] * len(ended_before)
    assert [updated.rig.traces_of(f"began-in-it-{i}") for i in range(2)] == [[], []]
    assert lost == {"target_loading": IN_FLIGHT - len(ended_before) + 2}


@pytest.mark.rollouts
def test_fifty_updates_under_traffic_lose_nothing_and_leave_the_draft(updated):
    """Every request names, token by token, who judged: SGLang's spans, and the traces'."""
    trainer, drafts, before = updated.trainer, updated.trainer.draft_checksums(), updated.rig.drained()
    trainer.do("update_weight_version", new_version="1000")
    wanted = []
    for number in range(50):
        trainer.push_tensors(trainer.stepped(number), 1 + number % 3, session={})
        wanted.append(str(1001 + number))
        updated.answers(f"fifty-{number}", count=2, tokens=8)
    status = updated.rig.drained()
    traces = [[trace.target_version for trace in updated.rig.traces_of(f"fifty-{i}-0")] for i in range(50)]
    assert traces == [[version] for version in wanted]
    assert status.target.updates == before.target.updates + 50
    assert (
        status.account.captured - before.account.captured == status.account.delivered - before.account.delivered == 100
    )
    assert status.account.dropped == before.account.dropped
    assert trainer.draft_checksums() == drafts
    updated.assert_serves(trainer.stepped(49), "after-fifty", "1050")


@pytest.mark.rollouts
def test_a_draft_whose_memory_was_taken_away_is_put_back_when_it_is_resumed(updated):
    trainer, drafts = updated.trainer, updated.trainer.draft_checksums()
    trainer.do("release_memory_occupation")
    # What the GPU's allocator does with the pages; on a CPU they stay. The embedding is the target's.
    trainer.do("weights_checker", action="reset_tensors", selector="draft", skip_tensor_list=["embed_tokens"])
    assert trainer.draft_checksums() != drafts
    trainer.do("resume_memory_occupation")
    assert trainer.draft_checksums() == drafts


@pytest.mark.rollouts
@pytest.mark.parametrize("push", [from_disk, in_one_bucket])
def test_without_paceline_the_same_update_ends_the_server(models, server_without_paceline, tmp_path, push):
    """The tests above fail without the guard: the draft gets tensors of the target."""
    server, port = server_without_paceline
    trainer = Trainer(models[0], tmp_path, port)
    with pytest.raises(httpx.HTTPError):  # nobody answers
        push(trainer, trainer.stepped(1))
    until(lambda: not server.is_running(), "the end of the server")
    assert server.log_contains("AssertionError")
