"""What benchmarks/learning computes: container, order of the stream, recovery, intervals, tables, kept runs."""

import math
from collections import Counter
from dataclasses import replace

import pytest
from paceline.benchmarks.learning import figures, programme, runs, stream, tables
from paceline.benchmarks.learning.lab import Lab
from paceline.benchmarks.learning.programme import Job
from paceline.benchmarks.learning.runs import Point, Run
from paceline.buffer.errors import DecodeError
from paceline.buffer.stream.trace_codec import encode_trace
from paceline.policies.acceptance import Tally
from paceline.rig import trace_file
from paceline.rig.models.target import TargetModel

SIZES = stream.Sizes(before_shift=10, after_shift=6, cadence=4)


@pytest.fixture
def pool(make_trace):
    domains = {"py": 12, "prose": 12, "c": 12}
    return [
        make_trace(n, request_id=f"{domain}-{n:04d}", trace_id=f"{domain}-{n}")
        for domain, count in domains.items()
        for n in range(count)
    ]


def ids(chosen):
    return [trace.request_id for trace in chosen.traces]


def test_a_container_gives_back_card_and_traces_in_their_order(tmp_path, pool):
    path = tmp_path / "new" / "t0-k3.traces"
    trace_file.write_traces(path, {"setting": "t0-k3"}, pool)
    assert trace_file.read_card(path) == {"setting": "t0-k3", "traces": len(pool)}
    assert [encode_trace(t) for t in trace_file.read_traces(path)] == [encode_trace(t) for t in pool]
    assert [file.name for file in path.parent.iterdir()] == ["t0-k3.traces"]


@pytest.mark.parametrize("lost", [1, 700])
def test_a_container_that_is_cut_short_is_refused(tmp_path, pool, lost):
    path = tmp_path / "t.traces"
    trace_file.write_traces(path, {}, pool[:3])
    path.write_bytes(path.read_bytes()[:-lost])
    with pytest.raises(DecodeError):
        trace_file.read_traces(path)


def test_a_container_that_lacks_a_whole_trace_or_is_another_file_is_refused(tmp_path, pool):
    path = tmp_path / "t.traces"
    trace_file.write_traces(path, {}, pool[:2])
    path.write_bytes(path.read_bytes()[: -4 - len(encode_trace(pool[1]))])
    with pytest.raises(DecodeError, match="got 1 traces, expected 2"):
        trace_file.read_traces(path)
    path.write_bytes(b"something else entirely")
    with pytest.raises(DecodeError, match="at its start"):
        trace_file.read_card(path)


def test_a_stream_is_mixed_evenly_and_then_shifts_for_good(pool):
    made = stream.make_stream(pool, "c", SIZES, seed=1)
    names = [stream.domain_of(trace.request_id) for trace in made.traces]
    assert made.shift_at == 10
    assert Counter(names[:10]) == {"py": 5, "prose": 5}
    assert names[10:] == ["c"] * 6
    assert names[:10] != sorted(names[:10])
    assert len(set(ids(made))) == 16


def test_a_seed_names_one_order_whatever_order_the_traces_came_in(pool):
    first = ids(stream.make_stream(pool, "c", SIZES, seed=1))
    assert ids(stream.make_stream(pool[::-1], "c", SIZES, seed=1)) == first
    assert ids(stream.make_stream(pool, "c", SIZES, seed=2)) != first


def test_tuning_and_the_streams_share_no_request(pool):
    tuning = stream.Sizes(before_shift=6, after_shift=3, cadence=3)
    tuned = set(ids(stream.make_stream(pool, "c", tuning, seed=0, tuning=True)))
    assert len(tuned) == 9
    assert all(not tuned & set(ids(stream.make_stream(pool, "c", SIZES, seed=seed))) for seed in range(5))


def test_chunks_keep_the_order_and_never_reach_across_the_shift(pool):
    made = stream.make_stream(pool, "c", SIZES, seed=1)
    chunks = list(made.chunks(4))
    assert [len(chunk) for chunk in chunks] == [4, 4, 2, 4, 2]
    assert [trace for chunk in chunks for trace in chunk] == list(made.traces)


def test_too_few_traces_end_the_bench_and_what_is_asked_for_is_enough(pool):
    with pytest.raises(SystemExit, match="record more"):
        stream.make_stream(pool[:14], "c", SIZES, seed=0)
    tuning = stream.Sizes(before_shift=4, after_shift=3, cadence=2)
    assert stream.needed_per_domain(3, SIZES, tuning) == 16
    wanted = stream.needed_per_domain(3, SIZES, tuning)
    assert sum(n % stream.TUNING_EVERY != 3 for n in range(wanted)) >= SIZES.after_shift
    assert sum(n % stream.TUNING_EVERY == 3 for n in range(wanted)) >= tuning.after_shift


@pytest.mark.parametrize(
    ("level", "requests"), [(0.0, 40.0), (0.2, 40.0), (0.5, 60.0), (0.8, 80.0), (0.7, 73.0 + 1 / 3), (0.9, None)]
)
def test_requests_to_a_level_are_read_between_chunks(level, requests):
    found = figures.requests_to_reach([40, 80, 120], [0.2, 0.8, 0.4], level)
    assert found == (None if requests is None else pytest.approx(requests))


def test_recovery_counts_requests_after_the_shift_to_nine_tenths_of_the_last_two_chunks_before_it():
    ends, values = [40, 80, 120, 160, 200], [0.0, 0.8, 1.2, 0.4, 1.4]
    assert figures.recovered(ends, values, shift_at=120) == pytest.approx(40 + 40 * (0.9 - 0.4) / (1.4 - 0.4))
    assert figures.recovered(ends, [*values[:-1], 0.89], shift_at=120) is None
    assert figures.recovered(ends, values, shift_at=200) is None


def test_an_interval_is_student_s():
    mean = figures.Mean.of([1.0, 2.0, 3.0])
    assert (mean.value, mean.seeds) == (2.0, 3)
    assert mean.half_width == pytest.approx(4.302652729911275 * 1.0 / math.sqrt(3))  # t(0.975, 2 degrees), tables
    assert mean.text(1) == "2.0 ± 2.5"
    assert not mean.excludes_zero
    assert figures.Mean.of([1.0, 1.1, 0.9]).excludes_zero
    assert (figures.Mean.of([1.0]).text(), figures.Mean.of([1.0]).excludes_zero) == ("1.00", False)
    assert figures.Mean.of([]).seeds == 0


def test_gains_are_paired_by_seed():
    gain = figures.gains([1.1, 2.2, 5.0], [1.0, 2.0, 0.0])
    assert (gain.value, gain.seeds) == (pytest.approx(0.1), 2)
    assert gain.half_width == pytest.approx(0.0, abs=1e-9)


def made_run(row, shifted, accepted, seed=0):
    """A run of four chunks of requests of one round each, with so many drafts accepted in each chunk."""
    stage = programme.CHAT.of(["streams"]).stages[0]
    job = Job(
        row=row, setting=stage.settings[0], start="warm", seed=seed, sizes=stage.sizes, shifted=shifted
    )  # fmt: skip
    points = [
        Point(14 * (n + 1), {f"{shifted}-{14 * n + at:04d}": Tally(count, 1) for at in range(14)}, n, float(n))
        for n, count in enumerate(accepted)
    ]
    return Run(job=job, shift_at=0, points=tuple(points), steps=4, seconds=1.0)


def test_streams_are_columns_and_the_later_half_is_told_apart():
    made = [
        made_run(programme.UNTRAINED, "json", (2, 2, 2, 2)),
        made_run(programme.PRODUCT, "json", (2, 2, 4, 4)),
        made_run(programme.UNTRAINED, "talk", (1, 1, 1, 1)),
        made_run(programme.PRODUCT, "talk", (1, 1, 1, 2)),
    ]
    assert tables.markdown(made).splitlines()[4:] == [
        "| all requests | talk | json | median |",
        "| --- | --- | --- | --- |",
        "| no training: accepted | 1.00 | 2.00 |  |",
        "| paceline: the product's default | 25 % | 50 % | 38 % |",
        "",
        "| the later half | talk | json | median |",
        "| --- | --- | --- | --- |",
        "| no training: accepted | 1.00 | 2.00 |  |",
        "| paceline: the product's default | 50 % | 100 % | 75 % |",
        "",
        "| requests until it is proven | talk | json |",
        "| --- | --- | --- |",
        "| paceline: the product's default | 56 (1 of 1) | 42 (1 of 1) |",
    ]
    assert tables.requests_to_proof(made[0], made[0]) is None
    assert tables.requests_to_proof(made[0], made[1]) is None
    told = [tables.figures(group, group.rows()[1]) for group in tables.groups(made)]
    assert [(each["shifted"], each["after"]) for each in told] == [("talk", [1.25]), ("json", [3.0])]


def test_two_warm_heads_do_for_all_streams_of_a_chat_model(tmp_path):
    target = TargetModel(tmp_path / "target", "key", {}, 1)
    chat = Lab(data_dir=tmp_path, target=target, domains=("talk", "code", "json", "tools"), is_chat=True)
    assert {name: chat.unknown(name) for name in chat.domains} == {
        **dict.fromkeys(("talk", "code"), ("talk", "code")),
        **dict.fromkeys(("json", "tools"), ("json", "tools")),
    }
    assert len({chat.warm_head(name) for name in chat.domains}) == 2
    assert replace(chat, is_chat=False).unknown("json") == ("json",)


def test_a_run_is_made_once_for_the_same_job_draft_traces_and_code(tmp_path, monkeypatch, make_trace):
    lab = Lab(data_dir=tmp_path, target=TargetModel(tmp_path / "target", "key", {}, 1), domains=("talk", "json"))
    lab.warm_head("json").mkdir(parents=True)
    weights = lab.warm_head("json") / "model.safetensors"
    weights.write_bytes(b"weights")
    run = made_run(programme.PRODUCT, "json", (1, 2, 3, 4))
    file = lab.trace_file(run.job.setting, "json")
    trace_file.write_traces(file, {"per_domain": 1}, [make_trace(0)])
    made = []
    monkeypatch.setattr(runs, "run_job", lambda _lab, job: made.append(job) or run)
    assert [runs.kept_run(lab, run.job) for _ in range(2)] == [run, run]
    assert made == [run.job]
    runs.kept_run(lab, replace(run.job, seed=1))
    weights.write_bytes(b"others")
    runs.kept_run(lab, run.job)
    trace_file.write_traces(file, {"per_domain": 2}, [make_trace(0)])
    runs.kept_run(lab, run.job)
    assert len(made) == 4
