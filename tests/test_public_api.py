"""`import paceline` offers what `__all__` says."""

import subprocess
import sys

import paceline.buffer.stream.trace


def test_nothing_is_public_by_accident_and_every_public_name_can_be_imported() -> None:
    listed = "print(*[name for name in dir(paceline) if name[0] != '_' or name == '__version__'])"
    code = f"import paceline; {listed}; from paceline import *"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert sorted(done.stdout.split()) == sorted(paceline.__all__)
