"""Runs of the learning bench as files and tables: several parts as one, gains by stage, and what a trace weighs."""

from dataclasses import asdict, replace
from functools import partial

import msgspec
import numpy as np
import pytest
import torch
from paceline.benchmarks.learning import bench, programme, results, rows, runs, stream, tables, wire
from paceline.benchmarks.learning.setting import Setting
from paceline.buffer.trace_codec import encode_trace
from paceline.learner.training.batch import collate
from paceline.policies.acceptance import Tally

STAGES = {stage.name: stage for stage in programme.STAGES}
MAIN, OFF_PATH = STAGES["main"], STAGES["off-path"]
GREEDY, SAMPLED = Setting(0.0, 5), Setting(0.7, 5)


def make_run(row, accepted, seed=0, *, stage=MAIN, setting=GREEDY, start="warm", rate=0.001, **changes):
    """Two chunks before the shift and one after it, each of 100 rounds with `accepted` drafts: py, then c."""
    sizes = stage.sizes
    ends = (sizes.before_shift // 2, sizes.before_shift, sizes.before_shift + sizes.after_shift)
    chunks = zip(ends, ("py", "py", "c"), accepted, strict=True)
    points = [
        runs.Point(end, {domain: Tally(float(n), 100.0)}, 10 * i, 1.0 * i) for i, (end, domain, n) in enumerate(chunks)
    ]
    job = programme.Job(row, setting, start, seed, sizes, rate, **changes)
    return runs.Run(job, sizes.before_shift, tuple(points), 30, 3.0)


def make_results(found, **changes):
    made = results.Results(
        target="t",
        domains=("py", "c"),
        recorded={"t0-k5": "abc"},
        parts=(results.Part("bench", {"cores": 2}, ("main",), 1.0, 2.0),),
        rates=(results.TunedRate("committed", "t0", "warm", 0.001),),
        runs=tuple(found),
        plans={run.job.row.name: asdict(run.job.row.plan(1, 0)) for run in found},
    )
    return replace(made, **changes)


def plain(value):
    return msgspec.json.encode(value)  # a tuple comes back from a file as a list


def test_results_come_back_from_their_file_and_figures_beside_them_are_left_out(tmp_path):
    made = make_results([make_run(row, (10, 20, 5)) for row in (rows.AURORA, rows.PRODUCT, rows.TOP_KS[1])])
    made = replace(made, wire=(wire.WireSize("t0-k5", 4, 3500.0, 90.0),))
    results.write_results(tmp_path / "results.json", made, [{"row": "Aurora", "before": [0.1]}])
    read = results.read_results(tmp_path / "results.json")
    assert plain(read) == plain(made)
    assert [run.job.key for run in read.runs] == [run.job.key for run in made.runs]
    assert read.runs[1].job.row == rows.PRODUCT
    assert tables.markdown(read.runs) == tables.markdown(made.runs)
    assert read.tuned == {("committed", "t0", "warm"): 0.001}


@pytest.mark.parametrize("text", ["", "{}", '{"rows": []}', "[1, 2]"])
def test_another_file_is_refused_by_name(tmp_path, text):
    (tmp_path / "other.json").write_text(text)
    with pytest.raises(SystemExit, match=r"other\.json: got .* expected a results\.json"):
        results.read_results(tmp_path / "other.json")
    with pytest.raises(SystemExit, match=r"absent\.json"):
        results.read_results(tmp_path / "absent.json")


def test_parts_become_one_and_a_run_made_twice_is_kept_from_the_first():
    first = make_results([make_run(rows.AURORA, (10, 20, 5)), make_run(rows.COMMITTED, (12, 24, 6), stage=OFF_PATH)])
    again, new = (make_run(rows.COMMITTED, (99, 99, 99), stage=OFF_PATH), make_run(rows.OFF_PATH[1], (18, 36, 9)))
    second = make_results([again, new], recorded={"t0-k5": "abc", "t0-k3": "def"}, rates=())
    one = results.merged([first, second])
    assert [run.points[0].tallies["py"].accepted for run in one.runs] == [10, 12, 18]
    assert one.recorded == {"t0-k5": "abc", "t0-k3": "def"}
    assert one.parts == (*first.parts, *second.parts)
    assert one.rates == first.rates
    assert set(one.plans) == {rows.AURORA.name, rows.COMMITTED.name, rows.OFF_PATH[1].name}
    assert plain(results.merged([one])) == plain(one)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"target": "u"}, "target and domains"),
        ({"domains": ("py", "html")}, "target and domains"),
        ({"recorded": {"t0-k5": "xyz"}}, "traces of t0-k5: got abc and xyz"),
        ({"rates": (results.TunedRate("committed", "t0", "warm", 0.003),)}, "learning rate of .* 0.001 and 0.003"),
        ({"plans": {rows.AURORA.name: {"passes": 2}}}, "plan of row Aurora"),
    ],
)
def test_parts_that_cannot_stand_in_one_table_are_refused(changes, what):
    part = make_results([make_run(rows.AURORA, (10, 20, 5))])
    with pytest.raises(SystemExit, match=what):
        results.merged([part, replace(part, **changes)])


def test_streams_are_the_same_when_requests_and_tokens_are(make_trace):
    traces = [make_trace(n) for n in range(3)]
    known = results.fingerprint(traces)
    assert results.fingerprint([replace(trace, born_at=0.0, trace_id="x") for trace in traces]) == known
    assert results.fingerprint(traces[:2]) != known
    assert results.fingerprint([*traces[:2], replace(traces[2], request_id="other")]) != known


def test_a_stage_takes_its_rows_from_whatever_stage_ran_them():
    made = [
        make_run(rows.AURORA, (10, 10, 10)),
        make_run(rows.PRODUCT, (15, 15, 20), rate=None),
        make_run(rows.AURORA_AS_PRODUCT, (12, 12, 16)),
        make_run(rows.COMMITTED, (10, 10, 10), setting=SAMPLED),  # alone at its setting
        make_run(rows.DEFAULT_ONCE, (10, 10, 10), stage=STAGES["quick"]),  # on other streams
    ]
    found = {group.name: group.rows() for group in tables.groups(made)}
    assert found == {
        "main-t0-k5-warm": [rows.AURORA.name, rows.PRODUCT.name],
        "system-t0-k5-warm": [rows.AURORA_AS_PRODUCT.name, rows.PRODUCT.name],
    }


def test_a_stage_that_would_only_repeat_another_is_left_out():
    """`earlier` compares the product with Aurora, as `main` does, and with a row of its own."""
    made = [make_run(rows.AURORA, (10, 10, 10)), make_run(rows.PRODUCT, (15, 15, 20), rate=None)]
    assert [group.name for group in tables.groups(made)] == ["main-t0-k5-warm"]
    made.append(make_run(rows.BEFORE_MUON_AND_PROMPTS, (12, 12, 16), rate=None))
    main, earlier = tables.groups(made)
    assert main.rows() == [rows.AURORA.name, rows.PRODUCT.name]
    assert (earlier.stage.name, len(earlier.rows())) == ("earlier", 3)


def test_gains_are_over_the_first_row_of_the_stage_paired_by_seed():
    made = [make_run(rows.AURORA, (10 * s, 30 * s, 10 * s), seed=s) for s in (1, 2, 3)]
    made += [make_run(rows.PRODUCT, (20 * s, 30 * s, 15 * s), seed=s, rate=None) for s in (2, 1)]
    (group,) = tables.groups(made)
    figures = tables.figures(group, rows.PRODUCT.name)
    assert (figures["seeds"], figures["over"]) == ([1, 2], rows.AURORA.name)
    assert figures["before"] == pytest.approx([0.25, 0.5])
    assert figures["gain_before_percent"] == "25.0 ± 0.0"  # 50 accepted of 200 rounds against 40, for both seeds
    assert figures["gain_after_percent"] == "50.0 ± 0.0"
    text = tables.markdown(made)
    assert "### main: paceline against Aurora" in text
    assert f"gains over: {rows.AURORA.name}" in text
    (line,) = [line for line in text.splitlines() if line.startswith(f"| {rows.PRODUCT.name} | its plan's")]
    assert line.split(" | ")[1:5] == ["its plan's", "2", "0.38 ± 1.59", "**25 ± 0 %**"]
    (domains,) = [line for line in text.splitlines() if line.startswith(f"| {rows.PRODUCT.name} | **")]
    assert domains == f"| {rows.PRODUCT.name} | **50 ± 0 %** | **25 ± 0 %** |"


def test_the_rate_that_served_most_on_the_tuning_stream_is_taken():
    basic = rows.plain("soft", "soft")
    tried = [(0.001, (10, 10, 10)), (0.003, (10, 12, 10)), (0.008, (0, 0, 30))]
    made = [make_run(basic, accepted, rate=rate, tuning=True) for rate, accepted in tried]
    made.append(make_run(basic, (0, 0, 0), rate=0.008, start="cold", tuning=True))
    assert bench.tuned(made) == {("soft", "t0", "warm"): 0.003, ("soft", "t0", "cold"): 0.008}


@pytest.fixture
def recorded(make_trace):
    return [make_trace(n, top_k=16, rounds=6) for n in range(5)]


def keeping(trace, top_k):
    rounds = trace.rounds
    ids, logprobs = rounds.teacher_ids[..., :top_k].copy(), rounds.teacher_logprobs[..., :top_k].copy()
    return replace(trace, rounds=replace(rounds, teacher_ids=ids, teacher_logprobs=logprobs))


def test_a_trace_weighs_what_the_codec_writes_of_it(recorded):
    sizes = wire.wire_sizes("t0-k5", recorded)
    assert [(size.setting, size.top_k) for size in sizes] == [("t0-k5", k) for k in (0, 1, 4, 16)]
    tokens = sum(len(trace.tokens) - trace.context_len for trace in recorded)
    for size in sizes:
        kept = [keeping(trace, size.top_k) for trace in recorded]
        bare = [replace(trace, features=np.zeros((0, 6), np.float32)) for trace in kept]
        assert size.with_features == pytest.approx(sum(len(encode_trace(trace)) for trace in kept) / tokens)
        assert size.without_features == pytest.approx(sum(len(encode_trace(trace)) for trace in bare) / tokens)
    assert [size.with_features for size in sizes] == sorted(size.with_features for size in sizes)
    assert wire.wire_sizes("t0-k5", []) == []


def test_weights_stand_beside_what_was_learned_from_that_much():
    one, full, committed = rows.TOP_KS[3], rows.SOFT, rows.COMMITTED
    assert one.top_k == 1
    as_stage = partial(make_run, stage=STAGES["top-k"])
    made = [as_stage(row, (n, n, 2 * n), setting=SAMPLED) for row, n in ((one, 20), (full, 30), (committed, 10))]
    made += [as_stage(committed, (40, 40, 40), setting=GREEDY), as_stage(full, (90, 90, 90), seed=4, setting=SAMPLED)]
    sizes = [wire.WireSize("t0.7-k5", k, 3000.0 + k, 80.0 + k) for k in (1, 64)] + [
        wire.WireSize("t0-k5", 64, 1.0, 0.0)
    ]
    lines = [line.split(" | ") for line in tables.wire_markdown(sizes, made).splitlines()[2:]]
    assert lines == [
        ["| t0.7-k5", "1", "3001", "81", "0.20", "0.40", "0.10", "0.20 |"],
        ["| t0.7-k5", "64", "3064", "144", "0.30", "0.60", "0.10", "0.20 |"],
        ["| t0-k5", "64", "1", "0", "0.40", "0.40", "0.40", "0.40 |"],
    ]


@pytest.mark.parametrize("top_k", [0, 1, 4, 16])
def test_greedy_soft_labels_are_the_committed_tokens_however_many_teacher_entries_were_kept(recorded, top_k):
    batch = collate([stream.with_top_k(trace, top_k) for trace in recorded], torch.device("cpu"), soft=True)
    assert torch.equal(batch.teacher_ids_BTK[..., 0], batch.tokens_BT)
    assert torch.equal(batch.teacher_probs_BTK[..., 0], torch.ones(batch.tokens_BT.shape))
    assert not batch.teacher_probs_BTK[..., 1:].any()
