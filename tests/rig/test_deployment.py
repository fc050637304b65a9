"""Flags of the servers that demo, tests and benchmarks start."""

import json
from pathlib import Path

from paceline.rig.deployment import paced_flags


def test_a_paced_server_is_told_the_lengths_that_it_may_choose(tmp_path: Path) -> None:
    flags = paced_flags(tmp_path / "new", range(4))
    assert flags[:2] == ["--speculative-adaptive", "--speculative-adaptive-config"]
    assert json.loads(Path(flags[2]).read_text()) == {"1": {"candidate_steps": [0, 1, 2, 3]}}
