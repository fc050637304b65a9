"""What Rollouts asks of its servers and makes of their answers. The real server: tests/e2e/test_rollouts.py."""

import copy
import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from paceline import Rollouts
from paceline.buffer.errors import ConfigError, RolloutFailed
from paceline.serving.rollouts import server as server_module
from paceline.serving.rollouts.target_shapes import checked, checkpoint_shapes
from rollout_server import RECORDED, RecordedServer
from safetensors.torch import save_file

ANSWERED = httpx.Response(200, json={"weight_version": "default"})
NAMED = {"a.weight": torch.arange(6.0).reshape(2, 3), "b.weight": torch.ones(4, dtype=torch.bfloat16)}
UPDATE = ["/begin_weight_update", "/update_weights_from_tensor", "/end_weight_update"]
Attach = Callable[..., tuple[Rollouts, list[RecordedServer]]]


@pytest.fixture
def attach(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Rollouts on so many recorded servers; their calls so far are forgotten."""
    monkeypatch.delenv("PACELINE_REDIS_URL", raising=False)
    opened = []

    def make(
        count: int = 1, versions: str = "default", checkpoint: str = "org/target"
    ) -> tuple[Rollouts, list[RecordedServer]]:
        servers = [RecordedServer(f"http://server-{i}:30000", versions, checkpoint) for i in range(count)]
        by_host = {httpx.URL(server.url).host: server for server in servers}
        transport = httpx.MockTransport(lambda request: by_host[request.url.host](request))
        monkeypatch.setattr(server_module.httpx, "Client", functools.partial(httpx.Client, transport=transport))
        opened.append(Rollouts([server.url for server in servers]))
        monkeypatch.undo()
        for server in servers:
            server.calls.clear()
        return opened[-1], servers

    yield make
    for rollouts in opened:
        rollouts.close()


def answer(**meta: Any) -> dict[str, Any]:
    """The recorded answer to a request of six tokens, with other facts in its meta_info."""
    made = copy.deepcopy(json.loads(RECORDED.read_text(encoding="utf-8"))["generate"]["json"][0])
    made["meta_info"] |= meta
    return made


def as_lists(named: dict[str, torch.Tensor]) -> dict[str, Any]:
    return {name: tensor.tolist() for name, tensor in named.items()}


def test_a_completion_holds_tokens_probabilities_and_rounds(attach: Attach) -> None:
    rollouts, (server,) = attach()
    server.answers = [
        answer(weight_versions=[{"version": "3", "start": 0, "end": 4}, {"version": "4", "start": 4, "end": 6}])
    ]
    (done,) = rollouts.generate([[5, 6, 7]], max_new_tokens=6, temperature=0.5, top_p=0.9)
    meta = server.answers[0]["meta_info"]
    assert list(done.token_ids) == server.answers[0]["output_ids"] == [row[1] for row in meta["output_token_logprobs"]]
    assert list(done.logprobs) == [row[0] for row in meta["output_token_logprobs"]]
    assert [(span.version, span.start, span.end) for span in done.target_versions] == [("3", 0, 4), ("4", 4, 6)]
    assert (done.accepted, done.rounds) == (meta["spec_num_correct_drafts"], meta["spec_verify_ct"])
    assert (done.seconds, done.finish) == (meta["e2e_latency"], "length")
    (body,) = server.bodies[-1:]
    assert body["input_ids"] == [[5, 6, 7]]
    assert body["sampling_params"] == {"max_new_tokens": 6, "temperature": 0.5, "top_p": 0.9}
    assert body["return_logprob"] is True


def test_several_servers_share_the_prompts_and_the_answers_keep_their_order(attach: Attach) -> None:
    rollouts, servers = attach(3)
    for i, server in enumerate(servers):
        server.answers = [answer(e2e_latency=10.0 * i + j) for j in range((2, 2, 3)[i])]
    done = rollouts.generate([[i + 1] for i in range(7)], max_new_tokens=6)
    assert [server.bodies[-1]["input_ids"] for server in servers] == [[[1], [2]], [[3], [4]], [[5], [6], [7]]]
    assert [each.seconds for each in done] == [0.0, 1.0, 10.0, 11.0, 20.0, 21.0, 22.0]


def test_a_server_without_a_prompt_is_not_asked(attach: Attach) -> None:
    rollouts, servers = attach(3)
    assert len(rollouts.generate([[1], [2]], max_new_tokens=6)) == 2
    assert [server.calls for server in servers] == [[], ["/generate"], ["/generate"]]


@pytest.mark.parametrize(
    ("meta", "says"),
    [
        (
            {"finish_reason": {"type": "abort", "message": "out of memory"}},
            "got finish 'abort' (out of memory), expected",
        ),
        ({"output_token_logprobs": []}, "got log-probabilities of 0 tokens, expected one for each of its 6 tokens"),
        ({"weight_versions": [{"version": "1", "start": 0, "end": 5}]}, "expected them to cover 6 tokens"),
    ],
)
def test_what_no_trainer_may_use_is_refused(attach: Attach, meta: dict[str, Any], says: str) -> None:
    rollouts, (server,) = attach()
    server.answers = [answer(**meta)]
    with pytest.raises(RolloutFailed) as caught:
        rollouts.generate([[1]], max_new_tokens=6)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("prompts", "says"),
    [
        ([], "prompts: got none, expected at least one"),
        ([[1], []], "prompt 1: got [], expected token ids"),
        (["text"], "prompt 0: got 'text', expected token ids"),
        ([[1, "x"]], "prompt 0: got [1, 'x'], expected token ids"),
    ],
)
def test_a_bad_prompt_is_refused_before_anything_is_sent(attach: Attach, prompts: Any, says: str) -> None:
    rollouts, (server,) = attach()
    with pytest.raises(ConfigError) as caught:
        rollouts.generate(prompts, max_new_tokens=6)
    assert says in str(caught.value)
    assert server.calls == []


def test_weights_travel_in_one_paused_session_and_the_version_is_checked(attach: Attach) -> None:
    rollouts, servers = attach(2)
    rollouts.sync_weights(NAMED.items(), 7)
    for server in servers:
        assert server.calls == ["/server_info", "/pause_generation", *UPDATE, "/continue_generation", "/model_info"]
        assert (server.version, server.is_paused, server.is_updating) == ("7", False, False)
        assert all(torch.equal(server.loaded[name], tensor) for name, tensor in NAMED.items())
    paused, begun, bucket = servers[0].bodies[-6:-3]
    assert (paused, begun) == ({"mode": "retract"}, {"selector": "target"})
    assert (bucket["selector"], bucket["flush_cache"], bucket["weight_version"]) == ("target", True, "7")


def test_only_the_last_bucket_names_the_version_and_empties_the_cache(attach: Attach) -> None:
    rollouts, (server,) = attach()
    named = {f"{i}": torch.full((4,), float(i)) for i in range(5)}  # 16 bytes each
    rollouts.sync_weights(named.items(), 1, bucket_bytes=32)
    sent = [
        body for path, body in zip(server.calls, server.bodies[-len(server.calls) :], strict=True) if path == UPDATE[1]
    ]
    assert [(body.get("weight_version"), body["flush_cache"]) for body in sent] == [
        (None, False),
        (None, False),
        ("1", True),
    ]
    assert {name: tensor.tolist() for name, tensor in server.loaded.items()} == {
        n: t.tolist() for n, t in named.items()
    }


def test_a_folder_holds_one_whole_file_before_anything_is_paused(attach: Attach, tmp_path: Path) -> None:
    rollouts, servers = attach(2)
    tied = {**NAMED, "head.weight": NAMED["a.weight"]}
    rollouts.sync_weights(tied.items(), 3, folder=tmp_path / "new" / "policy")
    assert [path.name for path in (tmp_path / "new" / "policy").iterdir()] == ["model.safetensors"]
    for server in servers:
        assert server.calls == ["/pause_generation", "/update_weights_from_disk", "/continue_generation", "/model_info"]
        assert {name: tensor.tolist() for name, tensor in server.loaded.items()} == {
            n: t.tolist() for n, t in tied.items()
        }
        assert server.version == "3"


@pytest.mark.guarantee("pushed-everywhere")
@pytest.mark.parametrize(("refused", "folder"), [("begin", False), ("bucket", False), ("folder", True)])
def test_a_refused_update_names_every_server_s_version_and_all_go_on(
    attach: Attach, tmp_path: Path, refused: str, folder: bool
) -> None:
    rollouts, (good, bad) = attach(2, "6")
    bad.refuses = {refused}
    with pytest.raises(RolloutFailed) as caught:
        rollouts.sync_weights(NAMED.items(), 7, folder=tmp_path if folder else None)
    assert f"{bad.url}/" in str(caught.value)
    assert f"target version: got version {good.version} on {good.url}, version {bad.version} on {bad.url}" in str(
        caught.value
    )
    assert "expected 7" in str(caught.value)
    assert [server.is_paused for server in (good, bad)] == [False, False]
    assert [server.calls.count("/continue_generation") for server in (good, bad)] == [1, 1]
    assert not good.is_updating


def test_a_server_that_is_gone_is_named_and_the_others_go_on(attach: Attach) -> None:
    rollouts, (good, gone) = attach(2, "6")
    gone.is_down = True
    with pytest.raises(RolloutFailed) as caught:
        rollouts.sync_weights(NAMED.items(), 7)
    assert "got ConnectError (Connection refused), expected an answer" in str(caught.value)
    assert f"got version 6 on {good.url}, no answer on {gone.url}, expected 7" in str(caught.value)
    assert not good.is_paused


@pytest.mark.guarantee("pushed-everywhere")
def test_a_server_that_says_another_version_afterwards_is_refused(
    attach: Attach, monkeypatch: pytest.MonkeyPatch
) -> None:
    rollouts, (first, second) = attach(2, "6")
    monkeypatch.setattr(second, "_name", lambda _: second._say("name"))
    with pytest.raises(RolloutFailed) as caught:
        rollouts.moved(7)
    assert str(caught.value) == (
        f"target version: got version 7 on {first.url}, version 6 on {second.url}, expected 7 everywhere"
    )


@pytest.mark.parametrize(
    ("named", "says"),
    [({}, "got no tensor"), ({"a": torch.zeros(0)}, "got a of shape (0,), expected the whole tensor")],
)
def test_weights_that_are_not_there_are_refused_and_the_server_goes_on(attach: Attach, named: Any, says: str) -> None:
    rollouts, (server,) = attach()
    with pytest.raises(ConfigError) as caught:
        rollouts.sync_weights(named.items(), 1)
    assert says in str(caught.value)
    assert (server.is_paused, server.is_updating, server.version) == (False, False, "default")


@pytest.mark.guarantee("restart-noticed")
def test_a_server_that_came_back_with_other_weights_generates_nothing_until_they_are_pushed_again(
    attach: Attach, tmp_path: Path
) -> None:
    rollouts, (kept, restarted) = attach(2)
    rollouts.sync_weights(NAMED.items(), 7)
    assert len(rollouts.generate([[1], [2]], max_new_tokens=6)) == 2
    restarted.version = "default"
    calls = [len(server.calls) for server in (kept, restarted)]
    with pytest.raises(RolloutFailed) as caught:
        rollouts.generate([[1], [2]], max_new_tokens=6)
    assert f"got version 7 on {kept.url}, version default on {restarted.url}, expected 7" in str(caught.value)
    assert "a server that was restarted has lost it: push again with sync_weights" in str(caught.value)
    since = [server.calls[before:] for server, before in zip((kept, restarted), calls, strict=True)]
    assert {path for paths in since for path in paths} == {"/model_info"}
    rollouts.sync_weights(NAMED.items(), 7, folder=tmp_path)
    assert len(rollouts.generate([[1], [2]], max_new_tokens=6)) == 2


def test_while_a_push_is_under_way_or_failed_either_version_may_generate(attach: Attach) -> None:
    rollouts, (good, bad) = attach(2)
    rollouts.sync_weights(NAMED.items(), 7)
    bad.refuses = {"bucket"}
    with pytest.raises(RolloutFailed):
        rollouts.sync_weights(NAMED.items(), 8)
    assert {good.version, bad.version} == {"8"} or {good.version, bad.version} == {"7", "8"}
    assert len(rollouts.generate([[1], [2]], max_new_tokens=6)) == 2


def test_an_update_that_a_killed_trainer_left_open_is_ended_first(attach: Attach, caplog: Any) -> None:
    rollouts, (server,) = attach()
    server.is_updating = server.is_paused = True
    rollouts.sync_weights(NAMED.items(), 7)
    begun = ["/begin_weight_update", "/end_weight_update"]
    assert server.calls == [
        "/server_info", "/pause_generation", *begun, *UPDATE, "/continue_generation", "/model_info"
    ]  # fmt: skip
    assert (server.version, server.is_updating, server.is_paused) == ("7", False, False)
    assert "ended an update of the target that another trainer left open" in caplog.text


def checkpoint(folder: Path) -> Path:
    """The target of these tests on disk, in two shards."""
    for number, (name, tensor) in enumerate(NAMED.items()):
        save_file({name: tensor}, folder / f"model-{number}.safetensors")
    return folder


@pytest.mark.guarantee("wrong-shape-refused")
@pytest.mark.parametrize("path", ["bucket", "folder"])
def test_a_tensor_of_another_shape_is_refused_before_a_server_is_asked_for_anything(
    attach: Attach, tmp_path: Path, path: str
) -> None:
    rollouts, (server,) = attach(checkpoint=str(checkpoint(tmp_path)))
    wrong = {**NAMED, "b.weight": torch.ones(5)}
    with pytest.raises(ConfigError) as caught:
        rollouts.sync_weights(wrong.items(), 7, folder=tmp_path / "new" if path == "folder" else None)
    assert str(caught.value) == "weights: got b.weight of shape (5,), expected (4,), as in the target's checkpoint"
    assert not {"/update_weights_from_tensor", "/update_weights_from_disk"} & set(server.calls)
    assert (server.is_paused, server.is_updating, server.version) == (False, False, "default")
    rollouts.sync_weights({**NAMED, "head.weight": torch.ones(2)}.items(), 8)  # of a name it has not, nothing is known
    assert server.version == "8"


def test_shapes_are_known_where_the_checkpoint_is_a_folder_of_safetensors_that_can_be_read(tmp_path: Path) -> None:
    assert checkpoint_shapes(str(checkpoint(tmp_path))) == {"a.weight": (2, 3), "b.weight": (4,)}
    for elsewhere in (None, "org/target", str(tmp_path / "nowhere")):
        assert checkpoint_shapes(elsewhere) == {}
    (tmp_path / "model-2.safetensors").write_bytes(b"no header")
    assert checkpoint_shapes(str(tmp_path)) == {}


def test_shapes_are_those_of_the_checkpoint_that_a_server_names(attach: Attach, tmp_path: Path) -> None:
    rollouts, (_, second) = attach(2)
    second.model_path = str(checkpoint(tmp_path))
    assert rollouts._servers.shapes() == checkpoint_shapes(str(tmp_path)) != {}


def test_a_stream_of_tensors_is_checked_one_by_one(tmp_path: Path) -> None:
    shapes = checkpoint_shapes(str(checkpoint(tmp_path)))
    named = [("b.weight", torch.ones(4)), ("a.weight", torch.ones(1))]
    stream = checked(iter(named), shapes)
    assert next(stream)[0] == "b.weight"
    with pytest.raises(ConfigError, match=r"got a.weight of shape \(1,\), expected \(2, 3\)"):
        next(stream)
    with pytest.raises(ConfigError):
        next(checked(named, shapes))


@pytest.mark.parametrize("urls", ["", [], "localhost:30000", ["http://a:1", 2]])
def test_bad_addresses_are_refused(urls: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PACELINE_REDIS_URL", raising=False)
    with pytest.raises(ConfigError, match="expected at least one, as http://host:port"):
        Rollouts(urls)


def test_a_server_that_does_not_answer_is_noticed_when_attaching(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PACELINE_REDIS_URL", raising=False)
    with pytest.raises(RolloutFailed, match=r"http://127.0.0.1:9/model_info: got ConnectError .* expected an answer"):
        Rollouts("http://127.0.0.1:9/")


def test_servers_get_the_key_they_ask_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.delenv("PACELINE_REDIS_URL", raising=False)
    transport = httpx.MockTransport(lambda request: asked.append(request.headers.get("authorization")) or ANSWERED)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server_module.httpx, "Client", functools.partial(httpx.Client, transport=transport))
        for key in ("secret", None):
            with Rollouts("http://server-0:30000", api_key=key):
                pass
    assert asked == ["Bearer secret", None]


def test_without_redis_nobody_can_be_asked_to_learn(attach: Attach) -> None:
    rollouts, _ = attach()
    with pytest.raises(ConfigError, match="got no Redis, expected PACELINE_REDIS_URL"):
        rollouts.learn()
    with pytest.raises(ConfigError, match="got no Redis, expected PACELINE_REDIS_URL"):
        rollouts.for_trl(learn=True)


def test_flags_that_serve_gives_itself_are_refused_before_anything_starts() -> None:
    with pytest.raises(ConfigError, match="got --model-path, --port, expected others"):
        Rollouts.serve("target", "draft", "--port=1", "--model-path", "x")
