"""Which paceline runs here: its release, and the commit when it runs from a git checkout."""

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_CHECKOUT = Path(__file__).resolve().parents[1]


def code_version() -> str:
    """As "0.1.0+g532fcfad7bfe"; without the commit outside a checkout, "unknown" when paceline is not installed.

    Uncommitted changes do not show.
    """
    try:
        release = version("paceline")
    except PackageNotFoundError:
        release = "unknown"
    commit = commit_of(_CHECKOUT)
    return f"{release}+g{commit[:12]}" if commit else release


def commit_of(checkout: Path) -> str:
    """The commit that is checked out, read without git; "" when `checkout` is no checkout or has no commit."""
    try:
        git = _git_folder(checkout / ".git")
        head = (git / "HEAD").read_text(encoding="utf-8").strip()
        return _resolved(git, head.removeprefix("ref: ")) if head.startswith("ref: ") else head
    except (OSError, ValueError):  # no checkout, or one in a layout of another git
        return ""


def _git_folder(git: Path) -> Path:
    """In a worktree or a submodule .git is a file that names the folder."""
    if not git.is_file():
        return git
    return git.parent / git.read_text(encoding="utf-8").strip().removeprefix("gitdir: ")


def _resolved(git: Path, ref: str) -> str:
    shared = git / "commondir"  # a worktree keeps its branches in the main checkout
    home = git / shared.read_text(encoding="utf-8").strip() if shared.is_file() else git
    if (home / ref).is_file():
        return (home / ref).read_text(encoding="utf-8").strip()
    rows = (line.split(" ") for line in (home / "packed-refs").read_text(encoding="utf-8").splitlines())
    return next((row[0] for row in rows if row[1:] == [ref]), "")
