"""Weights changed after publication, URIs that lead elsewhere, and events that a stranger wrote on the board."""

import shutil

import pytest
from made_versions import made_version
from matrix import cases
from paceline.buffer.board.event_codec import encode_event
from paceline.buffer.board.version import BoardEvent, VersionState
from paceline.buffer.board.weights_file import check_weights, sha256_of
from paceline.buffer.errors import BoardConflict, DecodeError, WeightsRefused
from paceline.buffer.keys import EVENTS
from paceline.learner.model.draft_io import load_draft, load_target_embedding, random_draft, save_draft
from paceline.policies.verdict_words import sentence

BATCH = 16
STREAM = EVENTS.name("default")


def make_live(world, number, weights_uri, sha256):
    """What somebody with access to Redis can do: make a version of their own live without any check."""
    version = made_version(number, 0, weights_uri=weights_uri, sha256=sha256)
    for event in (
        BoardEvent(number=number, state=VersionState.CANDIDATE, by="stranger", why="mine", at=1.0, version=version),
        BoardEvent(number=number, state=VersionState.LIVE, by="stranger", why="mine", at=1.0),
    ):
        world.client.xadd(STREAM, {"event": encode_event(event)})


def change_weights(folder, speculator):
    """Other weights of the same layout, which would load without an error."""
    draft = load_draft(folder, load_target_embedding(speculator.target))
    for parameter in draft.parameters():
        parameter.data.add_(1.0)
    (folder / "model.safetensors").unlink()
    return save_draft(draft, folder)


def elsewhere(world):
    """A complete draft in a folder that is not the learner's."""
    folder = world.folder / "elsewhere"
    random_draft(world.speculator.target, folder, seed=9)
    return folder


def no_draft(world):
    """A file with the digest that is announced, which is no draft of this target."""
    folder = world.folder / "other"
    shutil.copytree(world.speculator.draft, folder)
    shutil.copy(world.speculator.target / "model.safetensors", folder / "model.safetensors")
    return folder


def digest(folder):
    return sha256_of(folder / "model.safetensors")


FORGERIES = {
    "another_digest": lambda world: (elsewhere(world).as_uri(), "0" * 64),
    "another_scheme": lambda world: (f"http://127.0.0.1:9{elsewhere(world)}", digest(world.folder / "elsewhere")),
}


@pytest.mark.guarantee("live-weights-changed")
@pytest.mark.parametrize("is_restarted", cases([False, True], everyday=[True]), ids=["same_learner", "its_successor"])
def test_a_live_version_with_changed_weights_is_never_read_and_is_rolled_back(world, is_restarted):
    learner = world.learn(BATCH)
    before = world.board.read()
    number = world.board.next_number()
    folder = elsewhere(world)
    make_live(world, number, folder.as_uri(), digest(folder))
    changed = change_weights(folder, world.speculator)
    with pytest.raises(WeightsRefused, match="the file was changed"):
        check_weights(world.board.read(), number)
    world.learn_more(world.learner() if is_restarted else learner, BATCH)
    events = world.board.events()
    taken_off = next(event for event in events if event.state is VersionState.ROLLED_BACK)
    assert (taken_off.number, taken_off.by) == (number, "learner")
    assert changed[:12] in sentence(taken_off.why)
    world.learn_more(learner, BATCH)
    state = world.board.read()
    assert max(state.rows) > max(before.rows) + 1  # the gate compares again, so a version is published
    world.assert_accounted(world.sent)


@pytest.mark.guarantee("forged-version")
@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_forged_live_version_is_rolled_back_and_learning_goes_on(world, forgery):
    learner = world.learn(BATCH)
    before = world.board.read()
    number = world.board.next_number()
    make_live(world, number, *FORGERIES[forgery](world))
    world.learn_more(learner, BATCH)
    assert world.board.read().rows[number].state is VersionState.ROLLED_BACK
    world.learn_more(learner, BATCH)
    assert max(world.board.read().rows) > number
    assert world.board.read().rows[before.live].state in {VersionState.LIVE, VersionState.RETIRED}
    world.assert_accounted(world.sent)


@pytest.mark.guarantee("not-a-draft")
def test_a_file_that_is_no_draft_stops_no_round(world):
    learner = world.learn(BATCH, ROUND_LEASE_S="60")
    folder = no_draft(world)
    make_live(world, world.board.next_number(), folder.as_uri(), digest(folder))
    for worker in (learner, world.learner(ROUND_LEASE_S="60")):
        world.send(BATCH)
        answers = world.learn_all(worker)
        assert [answer["kind"] for answer in answers] == ["learned"], answers
        assert "cannot be read" in answers[0]["why"]
    world.assert_accounted(world.sent)
    world.board.roll_back("ada", "no draft")
    world.learn_more(learner, BATCH)


@pytest.mark.guarantee("checkpoint-lost")
def test_without_a_checkpoint_training_starts_from_no_changed_weights(world):
    world.learn(BATCH).end()
    number = world.board.next_number()
    folder = elsewhere(world)
    make_live(world, number, folder.as_uri(), digest(folder))
    change_weights(folder, world.speculator)
    shutil.rmtree(world.folder / "data/checkpoints")
    world.learn(BATCH).end()
    log = (world.folder / "learner.log").read_text(encoding="utf-8")
    assert "training starts from" in log
    assert "the file was changed" in log
    world.assert_accounted(world.sent)


STRANGE_EVENTS = {
    "no_field": ({"other": "x"}, "DecodeError"),
    "no_json": ({"event": b"\xff"}, "DecodeError"),
    "illegal_move": (
        {
            "event": encode_event(
                BoardEvent(number=0, state=VersionState.CANARY, by="stranger", why="hello", at=1.0, replica="a")
            )
        },
        "BoardConflict",
    ),
    "unknown_version": (
        {"event": encode_event(BoardEvent(number=77, state=VersionState.LIVE, by="stranger", why="hello", at=1.0))},
        "BoardConflict",
    ),
}


@pytest.mark.guarantee("garbage-on-the-board")
@pytest.mark.parametrize("event", cases(STRANGE_EVENTS, everyday=["no_json", "illegal_move"]))
def test_a_strangers_event_stops_rounds_with_its_name_and_nothing_else_until_it_is_removed(world, event):
    fields, error = STRANGE_EVENTS[event]
    learner = world.learn(BATCH)
    before = world.board.read()
    events = world.board.events()
    event_id = world.client.xadd(STREAM, fields).decode()
    world.send(BATCH)
    for worker in (learner, world.learner()):
        answer = worker.round()
        assert answer["error"] == error, answer
        assert f"board event {event_id}" in answer["why"], answer
        assert "take it off with XDEL" in answer["why"], answer
    with pytest.raises((BoardConflict, DecodeError), match=event_id):
        world.board.read()
    with pytest.raises((BoardConflict, DecodeError), match=event_id):
        world.board.move(0, VersionState.LIVE, "ada", "back")
    assert world.buffer.counts().pending == BATCH
    world.client.xdel(STREAM, event_id)
    assert (world.board.read(), world.board.events()) == (before, events)
    world.learn_all(learner)
    world.assert_accounted(world.sent)
    world.assert_sound()
