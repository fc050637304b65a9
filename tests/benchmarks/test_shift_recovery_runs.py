"""Runs of the recovery bench: which code is run, what the demo is given, and what is read of it afterwards."""

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from paceline.benchmarks import shift_recovery
from paceline.benchmarks.recovery import demo_run, reading, side
from paceline.benchmarks.recovery.demo_run import Job
from paceline.buffer.config import BufferConfig
from paceline.buffer.redis_board import RedisVersionBoard
from paceline.buffer.redis_client import connect
from paceline.buffer.redis_stream import RedisTraceBuffer
from paceline.buffer.scores import JUDGED_SCORE, PREDICTED_SCORE, PREDICTED_STANDARD_ERROR
from paceline.buffer.version import BoardRow, BoardState, DraftVersion, VersionState
from paceline.buffer.weights_file import WEIGHTS_FILE, sha256_of
from paceline.learner.claim.intake import is_held_out
from paceline.learner.judging.replay import replay_traces
from paceline.learner.model.draft_io import load_draft, load_target_embedding, random_draft
from paceline.policies.acceptance import Tally, replayed_tally, served_tally
from paceline.rig.deployment import SPECULATOR
from paceline.rig.models.target import TargetModel, ensure_random_draft, train_tokenizer
from paceline.rig.ports import free_port
from paceline.rig.prompts import domain_prompts, read_prompts
from paceline.rig.services import redis_service

CONFIG = BufferConfig(speculator=SPECULATOR)
#: A command line as revisions have it, which writes down what it was given.
CLI = """
import json, os, sys
if "--help" in sys.argv:
    print("options: --requests {seed}")
elif "--json" in sys.argv:
    given = dict(zip(sys.argv[2::2], sys.argv[3::2]))
    given |= {{name: os.environ.get(name) for name in ("SIDE", "PYTHONPATH")}} | {{"last": sys.argv[-1]}}
    open(given["--json"], "w").write(json.dumps(given))
    sys.exit({code})
"""


def git(folder: Path, *arguments: str) -> None:
    names = ("-c", "user.name=t", "-c", "user.email=t@t.example", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *names, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def house(tmp_path, monkeypatch) -> Path:
    """A repository with revisions `old`, whose demo has neither of two options, and HEAD; HEAD is not clean."""
    folder = tmp_path / "house"
    folder.mkdir()
    git(folder, "init", "-q")
    (folder / "__init__.py").touch()
    for seed, tag in (("", "old"), ("--seed --no-speed", "new")):
        (folder / "cli.py").write_text(CLI.format(seed=seed, code=0))
        git(folder, "add", "-A")
        git(folder, "commit", "-qm", tag)
        git(folder, "tag", tag)
    (folder / "cli.py").write_text("raise SystemExit('this was not committed')")
    monkeypatch.setattr(side, "_HOUSE", folder)
    return folder


@pytest.fixture
def job(tmp_path, tiny_speculator) -> Job:
    folder = tmp_path / "targets" / "key"
    folder.parent.mkdir()
    folder.symlink_to(tiny_speculator.target)
    return Job(TargetModel(folder, "key", {}, 0), requests=40, max_tokens=20)


def test_a_side_is_the_files_of_its_commit_and_knows_whether_its_demo_takes_a_seed(house, tmp_path):
    old = side.checked_out("before", "old", {"SIDE": "b"}, tmp_path / "checkouts")
    new = side.checked_out("after", "HEAD", {}, tmp_path / "checkouts")
    assert ["--seed" in each.demo_help() for each in (old, new)] == [False, True]
    assert old.root.name == old.commit[:12] != new.root.name
    assert side.checked_out("after", "new", {}, tmp_path / "checkouts") == new
    with pytest.raises(SystemExit, match="revision 'absent': git says nothing, expected a commit"):
        side.checked_out("before", "absent", {}, tmp_path)


def test_another_code_than_the_sides_is_noticed(house, tmp_path):
    found = side.checked_out("before", "old", {}, tmp_path / "checkouts")
    elsewhere = replace(found, root=tmp_path / "empty")
    elsewhere.root.mkdir()
    with pytest.raises(SystemExit, match=r"before: got the package .*, expected one below .*empty"):
        elsewhere.demo_help()


@pytest.mark.parametrize(("revision", "seed"), [("old", None), ("new", "5")])
def test_both_sides_get_the_prompts_the_target_and_the_initial_draft_of_the_seed(
    house, job, tmp_path, monkeypatch, revision, seed
):
    monkeypatch.setattr(demo_run, "prompt_lines", lambda _job, number: [f'{{"text": "{number}"}}'])
    read = []
    monkeypatch.setattr(demo_run, "recorded", lambda *given: read.append(given) or None)
    monkeypatch.setattr(demo_run.recorded_run, "save", lambda *_: None)
    found = side.checked_out("before", revision, {"SIDE": "b"}, tmp_path / "checkouts")
    seen = {}
    run = demo_run._run_demo

    def and_look(*given):
        run(*given)
        data_dir = tmp_path / "run" / "data"
        seen["prompts"] = (data_dir / "prompts.jsonl").read_text()
        seen["targets"] = (data_dir / "targets" / "key").resolve()
        seen["draft"] = sha256_of(data_dir / "drafts" / "key" / WEIGHTS_FILE)

    monkeypatch.setattr(demo_run, "_run_demo", and_look)
    (tmp_path / "run").mkdir()
    demo_run.ensure_run(found, 5, job, tmp_path / "run")
    given = json.loads((tmp_path / "run" / "demo.json").read_text())
    assert (given["--requests"], given["--max-tokens"], given.get("--seed")) == ("40", "20", seed)
    assert (given["last"] == "--no-speed") is (seed is not None)
    assert (given["SIDE"], given["PYTHONPATH"]) == ("b", str(found.root))
    ensure_random_draft(job.target.folder, tmp_path / "expected", 5)
    assert seen == {
        "prompts": '{"text": "5"}\n',
        "targets": job.target.folder.resolve(),
        "draft": sha256_of(tmp_path / "expected" / WEIGHTS_FILE),
    }
    assert not (tmp_path / "run" / "data").exists()
    ((data_dir, target, conditions, _),) = read
    assert (data_dir, target) == (tmp_path / "run" / "data", job.target)
    assert (conditions.commit, conditions.seed, conditions.settings) == (found.commit, 5, {"SIDE": "b"})


def test_prompts_are_those_the_demo_draws_code_before_prose_as_its_file_of_prompts(job, tmp_path, monkeypatch):
    texts = {name: [f"{name} {n} " * 60 for n in range(40)] for name in ("py", "prose")}
    held_out = {name: SimpleNamespace(held_out=found) for name, found in texts.items()}
    monkeypatch.setattr(demo_run, "load_corpus", lambda _names: SimpleNamespace(domains=held_out))
    tokenizer = train_tokenizer(["".join(found) for found in texts.values()], 300)
    monkeypatch.setattr(demo_run, "load_tokenizer", lambda _folder: tokenizer)
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n".join(demo_run.prompt_lines(job, 3)))
    read, drawn = read_prompts(file, tokenizer, 100), domain_prompts(texts, tokenizer, job.requests // 2, 3)
    assert [prompt.domain for prompt in read] == ["py"] * 20 + ["prose"] * 20
    assert [tokenizer.decode(list(prompt.input_ids)) for prompt in read] == [
        tokenizer.decode(list(prompt.input_ids)) for prompt in drawn
    ]
    assert demo_run.prompt_lines(job, 3) != demo_run.prompt_lines(job, 4)


def test_a_demo_that_fails_ends_the_bench_with_its_log_and_keeps_no_run(house, job, tmp_path, monkeypatch):
    (house / "cli.py").write_text("raise SystemExit('no redis')")
    git(house, "commit", "-qam", "broken")
    found = side.checked_out("after", "HEAD", {}, tmp_path / "checkouts")
    monkeypatch.setattr(demo_run, "arguments", lambda *_: [])
    (tmp_path / "run").mkdir()
    with pytest.raises(SystemExit, match=r"the demo ended with code 1; the end of .*demo\.log:\nno redis"):
        demo_run.ensure_run(found, 0, job, tmp_path / "run")
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["demo.log"]


def let_its_clock_tick(client):
    """Ids of entries are of whole milliseconds."""
    began = client.time()
    while client.time()[1] // 1000 == began[1] // 1000:
        pass


def test_a_run_is_read_from_the_redis_it_left(job, tiny_speculator, tmp_path):
    folder = tmp_path / "data" / "runs" / "20260101" / "redis"
    later = tmp_path / "later"
    random_draft(tiny_speculator.target, later, seed=9)
    # Sent in the order of their numbers, ended in another; version 1 learnt the first 30, and was published after 35.
    sent = [(n, "py" if n <= 20 else "prose") for n in range(1, 40)]
    traces = [
        tiny_speculator.serve(
            n, request_id=f"{domain}-{n:04d}", target_version="key", draft_version=int(n > 30),
            weights=later if n > 30 else None,
        )
        for n, domain in sorted(sent, key=lambda pair: (pair[0] // 4, -pair[0]))
    ]  # fmt: skip
    port = free_port()
    with redis_service(folder, port), connect(f"redis://127.0.0.1:{port}/0") as client:
        buffer, board = RedisTraceBuffer(client, CONFIG), RedisVersionBoard(client, CONFIG)
        ids = buffer.append(traces[:-4])
        let_its_clock_tick(client)
        learnt = ("", ""), (ids[0], ids[-6])
        for number, (draft, trained_on) in enumerate(zip((tiny_speculator.draft, later), learnt, strict=True)):
            weights = draft.as_uri(), sha256_of(draft / WEIGHTS_FILE)
            scores = {JUDGED_SCORE: 1.1, PREDICTED_SCORE: 1.25, PREDICTED_STANDARD_ERROR: 0.2} if number else {}
            row = DraftVersion(board.next_number(), None, "t", "key", "eagle3", *weights, "soft", trained_on, scores)
            board.register(row, "learner", "made")
            board.move(number, VersionState.LIVE, "learner", "made")
        let_its_clock_tick(client)
        buffer.append(traces[-4:])
    conditions = job.conditions(side.Side("before", "c", tmp_path, {}), 5)
    run = reading.recorded(tmp_path / "data", job.target, conditions, 12.34)
    by_id = {trace.request_id: trace for trace in traces}
    assert [(request.number, request.domain) for request in run.requests] == sent
    assert [request.tally for request in run.requests] == [served_tally(by_id[f"{d}-{n:04d}"]) for n, d in sent]
    assert (run.missing, run.published, run.seconds) == (1, 2, 12.3)
    assert run.initial_draft == sha256_of(tiny_speculator.draft / WEIGHTS_FILE)
    (version,) = run.versions
    judged = [trace for trace in traces[:30] if is_held_out(trace.request_id, 0.1)] + traces[30:35]
    assert len(judged) > 5
    draft = load_draft(later, load_target_embedding(tiny_speculator.target))
    expected = [replayed_tally(trace, replay_traces(draft, [trace], 3)[0]) for trace in judged]
    assert version.judged == tuple(expected)
    assert version.served == tuple(served_tally(trace) for trace in traces if trace.draft_version == 1)
    domains = [[trace.request_id[:2] for trace in sample] for sample in (judged, traces[30:])]
    before, after = (sample.count("py") / len(sample) for sample in domains)
    assert version.moved == pytest.approx(abs(after - before))
    assert 0.1 < version.moved < 0.9
    assert (version.number, version.on_board, version.board_error) == (1, 1.25, 0.2)
    with pytest.raises(SystemExit, match="got traces of targets \\['key'\\], expected other alone"):
        reading.recorded(tmp_path / "data", replace(job.target, key="other"), conditions, 1.0)
    with pytest.raises(SystemExit, match="got 0 runs with a Redis, expected one"):
        reading.recorded(tmp_path / "nothing", job.target, conditions, 1.0)


def rows(*trained_on):
    """A board of which the versions, from 0, were trained up to these entries."""
    found = {}
    for number, last in enumerate(trained_on):
        version = DraftVersion(number, None, "t", "k", "eagle3", "u", "s", "soft", ("0-0", last) if last else ("", ""))
        found[number] = BoardRow(version, VersionState.LIVE, "made", 0.0)
    return BoardState(found, len(trained_on) - 1, None, "")


def test_a_version_is_predicted_by_the_newest_requests_that_it_had_not_learnt(make_trace, monkeypatch):
    monkeypatch.setattr(reading, "MOST_REQUESTS", 3)
    names = [f"py-{n:04d}" for n in range(60)]
    held = next(name for name in names if is_held_out(name, 0.1))
    a, b, c, d, late, *_ = (name for name in names if not is_held_out(name, 0.1))
    order = [a, held, held, b, c, c, d, late]
    entries = [
        reading.TraceEntry(f"{n}-0", make_trace(n, request_id=name, trace_id=f"{n}")) for n, name in enumerate(order)
    ]
    chosen = {
        learnt: [trace.trace_id for trace in reading.unlearnt(rows("", *learnt), len(learnt), "7-0", entries)]
        for learnt in (("1-0", "3-0"), ("1-0", "2-0"), ("3-0",), ("2-0", "3-0"))
    }
    # What was held out since the version before counts, and a fourth request is too many.
    assert chosen == {
        ("1-0", "3-0"): ["2", "4", "5", "6"],
        ("1-0", "2-0"): ["3", "4", "5", "6"],
        ("3-0",): ["1", "2", "4", "5", "6"],
        ("2-0", "3-0"): ["4", "5", "6"],
    }
    sums = reading.by_request([entry.trace for entry in entries[:3]], {f"{n}": Tally(n, 1) for n in range(3)})
    assert sums == [Tally(0, 1), Tally(3, 2)]


def test_traffic_is_watched_by_a_draft_that_learnt_none_of_it(make_trace):
    entries = [
        reading.TraceEntry(f"{n}-0", make_trace(n, request_id=f"py-{n}", trace_id=f"{n}", draft_version=n // 2))
        for n in range(12)
    ]
    board = rows("", "1-0", "3-0", "5-0", "7-0", "9-0")
    seen = [[trace.trace_id for trace in reading.watched(board, number, entries)] for number in range(1, 6)]
    assert seen == [[], [], [], [f"{n}" for n in range(2, 10)], [f"{n}" for n in range(4, 12)]]


def test_settings_are_names_with_values():
    assert shift_recovery.setting("PACELINE_PASSES=2") == ("PACELINE_PASSES", "2")
    for wrong in ("PACELINE_PASSES", "=2"):
        with pytest.raises(Exception, match=f"got '{wrong}', expected NAME=VALUE"):
            shift_recovery.setting(wrong)


def test_a_pair_is_run_in_an_order_of_its_own_and_given_back_in_the_usual_one(monkeypatch, tmp_path):
    sides = [side.Side(name, name, tmp_path, {}) for name in ("before", "after")]
    ran = []
    monkeypatch.setattr(
        shift_recovery,
        "ensure_run",
        lambda each, seed, _job, folder: ran.append((each.name, seed, folder)) or each.name,
    )
    console = shift_recovery.Console(quiet=True)
    for seed in range(8):
        assert shift_recovery.pair(*sides, seed, None, tmp_path, console) == ("before", "after")
    assert {folder for _, _, folder in ran} == {
        tmp_path / f"seed-{n}" / name for n in range(8) for name in ("before", "after")
    }
    assert {name for name, _, _ in ran[::2]} == {"before", "after"}
