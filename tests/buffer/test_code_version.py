"""The commit in a version's tags: the one git reports, read without git."""

import shutil
import subprocess
from importlib.metadata import version
from pathlib import Path

import pytest
from paceline.buffer import code_version as module
from paceline.buffer.code_version import code_version, commit_of

SHA = "532fcfad7bfe529e78668282a350ebb348fb4e4b"


def checkout(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_a_detached_head_a_branch_and_a_packed_branch_are_read(tmp_path: Path) -> None:
    git = tmp_path / ".git"
    checkout(git, HEAD=f"{SHA}\n")
    assert commit_of(tmp_path) == SHA
    checkout(git, HEAD="ref: refs/heads/main\n")
    (git / "packed-refs").write_text(f"# pack-refs with: peeled\n{'0' * 40} refs/heads/ma\n{SHA} refs/heads/main\n")
    assert commit_of(tmp_path) == SHA
    checkout(git, refs__heads__main=f"{'1' * 40}\n")
    assert commit_of(tmp_path) == "1" * 40


def test_a_worktree_is_followed_to_its_main_checkout(tmp_path: Path) -> None:
    checkout(tmp_path / "main/.git", refs__heads__side=f"{SHA}\n")
    checkout(tmp_path / "main/.git/worktrees/side", HEAD="ref: refs/heads/side\n", commondir="../..\n")
    (tmp_path / "side").mkdir()
    (tmp_path / "side/.git").write_text(f"gitdir: {tmp_path}/main/.git/worktrees/side\n")
    assert commit_of(tmp_path / "side") == SHA


def test_without_a_checkout_or_a_commit_there_is_none(tmp_path: Path) -> None:
    assert commit_of(tmp_path) == ""
    checkout(tmp_path / ".git", HEAD="ref: refs/heads/unborn\n")
    assert commit_of(tmp_path) == ""


def test_git_agrees(tmp_path: Path) -> None:
    if not shutil.which("git"):
        pytest.skip("git is not installed")
    made = ("init -q", "-c user.name=a -c user.email=b commit -q --allow-empty -m first", "pack-refs --all")
    for words in (*made, "rev-parse HEAD"):
        done = subprocess.run(["git", *words.split()], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert commit_of(tmp_path) == done.stdout.strip()


def test_the_version_of_the_code_carries_the_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkout(tmp_path / ".git", HEAD=f"{SHA}\n")
    monkeypatch.setattr(module, "_CHECKOUT", tmp_path)
    assert code_version() == f"{version('paceline')}+g532fcfad7bfe"
    monkeypatch.setattr(module, "_CHECKOUT", tmp_path / "elsewhere")
    assert code_version() == version("paceline")
