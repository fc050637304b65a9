"""What `import paceline` offers is what `__all__` says, and every module exists once."""

import subprocess
import sys

import paceline.buffer.trace


def fresh(code: str) -> list[str]:
    """Words printed by `code` in an interpreter that has imported nothing of paceline."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_nothing_is_public_by_accident() -> None:
    dunders = "{'__version__'}"
    public = fresh(f"import paceline; print(*[n for n in dir(paceline) if n[0] != '_' or n in {dunders}])")
    assert sorted(public) == sorted(paceline.__all__)


def test_every_public_name_can_be_imported() -> None:
    code = "from paceline import *; import paceline; print(*[n for n in paceline.__all__ if n in globals()])"
    assert sorted(fresh(code)) == sorted(paceline.__all__)


def test_a_module_is_imported_once_whatever_the_checkout_is_called() -> None:
    # pytest's default import mode would import the checkout a second time under its folder's name.
    assert [name for name in sys.modules if name.endswith("buffer.trace")] == ["paceline.buffer.trace"]
