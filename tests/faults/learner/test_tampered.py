"""Weights changed behind their publication, URIs that lead elsewhere, and events that a stranger wrote on the board."""

import shutil

import pytest
from paceline.buffer.codec import encode_event
from paceline.buffer.errors import BoardConflict, DecodeError, WeightsRefused
from paceline.buffer.keys import EVENTS
from paceline.buffer.version import BoardEvent, DraftVersion, VersionState
from paceline.buffer.weights_file import check_weights, sha256_of
from paceline.learner.model.draft_io import load_draft, load_target_embedding, random_draft, save_draft

BATCH = 16
STREAM = EVENTS.name("default")


def make_live(house, number, weights_uri, sha256):
    """What somebody with access to Redis can do: a version of their own, live, written past every check."""
    version = DraftVersion(number, 0, "target", "1", "eagle3", weights_uri, sha256, "soft", ("", ""))
    for event in (
        BoardEvent(number, VersionState.CANDIDATE, "stranger", "mine", 1.0, version),
        BoardEvent(number, VersionState.LIVE, "stranger", "mine", 1.0),
    ):
        house.client.xadd(STREAM, {"event": encode_event(event)})


def change_weights(folder, speculator):
    """Other weights of the same layout, which would load without a murmur."""
    draft = load_draft(folder, load_target_embedding(speculator.target))
    for parameter in draft.parameters():
        parameter.data.add_(1.0)
    (folder / "model.safetensors").unlink()
    return save_draft(draft, folder)


def elsewhere(house):
    """A whole draft in a folder that is not the learner's."""
    folder = house.folder / "elsewhere"
    random_draft(house.speculator.target, folder, seed=9)
    return folder


def no_draft(house):
    """A file with the digest it is said to have, which is no draft of this target."""
    folder = house.folder / "other"
    shutil.copytree(house.speculator.draft, folder)
    shutil.copy(house.speculator.target / "model.safetensors", folder / "model.safetensors")
    return folder


def digest(folder):
    return sha256_of(folder / "model.safetensors")


FORGERIES = {
    "another_digest": lambda house: (elsewhere(house).as_uri(), "0" * 64),
    "another_scheme": lambda house: (f"http://127.0.0.1:9{elsewhere(house)}", digest(house.folder / "elsewhere")),
}


@pytest.mark.parametrize("is_restarted", [False, True], ids=["same_learner", "its_successor"])
def test_a_live_version_with_changed_weights_is_never_read_and_is_rolled_back(house, is_restarted):
    learner = house.learn(BATCH)
    before = house.board.read()
    number = house.board.next_number()
    folder = elsewhere(house)
    make_live(house, number, folder.as_uri(), digest(folder))
    changed = change_weights(folder, house.speculator)
    with pytest.raises(WeightsRefused, match="the file was changed"):
        check_weights(house.board.read(), number)
    house.learn_more(house.learner() if is_restarted else learner, BATCH)
    events = house.board.events()
    taken_off = next(event for event in events if event.state is VersionState.ROLLED_BACK)
    assert (taken_off.number, taken_off.by) == (number, "learner")
    assert changed[:12] in taken_off.why
    house.learn_more(learner, BATCH)
    state = house.board.read()
    assert max(state.rows) > max(before.rows) + 1  # the gate compares again, and so publishes
    house.assert_accounted(house.sent)


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_forged_live_version_is_rolled_back_and_learning_goes_on(house, forgery):
    learner = house.learn(BATCH)
    before = house.board.read()
    number = house.board.next_number()
    make_live(house, number, *FORGERIES[forgery](house))
    house.learn_more(learner, BATCH)
    assert house.board.read().rows[number].state is VersionState.ROLLED_BACK
    house.learn_more(learner, BATCH)
    assert max(house.board.read().rows) > number
    assert house.board.read().rows[before.live].state in {VersionState.LIVE, VersionState.RETIRED}
    house.assert_accounted(house.sent)


def test_a_file_that_is_no_draft_stops_no_round(house):
    learner = house.learn(BATCH)
    folder = no_draft(house)
    make_live(house, house.board.next_number(), folder.as_uri(), digest(folder))
    for worker in (learner, house.learner()):
        house.send(BATCH)
        said = house.learn_all(worker)
        assert [line["kind"] for line in said] == ["learned"], said
        assert "cannot be read" in said[0]["why"]
    house.assert_accounted(house.sent)
    house.board.roll_back("ada", "no draft")
    house.learn_more(learner, BATCH)


def test_without_a_checkpoint_training_starts_from_no_changed_weights(house):
    house.learn(BATCH, HOLDOUT_REQUESTS="240").end()
    number = house.board.next_number()
    folder = elsewhere(house)
    make_live(house, number, folder.as_uri(), digest(folder))
    change_weights(folder, house.speculator)
    shutil.rmtree(house.folder / "data/checkpoints")
    house.learn(BATCH).end()
    log = (house.folder / "learner.log").read_text(encoding="utf-8")
    assert "training starts from" in log
    assert "the file was changed" in log
    house.assert_accounted(house.sent)


STRANGE_WORDS = {
    "no_field": ({"other": "x"}, "DecodeError"),
    "no_json": ({"event": b"\xff"}, "DecodeError"),
    "illegal_move": (
        {"event": encode_event(BoardEvent(0, VersionState.CANARY, "stranger", "hello", 1.0, replica="a"))},
        "BoardConflict",
    ),
    "unknown_version": (
        {"event": encode_event(BoardEvent(77, VersionState.LIVE, "stranger", "hello", 1.0))},
        "BoardConflict",
    ),
}


@pytest.mark.parametrize("word", STRANGE_WORDS)
def test_a_strangers_event_stops_rounds_with_its_name_and_nothing_else_until_it_is_off(house, word):
    fields, error = STRANGE_WORDS[word]
    learner = house.learn(BATCH)
    before, events = house.board.read(), house.board.events()
    event_id = house.client.xadd(STREAM, fields).decode()
    house.send(BATCH)
    for worker in (learner, house.learner()):
        said = worker.round()
        assert said["error"] == error, said
        assert f"board event {event_id}" in said["why"], said
        assert "take it off with XDEL" in said["why"], said
    with pytest.raises((BoardConflict, DecodeError), match=event_id):
        house.board.read()
    with pytest.raises((BoardConflict, DecodeError), match=event_id):
        house.board.move(0, VersionState.LIVE, "ada", "back")
    assert house.buffer.counts().pending == BATCH
    house.client.xdel(STREAM, event_id)
    assert (house.board.read(), house.board.events()) == (before, events)
    house.learn_all(learner)
    house.assert_accounted(house.sent)
    house.assert_sound()
