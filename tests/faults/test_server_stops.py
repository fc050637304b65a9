"""A real server that is asked to end: what it answered is delivered, though no client waits for that."""

import pytest
from waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.servers]

CROWD = 6
TOKENS = 40


@pytest.mark.guarantee("server-stopped")
def test_a_server_that_shuts_down_cleanly_delivers_all_it_answered(replica):
    replica.ensure_running()
    jobs = [(f"last-{i}", replica.texts[i][100:260], TOKENS) for i in range(CROWD)]
    answers = replica.answers(jobs)
    replica.end()  # at once
    assert [len(answer) for answer in answers] == [TOKENS] * CROWD

    def delivered():
        last = [trace for trace in replica.traces() if trace.request_id.startswith("last-")]
        return sorted((trace.request_id, trace.tokens[trace.context_len :].tolist()) for trace in last)

    until(lambda: len(delivered()) >= CROWD, "the last traces")
    assert delivered() == [(rid, answer) for (rid, *_), answer in zip(jobs, answers, strict=True)]
