"""Everything that a user runs, started once for all tests here."""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))  # for the modules beside this file

from real_stack import RealStack, real_stack


@pytest.fixture(scope="package")
def real(models: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealStack]:
    """All of it but the learner; no draft is on the board until test_1_rollback.py puts some there."""
    if shutil.which("prometheus") is None:
        pytest.skip("no prometheus on PATH: apt-get install prometheus")
    with real_stack(tmp_path_factory.mktemp("real"), models) as made:
        yield made
