"""Only the last runs are kept; a folder in use, or that no run made, is never removed."""

from pathlib import Path

from paceline.rig.runs import KEPT_RUNS, run_folder


def finished(runs: Path, name: str) -> Path:
    folder = runs / name
    (folder / "redis").mkdir(parents=True)
    (folder / "redis" / "appendonly.aof").write_text("prompts")
    (folder / ".run").touch()
    return folder


def names(runs: Path) -> list[str]:
    return sorted(path.name for path in runs.iterdir())


def test_a_new_run_keeps_the_newest_runs_and_its_own(tmp_path: Path) -> None:
    for day in range(1, 6):
        finished(tmp_path, f"2020010{day}-000000-1")
    with run_folder(tmp_path) as folder:
        assert names(tmp_path) == ["20200104-000000-1", "20200105-000000-1", folder.name]
        assert len(names(tmp_path)) == KEPT_RUNS
    assert folder.is_dir()


def test_an_old_run_is_kept_until_it_has_ended(tmp_path: Path) -> None:
    with run_folder(tmp_path) as lasting:
        for year in range(2096, 2100):
            finished(tmp_path, f"{year}0101-000000-1")
        lasting.rename(tmp_path / "20200101-000000-1")
        for _ in range(2):
            with run_folder(tmp_path / ".") as other:
                assert "20200101-000000-1" in names(tmp_path)
            (other / ".run").unlink()
            other.rename(tmp_path.parent / f"{tmp_path.name}-{_}")
    with run_folder(tmp_path):
        assert "20200101-000000-1" not in names(tmp_path)


def test_what_no_run_made_is_left_alone(tmp_path: Path) -> None:
    for name in ("notes", "0-mine", "1", "2", "3"):
        (tmp_path / name).mkdir()
    with run_folder(tmp_path) as folder:
        assert names(tmp_path) == sorted(["notes", "0-mine", "1", "2", "3", folder.name])


def test_the_first_run_makes_the_folder_above(tmp_path: Path) -> None:
    with run_folder(tmp_path / "data" / "runs") as folder:
        assert folder.parent == tmp_path / "data" / "runs"
