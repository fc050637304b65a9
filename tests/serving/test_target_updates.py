"""Which version the target has after the updates of a trainer: named ones, counted ones, sessions and failed ones."""

import pytest
from paceline.serving.target.target_updates import LOADING, TargetUpdates, next_version


class Trainer:
    """Says what SGLang's hooks say, in SGLang's order; time passes only where `now_s` is moved."""

    def __init__(self, version="7"):
        self.now_s = 100.0
        self.cached_tokens = 0
        self.target = TargetUpdates(version, lambda: self.now_s)

    def load(self, named=None, *, took_s=0.0, is_flushed=True):
        """One call of update_weights_from_*."""
        self.target.begin_call()
        self.now_s += took_s
        self.target.loaded(named)
        if is_flushed:
            self.flush()
        self.target.end_call(self.has_cached)

    def fail(self, why=""):
        """One call that SGLang refuses, or that stops half-way."""
        self.target.begin_call()
        if why:
            self.target.failed(why)
        self.target.end_call(self.has_cached)

    def close(self, *, is_tried=True):
        self.target.close(self.has_cached, is_tried=is_tried)

    def flush(self):
        self.cached_tokens = 0
        self.target.flushed()

    def has_cached(self):
        return self.cached_tokens > 0

    def is_at(self, version, updates):
        status = self.target.said()
        return (self.target.judging, status.version, status.updates) == (version, version, updates)


@pytest.mark.parametrize(
    ("version", "names"),
    [
        ("7", ["8", "9", "10"]),
        ("099", ["100", "101", "102"]),
        ("step-7", ["step-7+1", "step-7+2", "step-7+3"]),
        ("a+9", ["a+10", "a+11", "a+12"]),
        ("a+b", ["a+b+1", "a+b+2", "a+b+3"]),
        ("-1", ["-1+1", "-1+2", "-1+3"]),
        ("1.5", ["1.5+1", "1.5+2", "1.5+3"]),
        ("٣", ["٣+1", "٣+2", "٣+3"]),  # a digit of another script
    ],
)
def test_whole_numbers_count_on_and_other_names_get_a_count(version, names):
    counted = []
    for _ in range(3):
        version = next_version(version)
        counted.append(version)
    assert counted == names


def test_a_named_update_has_its_name_and_an_unnamed_one_is_counted_from_the_last():
    trainer = Trainer("0")
    assert trainer.is_at("0", 0)
    versions = []
    for named in (None, None, "step-5", None, None, "12", None):
        trainer.load(named)
        versions.append(trainer.target.judging)
    assert versions == ["1", "2", "step-5", "step-5+1", "step-5+2", "12", "13"]
    assert trainer.is_at("13", 7)


def test_an_update_in_buckets_counts_once_at_its_end_and_no_version_judges_before():
    trainer = Trainer()
    trainer.target.open()
    judged = []
    for _ in range(8):
        judged.append((trainer.target.judging, trainer.target.reason))
        trainer.load()
    assert judged == [("", LOADING)] * 8
    assert trainer.target.said().version == "7"  # which is what it was last
    trainer.close()
    assert trainer.is_at("8", 1)
    assert trainer.target.reason == ""


def test_the_name_of_a_bucketed_update_is_the_last_that_a_bucket_had():
    trainer = Trainer()
    trainer.target.open()
    for named in ("draft-of-8", "8b", None):
        trainer.load(named)
    trainer.close()
    assert trainer.is_at("8b", 1)


def test_a_refused_update_changes_nothing():
    trainer = Trainer()
    trainer.fail()
    assert trainer.is_at("7", 0)
    trainer.target.open()
    trainer.fail()
    trainer.close()
    assert trainer.is_at("7", 0)
    assert trainer.target.said().update_ms is None


@pytest.mark.parametrize("is_session", [False, True])
def test_an_update_that_failed_half_way_leaves_weights_of_no_version_until_one_succeeds(is_session, caplog):
    trainer = Trainer()
    if is_session:
        trainer.target.open()
        trainer.load("8")
    trainer.fail("the peer is gone")
    if is_session:
        trainer.close()
    status = trainer.target.said()
    assert (trainer.target.judging, status.version, status.updates) == ("", "7", 0)
    assert status.reason == "an update failed: the peer is gone"
    assert "the peer is gone" in caplog.text
    trainer.fail()  # a refused one does not mend it
    assert trainer.target.judging == ""
    trainer.load("8")
    assert trainer.is_at("8", 1)


def test_a_session_in_which_no_load_was_tried_is_one_that_a_peer_wrote_past_sglang():
    trainer = Trainer()
    trainer.target.open()
    trainer.target.renamed("rdma-3")
    assert trainer.target.judging == ""
    trainer.close(is_tried=False)
    assert trainer.is_at("rdma-3", 1)


def test_a_version_named_afterwards_replaces_the_counted_one_and_is_no_update():
    trainer = Trainer("step-7")
    trainer.load()
    assert trainer.is_at("step-7+1", 1)
    trainer.target.renamed("step-8")
    assert trainer.is_at("step-8", 1)


def test_an_update_takes_from_its_first_call_to_its_last():
    trainer = Trainer()
    trainer.load(took_s=0.25)
    assert trainer.target.said().update_ms == 250.0
    trainer.now_s += 60.0
    trainer.target.open()
    for _ in range(3):
        trainer.load(took_s=0.5)
        trainer.now_s += 1.0  # the trainer gathers the next bucket
    trainer.close()
    assert trainer.target.said().update_ms == 4500.0


def stale(trainer):
    return trainer.target.said().stale_prefixes


def test_prompts_that_earlier_weights_have_read_are_reported_until_a_flush_and_logged_once(caplog):
    trainer = Trainer()
    trainer.load(is_flushed=False)
    assert not stale(trainer)  # nothing was cached
    trainer.cached_tokens = 40
    trainer.load(is_flushed=False)
    trainer.load(is_flushed=False)
    assert stale(trainer)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "version 9 of the target serves with cached prompts" in caplog.text
    trainer.flush()
    assert not stale(trainer)
    trainer.cached_tokens = 40  # read by the weights that judge
    assert not stale(trainer)
    trainer.load(is_flushed=False)
    assert stale(trainer)
    assert len(caplog.records) == 2
    trainer.load()
    assert not stale(trainer)


def test_a_flush_between_two_buckets_leaves_what_was_cached_after_it():
    trainer = Trainer()
    trainer.target.open()
    trainer.load(is_flushed=True)
    trainer.cached_tokens = 40  # read by a mixture
    trainer.load(is_flushed=False)
    trainer.close()
    assert stale(trainer)


def test_once_an_update_could_not_be_followed_no_version_judges_any_more():
    trainer = Trainer()
    trainer.target.lose_track("KeyError: 'x'")
    trainer.load()
    assert trainer.target.judging == ""
    assert trainer.target.reason == "its updates could not be followed (KeyError: 'x'); restart the server"
    assert trainer.target.said().version == "8"
