"""One sentence per question: each says what is known, and nothing green is left where nobody is alive to say it."""

import io
import re
from dataclasses import replace

import pytest
from fleet import LIVE_AT, NOW, board, counted, learner, replica, requests, snapshot, steps
from paceline.buffer.board.counters import DraftPositions
from paceline.buffer.finding import Level
from paceline.dashboards.alarm_lines import standing_and_recent
from paceline.dashboards.answer import answer, finding_text
from paceline.dashboards.by_start import CONTEXT_BUCKETS, OUTPUT_BUCKETS
from paceline.policies.readings.definitions import DEFINITIONS
from rich.console import Console

TOPICS = ["faster", "fresh", "last swap", "loop", "alarms"]
HERE = {"replica_a": replica(), "learner_l": learner()}


def said(seen, topic):
    (found,) = [finding for finding in answer(seen).findings if finding.topic == topic]
    return found.level, found.sentence


def history(speculative_tokens, *, plain_steps=40, dropped=0):
    """Ten minutes in which plain steps committed 8 tokens in 10 ms, and speculative ones some in 15 ms."""

    def entry(share):
        plain = steps(
            0, int(plain_steps * share), tokens=int(plain_steps * share) * 8, seconds=plain_steps * share * 0.01
        )
        count = int(4000 * share)
        drafted = steps(3, count, tokens=int(speculative_tokens * count), seconds=count * 0.015)
        fate = {"captured": int(1000 * share), "delivered": int(1000 * share) - dropped, "dropped": {"gap": dropped}}
        return counted(NOW - 600.0 + 600.0 * share, steps=(plain, drafted), **(fate if share else {}))

    return [entry(share / 40) for share in range(41)]


def test_every_question_is_answered_in_its_order():
    assert [finding.topic for finding in answer(snapshot(**HERE)).findings] == TOPICS


@pytest.mark.parametrize(
    ("tokens", "level", "word"),
    [(24.0, Level.OK, "yes: 2.00x"), (6.0, Level.WRONG, "no, slower: 0.50x")],
)
def test_faster_is_the_speed_over_plain_decoding_at_the_same_batch_size(tokens, level, word):
    found = said(snapshot(histories={"replica:a": history(tokens)}, **HERE), "faster")
    assert found[0] is level
    assert found[1].startswith(f"{word} plain decoding (")
    assert ", batch 5-8, 40 plain steps, measured 0 s ago; now " in found[1]
    assert "; now (last 10 min) " in found[1]


def test_without_a_plain_step_the_speed_is_bounded_and_what_decides_is_said():
    named = {"adaptive": False, "num_steps": 3, "eagle_topk": 1, "num_draft_tokens": 4}
    here = {"replica_a": replica(server={"speculation": named}), "learner_l": learner()}
    seen = snapshot(histories={"replica:a": history(24.0, plain_steps=0)}, **here)
    level, sentence = said(seen, "faster")
    assert level is Level.NOTE
    assert sentence.startswith(
        "not shown: 0.30x .. 3.00x plain decoding, bounded by 4000 steps with drafts of 15 ms: "
        "faster only if a plain one takes over 5 ms; no plain step was ever taken; to measure it start the server with"
    )
    assert "tokens/s" in sentence
    assert answer(seen).code == 0
    trees = snapshot(histories=seen.histories, replica_a=replica(server={"speculation": {"adaptive": True}}))
    assert said(trees, "faster")[1].startswith("not shown: at most 3.00x plain decoding, ")


def test_a_server_before_its_first_draft_is_on_the_board_has_one_all_the_same():
    level, sentence = said(snapshot(board(0), **HERE), "fresh")
    assert (level, sentence) == (Level.NOTE, "no version is live: servers draft with what they were started with")


def test_a_server_that_sends_no_counters_is_said_to_send_none():
    level, sentence = said(snapshot(**HERE), "faster")
    assert (level, sentence) == (Level.UNKNOWN, "no replica sent these counters in the window")


def served(label, count):
    """Of the newest ten minutes, after a hundred requests of another label."""
    before = requests(0, "old", [(10, 5)] * 100)
    return {
        "replica:a": [counted(NOW - 620.0, before), counted(NOW - 5.0, before, requests(1, label, [(10, 5)] * count))]
    }


@pytest.mark.parametrize(
    ("label", "count", "level", "moved"),
    [
        ("py", 40, Level.OK, "traffic moved since: no"),
        ("prose", 40, Level.NOTE, "traffic moved since: yes, prose 0% then, 100% now (last 60 s)"),
        ("prose", 29, Level.OK, "traffic moved since: unknown, 40 requests then and 29 now, 30 of each needed"),
    ],
)
def test_fresh_says_how_old_the_traffic_was_and_whether_it_moved(label, count, level, moved):
    found = said(snapshot(histories=served(label, count), **HERE), "fresh")
    ago = f"{(NOW - LIVE_AT) / 60:.0f} min"
    text = f"draft 1, learnt from traffic up to 14 s before it went live {ago} ago, drafts on 1 of 1 servers"
    assert found == (level, f"{text}; {moved}")


@pytest.mark.parametrize(
    ("newest", "now"),
    [(30, "no"), (29, "yes, prose 0% then, 58% now (last 10 min)")],  # 40 of 69
)
def test_the_traffic_of_now_is_of_the_last_minute_where_it_holds_enough_requests(newest, now):
    prose = requests(1, "prose", [(10, 5)] * 40)
    old, middle = counted(NOW - 620.0), counted(NOW - 61.0, prose)
    seen = snapshot(
        histories={"replica:a": [old, middle, counted(NOW - 5.0, prose, requests(1, "py", [(10, 5)] * newest))]}, **HERE
    )
    assert said(seen, "fresh")[1].endswith(f"; traffic moved since: {now}")


def test_a_live_draft_that_no_server_has_is_not_fresh():
    others = snapshot(replica_a=replica(draft_version=0), replica_b=replica(), learner_l=learner())
    assert "drafts on 1 of 2 servers (replica:a with 0); " in said(others, "fresh")[1]


def test_a_server_that_drafts_without_a_model_is_no_laggard():
    named = {"algorithm": "NGRAM", "adaptive": False, "num_steps": 11, "eagle_topk": 10, "num_draft_tokens": 12}
    table = replica(draft_version=None, server={"speculation": named})
    seen = accepting(a=12, b=5)
    seen = replace(seen, members=seen.members | {"replica:b": table})
    assert "drafts on 1 of 1 servers, 1 without a model; " in said(seen, "fresh")[1]
    assert "least on" not in said(seen, "faster")[1]
    assert standing_and_recent(seen) == []
    assert [row.doing for row in answer(seen).rows if row.member == "replica:b"] == [
        "capture on, drafts without a model, accept length 1.55"
    ]
    alone = snapshot(histories={"replica:a": history(24.0, plain_steps=0)}, replica_a=table, learner_l=learner())
    assert said(alone, "faster")[1].startswith("not shown: 0.25x .. 3.00x plain decoding")  # 3 of 12 tokens verified


def accepting(**lengths):
    """Replicas, each with a hundred requests of so many accepted in 10 rounds, and one more in every other request."""
    pairs = {name: [(10, accepted), (10, accepted + 1)] * 50 for name, accepted in lengths.items()}
    histories = {
        f"replica:{name}": [counted(NOW - 620.0), counted(NOW - 5.0, requests(1, "", each))]
        for name, each in pairs.items()
    }
    return snapshot(histories=histories, learner_l=learner(), **{f"replica_{name}": replica() for name in lengths})


@pytest.mark.parametrize(
    ("lengths", "named"),
    [
        ({"a": 12, "b": 5, "c": 12}, ", least on replica:b, 1.55 (1.54 .. 1.56), the next has 2.25"),
        ({"a": 12, "b": 5, "c": 5}, ""),  # two of three: neither is odd
        ({"a": 12}, ""),
    ],
)
def test_the_one_server_that_accepts_less_than_all_others_is_named(lengths, named):
    seen = accepting(**lengths)
    sentence = said(seen, "faster")[1]
    assert sentence.rpartition(", 0 tokens/s")[2] == named
    rows = {row.member: row.doing for row in answer(seen).rows}
    assert rows["replica:a"] == "capture on, accept length 2.25"


SWAP = {"number": 1, "before": 0, "commit_ms": 1.84, "stage_ms": 3.0, "running": 0, "at": NOW - 20.0}


def test_the_last_swap_is_the_newest_of_all_servers_with_what_both_drafts_served():
    cells = requests(0, "", [(10, 5)]), requests(1, "", [(10, 12)])
    seen = snapshot(
        histories={"replica:a": [counted(NOW - 5.0, *cells)]},
        replica_a=replica(swaps=[SWAP]),
        replica_b=replica(swaps=[{**SWAP, "at": NOW - 40.0, "number": 0, "before": None}]),
    )
    text = "0 -> 1, 1.8 ms, nobody waited, accept length 1.50 -> 2.20, 20 s ago on replica:a"
    assert said(seen, "last swap") == (Level.OK, text)
    busy = snapshot(replica_a=replica(swaps=[{**SWAP, "running": 4}]))
    assert "4 requests waited, accept length - -> -" in said(busy, "last swap")[1]
    assert said(snapshot(**HERE), "last swap") == (Level.NOTE, "none since the servers started")


@pytest.mark.parametrize(
    ("changes", "level", "text"),
    [
        ({}, Level.OK, "9 captured = 9 delivered + 0 dropped + 0 open + 0 queued: nothing lost"),
        (
            {"captured": 12, "open": 2, "queued": 1},
            Level.OK,
            "12 captured = 9 delivered + 0 dropped + 2 open + 1 queued",
        ),
        ({"captured": 11, "dropped": {"gap": 2}}, Level.NOTE, "2 lost (dropped by gap 2)"),
        ({"captured": 11, "dropped": {"no_rounds": 2}}, Level.OK, "nothing lost (dropped by no_rounds 2)"),
        (
            {"captured": 10},
            Level.WRONG,
            "10 captured are not 9 delivered + 0 dropped + 0 open + 0 queued: 1 unaccounted",
        ),
        (
            {"capture": "off", "capture_reason": "a fault"},
            Level.WRONG,
            "replica:a captures nothing: a fault; 9 captured",
        ),
        ({"buffer_error": "no Redis"}, Level.WRONG, "replica:a cannot deliver: no Redis; 9 captured"),
        ({"captured": "9"}, Level.WRONG, "replica:a is not counted: status cannot be read: Expected `int`"),
    ],
)
def test_the_loop_adds_up_or_says_what_is_missing(changes, level, text):
    found = said(snapshot(replica_a=replica(**changes), learner_l=learner()), "loop")
    assert found[0] is level
    assert text in found[1]


def test_the_books_of_all_servers_are_added_those_that_ended_left_out():
    gone = replica(900.0, is_alive=False, ended=True, captured=5)
    seen = snapshot(replica_a=replica(), replica_b=replica(captured=10, open=1), replica_c=gone, learner_l=learner())
    assert "19 captured = 18 delivered + 0 dropped + 1 open" in said(seen, "loop")[1]


@pytest.mark.parametrize(("dropped", "is_wrong"), [(10, False), (11, True)])
def test_more_than_one_in_a_hundred_lost_lately_is_wrong(dropped, is_wrong):
    seen = snapshot(histories={"replica:a": history(24.0, dropped=dropped)}, **HERE)
    level, sentence = said(seen, "loop")
    assert (level is Level.WRONG) == is_wrong
    assert (f"{dropped} of 1000 traces were lost in the last 10 min" in sentence) == is_wrong


def test_a_loop_without_a_learner_says_so():
    assert said(snapshot(replica_a=replica()), "loop")[1].startswith("no learner was ever seen; ")
    late = snapshot(replica_a=replica(), learner_l=learner(300.0, is_alive=False))
    assert said(late, "loop")[1].startswith("no learner is alive, the last was seen 5 min ago; ")
    for seen in (snapshot(replica_a=replica()), late):
        assert said(seen, "loop")[0] is Level.NOTE  # traces are not lost, and the loop is not closed
    assert said(snapshot(**HERE), "loop")[0] is Level.OK


def printed(seen):
    console = Console(file=io.StringIO(), width=400)
    console.print(answer(seen).view())
    return console.file.getvalue()


def test_accept_length_by_where_rounds_begin_is_said_where_it_can_be_compared():
    def seen(**lists):
        entries = [counted(at) for at in (NOW - 600.0, NOW - 5.0)]
        entries[1].served.positions = [DraftPositions(draft=2, **lists)]
        return snapshot(histories={"replica:a": entries}, **HERE)

    short = {"output_rounds": [40], "output_accepted": [60], "context_rounds": [40], "context_accepted": [60]}
    assert "by output token" not in printed(seen(**short))
    assert answer(seen(**short)).as_json()["by_output"]["256-511"]["value"] is None
    long = seen(**short | {"output_rounds": [30, 0, 10], "output_accepted": [55, 0, 5]})
    assert "\naccept length by output token: 0-255 2.83 (30 rounds), 512-1023 1.50 (10 rounds)\n" in re.sub(
        " +\n", "\n", printed(long)
    )
    found = answer(long).as_json()["by_output"]
    assert [*found] == ["0-255", "256-511", "512-1023", "1024-2047", "2048+"]
    assert (found["512-1023"]["value"], found["512-1023"]["count"]) == (1.5, 10)
    both = seen(**short | {"context_rounds": [10, 10, 0, 20], "context_accepted": [30, 20, 0, 10]})
    line = (
        "accept length by tokens of context: 0-511 4.00 (10 rounds), 512-2047 3.00 (10 rounds), 8192+ 1.50 (20 rounds)"
    )
    assert line in printed(both)


@pytest.mark.parametrize(
    ("name", "buckets"), [("output_accept_length", OUTPUT_BUCKETS), ("context_accept_length", CONTEXT_BUCKETS)]
)
def test_the_meaning_of_a_figure_by_bucket_names_its_buckets(name, buckets):
    assert DEFINITIONS[name].meaning.endswith(f": {', '.join(buckets)}.")


@pytest.mark.guarantee("alarm-member-silent")
def test_with_everybody_dead_nothing_is_well():
    dead = snapshot(
        histories={"replica:a": history(24.0)},
        replica_a=replica(40.0, is_alive=False, swaps=[SWAP]),
        learner_l=learner(40.0, is_alive=False),
    )
    found = answer(dead)
    assert {finding.level for finding in found.findings} == {Level.UNKNOWN, Level.WRONG}
    assert found.code == 1
    console = Console(file=io.StringIO(), width=120, force_terminal=True, color_system="standard")
    console.print(found.view(), *map(finding_text, found.findings))
    assert "\x1b[31m" in console.file.getvalue()
    assert "\x1b[32m" not in console.file.getvalue()


@pytest.mark.parametrize(
    "seen",
    [snapshot(board(0)), snapshot(replica_a=replica(40.0, is_alive=False, ended=True))],
    ids=["nobody was ever seen", "all said that they end"],
)
def test_with_nobody_there_to_say_all_is_unknown(seen):
    found = answer(seen)
    assert {finding.level for finding in found.findings} == {Level.UNKNOWN}
    assert found.code == 2


def test_what_redis_says_cannot_steer_the_terminal():
    seen = snapshot(replica_a=replica(capture="off", capture_reason="\x1b[2J"), learner_l=learner(why="[bold]\n"))
    assert "\x1b" not in "".join(finding_text(finding).plain for finding in answer(seen).findings)
