"""What a file of the compatibility table keeps: rows are run again when code or machine are others, and else not."""

import argparse
import re
import shutil
from contextlib import contextmanager
from dataclasses import replace

import pytest
from paceline.benchmarks import compatibility
from paceline.benchmarks.matrix import results
from paceline.benchmarks.matrix.results import Cells, Measured, still_holding
from paceline.benchmarks.matrix.rows import ROWS, Row
from paceline.benchmarks.matrix.table import COLUMNS
from paceline.benchmarks.measure.code_digest import code_digest
from paceline.buffer.errors import ConfigError
from paceline.rig.prompts import Prompt

NOW = Measured({"cores": 2, "sglang": "0.5.0"}, "this code", ())
#: Rows of two factors.
PART = ["draft: ", "start: "]


def cells(row, said="yes", seconds=30.5):
    return Cells("0.5.0", row.key, dict.fromkeys(COLUMNS, said), seconds)


def test_what_was_measured_is_read_as_it_was_saved(tmp_path):
    measured = NOW.with_row(cells(ROWS[0], "no: so | so"))
    measured.save(tmp_path / "new" / "0.5.0.json")
    assert Measured.read(tmp_path / "new" / "0.5.0.json") == measured
    assert [file.name for file in (tmp_path / "new").iterdir()] == ["0.5.0.json"]
    (tmp_path / "b.json").write_text('{"machine": {}}', encoding="utf-8")
    with pytest.raises(ConfigError, match=r"b.json: got KeyError.*expected a file that --json wrote"):
        Measured.read(tmp_path / "b.json")


def test_a_row_takes_the_place_of_the_one_before_it():
    measured = NOW.with_row(cells(ROWS[0], "no")).with_row(cells(ROWS[1])).with_row(cells(ROWS[0], "yes", 3.0))
    assert measured.cells == (cells(ROWS[1]), cells(ROWS[0], "yes", 3.0))


def test_rows_hold_for_the_same_code_on_the_same_machine_alone(tmp_path):
    file, before = tmp_path / "a.json", NOW.with_row(cells(ROWS[0]))
    assert still_holding(file, NOW) == (NOW, "")
    before.save(file)
    assert still_holding(file, NOW) == (before, "")
    for other, why in [
        (replace(NOW, code="other code"), "was measured with other code; all rows are run again"),
        (replace(NOW, machine={"cores": 3, "sglang": "0.5.0"}), "got .*'cores': 2.*, expected .*'cores': 3"),
    ]:
        found, said = still_holding(file, other)
        assert found == other
        assert re.search(f"a.json.*{why}", said)
    file.write_text("{", encoding="utf-8")
    assert still_holding(file, NOW)[0] == NOW
    assert still_holding(file, NOW)[1].endswith("expected a file that --json wrote; all rows are run again")


@pytest.fixture
def house(tmp_path):
    """Folders as the real house has them, with a file each."""
    folders = [each for each in results._DECIDING if not each.endswith(".py")]
    for folder in (*folders, "docs", "tests"):
        (tmp_path / folder / "inner" / "__pycache__").mkdir(parents=True)
        (tmp_path / folder / "inner" / "one.py").write_text("1\n")
    for name in ("benchmarks/compatibility.py", "benchmarks/matrix/table.py"):
        (tmp_path / name).write_text("1\n")
    return tmp_path


def digest(house):
    return code_digest(house, results._DECIDING, results._THE_PAGE)


@pytest.mark.parametrize(
    ("name", "decides"),
    [
        ("serving/inner/one.py", True),
        ("serving/inner/new.txt", True),
        ("rig/inner/one.py", True),
        ("benchmarks/matrix/inner/one.py", True),
        ("benchmarks/compatibility.py", True),
        ("benchmarks/matrix/table.py", False),
        ("serving/inner/__pycache__/one.pyc", False),
        ("docs/inner/one.py", False),
        ("tests/inner/one.py", False),
    ],
)
def test_code_is_what_decides_what_a_row_says(house, name, decides):
    before = digest(house)
    assert before == digest(house)
    (house / name).write_text("2\n")
    assert (digest(house) != before) == decides


def test_a_file_under_another_name_is_other_code(house):
    before = digest(house)
    shutil.move(house / "rig" / "inner" / "one.py", house / "rig" / "inner" / "two.py")
    assert digest(house) != before


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Runs chosen rows without servers; returns what was measured and which rows were run for it."""
    ran = []

    def examined(lab, row, number):
        ran.append(row.key)
        if row.name == "stops here":
            raise KeyboardInterrupt
        return dict.fromkeys(COLUMNS, f"run {len(ran)}")

    @contextmanager
    def laboratory(data_dir, console):
        yield None
        assert ran, "a Redis was started for nothing"

    monkeypatch.setattr(compatibility, "examined", examined)
    monkeypatch.setattr(compatibility, "laboratory", laboratory)
    monkeypatch.setattr(Measured, "nothing_yet", classmethod(lambda cls: NOW))

    def measured(**options):
        ran.clear()
        file = tmp_path / "0.5.0.json"
        usual = {"only": [], "json": file, "again": False, "data_dir": tmp_path}
        done = compatibility.measured(argparse.Namespace(**usual | options))
        assert Measured.read(file) == done
        return done, list(ran)

    return measured


def test_an_interrupted_run_is_taken_up_where_it_was(run, monkeypatch, tmp_path):
    first, second = ROWS[0], ROWS[1]
    monkeypatch.setattr(compatibility, "ROWS", [first, Row(factor="start", name="stops here"), second])
    with pytest.raises(KeyboardInterrupt):
        run()
    assert [each.row for each in Measured.read(tmp_path / "0.5.0.json").cells] == [first.key]
    monkeypatch.setattr(compatibility, "ROWS", [first, second])
    done, ran = run()
    assert ran == [second.key]
    assert [each.row for each in done.cells] == [first.key, second.key]


def test_parts_are_put_together_and_run_again_only_on_demand(run):
    drafts, starts = (sum(row.key.startswith(part) for row in ROWS) for part in PART)
    assert len(run(only=PART[:1])[1]) == drafts
    done, ran = run(only=PART)
    assert (len(ran), len(done.cells)) == (starts, drafts + starts)
    assert run(only=PART)[1] == []
    done, ran = run(only=PART[:1], again=True)
    assert (len(ran), len(done.cells)) == (drafts, drafts + starts)
    assert len(run()[1]) == len(ROWS) - drafts - starts


def test_the_time_of_a_row_is_kept(run, monkeypatch):
    times = iter([100.0, 142.26])
    monkeypatch.setattr(compatibility, "now_s", lambda: next(times))
    assert [each.seconds for each in run(only=[ROWS[0].key])[0].cells] == [42.3]


def test_a_system_prompt_comes_before_every_prompt_of_the_rows_that_have_one(tmp_path):
    prompts = [Prompt("a", "py", (1, 2)), Prompt("b", "py", (3,)), Prompt("c", "py", (4,))]
    lab = compatibility.Lab(None, prompts, tmp_path, "redis://x")
    assert lab.prompts_of(Row(factor="pair", name="x")) == prompts
    asked = lab.prompts_of(Row(factor="pair", name="x", has_system_prompt=True))
    assert asked == [
        Prompt("a", "py", (1, 2, 3, 1, 2)),
        Prompt("b", "py", (1, 2, 3, 3)),
        Prompt("c", "py", (1, 2, 3, 4)),
    ]
