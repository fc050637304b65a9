"""The compatibility table: its rows, the judgement of one row's traffic, and the page that is made of the results."""

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from learner_traffic import by_rejection
from paceline.benchmarks import compatibility
from paceline.benchmarks.matrix import models, rows, table
from paceline.benchmarks.matrix.cell import Replayed, captured, judged, paced, replayed
from paceline.benchmarks.matrix.quantised import FORMATS
from paceline.benchmarks.matrix.results import Cells, Measured
from paceline.benchmarks.matrix.rows import ROWS, Row
from paceline.benchmarks.matrix.server import start_of, why_no_replay
from paceline.benchmarks.matrix.table import COLUMNS
from paceline.buffer.board.member_status import MemberStatus, PacingSaid
from paceline.buffer.errors import PacelineError
from paceline.learner.model.draft_io import load_draft, load_target_embedding
from paceline.policies.acceptance import Tally
from paceline.policies.rejection import EstimatedRounds
from paceline.rig.prompts import Prompt
from paceline.rig.traffic import Served
from paceline.serving import plugin
from paceline.serving.supported_release import SUPPORTED

HOUSE = Path(__file__).resolve().parents[2]
MACHINE = {"processor": "a CPU", "cores": 2, "sglang": SUPPORTED[0]}
CODE = "of some state of the code"
CHAIN = ["--speculative-num-steps", "3", "--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "4"]


def every_row(release, **found):
    cells = dict.fromkeys(COLUMNS, "yes") | found
    keys = [row.key for row in ROWS if release == SUPPORTED[0] or row.factor == rows.PER_RELEASE]
    return Measured({**MACHINE, "sglang": release}, CODE, tuple(Cells(release, key, cells, 30.5) for key in keys))


def answer(trace):
    """What a client saw of the request that `trace` is the whole of."""
    ids = tuple(trace.tokens[trace.context_len :].tolist())
    tally = Tally(int(trace.rounds.accepted.sum()), len(trace.rounds))
    prompt = Prompt(trace.request_id, "py", tuple(trace.tokens[: trace.context_len].tolist()))
    return Served(prompt=prompt, sent_at=0.0, arrivals=(), output_ids=ids, finish="length", tally=tally, retractions=0)


def test_every_row_is_one_of_its_own_and_can_be_built():
    assert len({row.key for row in ROWS}) == len(ROWS) == 73
    assert {row.factor for row in ROWS} == rows.FACTORS.keys()
    assert {row.family for row in ROWS} == {rows.LLAMA, *models._FAMILIES}
    assert {row.weights for row in ROWS} == {"", *FORMATS}
    assert {row.form for row in ROWS} == models._FORMS.keys()
    assert {row.head for row in ROWS} == models._HEADS.keys()


def test_a_factor_is_varied_alone():
    usual = Row(factor="", name="")
    for row in (row for row in ROWS if row.factor in {"draft", "target"}):
        varied = {"draft": "form", "target": "family"}[row.factor]
        expected = replace(usual, factor=row.factor, name=row.name, **{varied: getattr(row, varied)})
        assert row == expected != replace(expected, **{varied: getattr(usual, varied)})


def test_ten_pairs_vary_two_factors_or_more():
    usual = Row(factor="", name="")
    factors = ("flags", "family", "form", "head", "temperature", "has_system_prompt")
    pairs = rows.chosen(ROWS, ["pair: "])
    assert len(pairs) == 10
    for row in pairs:
        assert sum(getattr(row, name) != getattr(usual, name) for name in factors) >= 2, row.name


def test_rows_are_chosen_by_any_part_of_their_names():
    assert rows.chosen(ROWS, []) == list(ROWS)
    assert {row.factor for row in rows.chosen(ROWS, ["start: "])} == {"start"}
    assert [row.name for row in rows.chosen(ROWS, ["gpt-oss", "Hugging"])] == ["Hugging Face id", "gpt-oss"]
    assert rows.chosen(ROWS, ["no such row"]) == []


@pytest.mark.parametrize(
    ("flags", "shown"),
    [
        ("", "none"),
        (" ".join(CHAIN), "chain"),
        (" ".join([*CHAIN, "--disable-radix-cache"]), "chain, `--disable-radix-cache`"),
        ("--speculative-num-steps 1 --x y", "`--speculative-num-steps 1`, `--x y`"),
    ],
)
def test_flags_are_shown_with_the_chain_by_its_name(flags, shown):
    assert Row(factor="start", name="x", flags=flags).shown_flags == shown


def test_a_server_is_started_with_the_rows_flags_and_a_speculator_of_its_own(tmp_path):
    row = Row(factor="flags", name="x", flags=" ".join([*CHAIN, "--enable-mixed-chunk"]))
    first, second = (
        start_of(row, i, target=tmp_path / "t", draft="org/draft", redis_url="redis://x", log=tmp_path / "log")
        for i in (0, 1)
    )
    assert first.flags[-9:] == ["--speculative-draft-model-path", "org/draft", *CHAIN, "--enable-mixed-chunk"]
    assert first.speculator == first.env["PACELINE_SPECULATOR"] != second.speculator
    assert first.with_settings({"HF_HUB_OFFLINE": "1"}).env == {**first.env, "HF_HUB_OFFLINE": "1"}


@pytest.fixture
def four(make_trace):
    """Traces of four requests, each the whole of its request, and what was answered."""
    traces = [make_trace(i) for i in range(4)]
    return traces, [answer(trace) for trace in traces]


def test_capture_is_right_when_tokens_and_accepted_drafts_are_those_of_the_answers(four):
    traces, served = four
    assert captured(served, traces, {}) == "yes"
    assert captured(served, traces[::-1], {"no_rounds": 3}) == "yes"


def test_a_trace_with_other_tokens_or_verdicts_than_its_answer_is_wrong(four):
    traces, served = four
    other_tokens = replace(served[0], output_ids=(*served[0].output_ids[:-1], -5))
    other_prompt = replace(served[1], prompt=replace(served[1].prompt, input_ids=(-5, *served[1].prompt.input_ids[1:])))
    other_verdicts = replace(served[2], tally=Tally(served[2].tally.accepted + 1, served[2].tally.rounds))
    said = "no: the traces of {} of 4 requests differ from the answers"
    assert captured([other_tokens, *served[1:]], traces, {}) == said.format(1)
    assert captured([other_tokens, served[1], other_verdicts, served[3]], traces, {}) == said.format(2)
    longer = replace(other_prompt, output_ids=(*served[1].output_ids, 7))
    assert captured([served[0], longer, *served[2:]], traces, {}) == said.format(1)


def test_tokens_that_no_trace_holds_are_counted_with_the_reasons_of_the_replica(four):
    traces, served = four
    tokens = sum(len(one.output_ids) for one in served)
    held = tokens - len(served[3].output_ids)
    lost = captured(served, traces[:3], {"no_rounds": 2, "gap": 1})
    assert lost == f"in part: {held} of {tokens} tokens, each as answered; trace windows dropped: gap 1, no_rounds 2"


def test_replay_is_a_figure_or_says_why_there_is_none():
    assert judged(Replayed(7, 8, 1), lambda: pytest.fail("not asked")) == "7 of 8 rounds, 1 draft accepted"
    drawn = Replayed(0, 0, 64, EstimatedRounds(190, 63, 61.25, 36.0))
    expected = "in expectation: 63 drafts accepted in 190 rounds, 61.2 ± 6.0 expected"
    assert judged(drawn, lambda: pytest.fail("not asked")) == expected
    assert judged(Replayed(0, 0, 4), lambda: "SGLang drafts trees") == "no: SGLang drafts trees"
    assert judged(Replayed(0, 0, 4), str) == "no: no round could be compared"


def test_why_there_is_no_replay_is_what_the_plugin_logged(monkeypatch, caplog, tmp_path):
    why, log = "SGLang drafts trees (of 4); for replay start it otherwise", tmp_path / "sglang.log"
    monkeypatch.setattr(plugin.sglang_speculation, "why_replay_is_no_proof", lambda: why)
    plugin._with_canary_turns(SimpleNamespace(canary_turn_s=1.0))
    log.write_text(f"[2026-11-22 12:00:00] ready\n[2026-11-22 12:00:00] {caplog.messages[-1]}\n")
    assert why_no_replay(log) == why
    log.write_text("[2026-11-22 12:00:00] ready\n")
    assert why_no_replay(log) == ""


def test_no_trace_is_no_round():
    assert replayed(None, []) == Replayed(0, 0, 0)


def test_rounds_by_rejection_sampling_are_compared_with_their_expectation(tiny_speculator):
    draft = load_draft(tiny_speculator.draft, load_target_embedding(tiny_speculator.target))
    traces = [by_rejection(tiny_speculator.serve(i), draft) for i in range(8)]
    found = replayed(draft, traces)
    assert found.compared == 0
    assert found.estimated.rounds == sum(len(trace.rounds) for trace in traces)
    assert found.estimated.accepted == found.accepted > 0
    assert abs(found.accepted - found.estimated.expected) < 4 * found.estimated.variance**0.5


def test_pacing_is_what_the_replica_reports():
    assert paced(MemberStatus(pacing=PacingSaid(policy="off", reason="no flag"))) == "no: no flag"
    assert paced(MemberStatus()) == "no: the replica reports none"
    reported = PacingSaid(policy="goodput", steps={"1": {"3": 7, "0": 1}, "2": {"10": 2}})
    assert paced(MemberStatus(pacing=reported)) == "yes: goodput, steps chosen: 0, 3, 10"
    assert paced(MemberStatus(pacing=PacingSaid(policy="goodput"))) == "yes: goodput, steps chosen: none yet"


def test_what_a_failed_row_says():
    ended = "SGLang server ended while starting, code 1; the end of /x/log:\nTraceback\n"
    says = "the server did not start: "
    needs = PacelineError(f"{ended}AssertionError: it needs one of\n  - a\n  - b\n")
    assert compatibility.reason(needs) == f"{says}AssertionError: it needs one of - a - b"
    assert compatibility.reason(PacelineError(f"{ended}Killed\n")) == f"{says}Killed"
    assert compatibility.reason(SystemExit("waited 120 s for the swap")) == "waited 120 s for the swap"
    assert compatibility.reason(KeyError("pacing")) == "KeyError: 'pacing'"


def test_a_row_that_raises_keeps_what_was_found_before(monkeypatch):
    def look(lab, row, number, found):
        found["capture"] = "yes"
        raise OSError("no room")

    monkeypatch.setattr(compatibility, "look", look)
    rest = {"replay": "no: OSError: no room", "swap": "no: not reached", "pacing": "no: not reached"}
    assert compatibility.examined(None, ROWS[0], 0) == {"capture": "yes", **rest}


def test_the_page_has_every_row_once_per_release_and_no_more():
    text = table.page([every_row(release) for release in SUPPORTED])
    lines = re.findall(r"^\| (0\.5\.\d+) \| (.*?) \|", text, re.MULTILINE)
    starts = [row.name for row in ROWS if row.factor == rows.PER_RELEASE]
    expected = [(SUPPORTED[0], row.name) for row in ROWS]
    assert sorted(lines) == sorted(expected + [(release, name) for release in SUPPORTED[1:] for name in starts])
    assert text.count("\n## ") == len(rows.FACTORS)
    assert "Not run" not in text
    # 73 rows on one release and 4 on the two others, each of half a minute.
    assert "Measured on processor a CPU, cores 2. The rows took 41 minutes in all." in text


def test_of_a_row_that_was_run_twice_the_last_run_counts():
    again = Measured(MACHINE, CODE, (Cells(SUPPORTED[0], ROWS[0].key, dict.fromkeys(COLUMNS, "no: broken"), 1.0),))
    text = table.page([every_row(SUPPORTED[0]), again])
    assert re.findall(rf"^\| {SUPPORTED[0]} \| {ROWS[0].name} \|.*", text, re.MULTILINE) == [
        f"| {SUPPORTED[0]} | {ROWS[0].name} | chain | {' | '.join(['no: broken'] * len(COLUMNS))} |"
    ]


def test_make_runs_the_releases_that_are_supported():
    named = re.search(r"^OTHER_SGLANGS := (.*)$", (HOUSE / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert tuple(named.group(1).split()) == SUPPORTED[1:]


def test_the_page_says_what_was_not_run():
    measured = every_row(SUPPORTED[0])
    text = table.page([replace(measured, cells=measured.cells[:-1])])
    left = [row.name for row in ROWS if row.factor == rows.PER_RELEASE]
    expected = [f"{name} ({release})" for name in left for release in SUPPORTED[1:]] + [
        f"{ROWS[-1].name} ({SUPPORTED[0]})"
    ]
    (said,) = re.findall(r"^Not run: (.*)\.$", text, re.MULTILINE)
    assert said.split("; ") == expected


def test_a_cell_is_one_short_line():
    assert table.shortened("a\n b | c") == "a b \\| c"
    assert table.shortened("x" * table.CELL_CHARS) == "x" * table.CELL_CHARS
    assert table.shortened("word " * 100).endswith("word ...")
    assert len(table.shortened("word " * 100)) <= table.CELL_CHARS
