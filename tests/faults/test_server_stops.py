"""A real server that is asked to end: what it answered is delivered, though nobody waits for it."""

import pytest
from waiting import until

pytestmark = pytest.mark.e2e

CROWD, TOKENS = 6, 40


@pytest.mark.guarantee("server-stopped")
def test_a_server_ended_in_good_order_delivers_all_it_answered(house):
    house.ensure("none")
    jobs = [(f"last-{i}", house.texts[i][100:260], TOKENS) for i in range(CROWD)]
    answers = house.answers(jobs)
    house.end()  # at once
    assert [len(answer) for answer in answers] == [TOKENS] * CROWD

    def delivered():
        return {t.request_id: t.tokens[t.context_len :].tolist() for t in house.traces() if t.request_id in told}

    told = {rid: answer for (rid, *_), answer in zip(jobs, answers, strict=True)}
    until(lambda: len(delivered()) == CROWD, "the last traces")
    assert delivered() == told
