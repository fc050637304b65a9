"""Operators act freely until a token is set, then with that token alone; refusals are recorded."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from paceline.buffer.board.redis_operator import OperatorAuth
from paceline.buffer.config import BufferConfig
from paceline.buffer.errors import OperatorRefused
from paceline.buffer.keys import OPERATOR_TOKEN, REFUSALS_KEPT, REFUSED_OPERATORS

FIRST, SECOND = "the first token of all", "the second token of all"


@pytest.fixture
def auth(redis_client) -> OperatorAuth:
    return OperatorAuth(redis_client, BufferConfig())


def recorded(auth: OperatorAuth) -> list[tuple[str, str, str, bool]]:
    return [(entry.by, entry.what, entry.why, entry.refused) for entry in auth.history()]


def test_without_a_token_everybody_may_act_and_nothing_is_recorded(auth):
    auth.require(None, "operator:ann", "promote 3")
    auth.require("anything at all", "operator:ann", "promote 3")
    assert auth.history() == []


def test_once_a_token_is_set_only_its_holder_may_act(auth):
    auth.set_token(FIRST, None, "operator:ann", "hardening")
    auth.require(FIRST, "operator:bob", "promote 3")
    for token, got in ((None, "no token"), ("", "no token"), (SECOND, "another token")):
        with pytest.raises(
            OperatorRefused, match=rf"^promote 3: got {got}, expected the operator token that"
        ) as caught:
            auth.require(token, "operator:eve", "promote 3")
        assert "operator:ann set for default; put it into PACELINE_OPERATOR_TOKEN" in str(caught.value)
        assert "delete the key paceline:{default}:operator_token in Redis" in str(caught.value)
    assert recorded(auth) == [
        ("operator:ann", "operator token set", "hardening", False),
        ("operator:eve", "refused: promote 3", "got no token", True),
        ("operator:eve", "refused: promote 3", "got no token", True),
        ("operator:eve", "refused: promote 3", "got another token", True),
    ]


def test_entries_are_dated_by_redis(redis_client, auth):
    before, _ = redis_client.time()
    auth.set_token(FIRST, None, "operator:ann", "why")
    after, _ = redis_client.time()
    assert before <= auth.history()[0].at <= after + 1


def test_a_token_is_changed_by_its_holder_alone(auth):
    auth.set_token(FIRST, None, "operator:ann", "why")
    for token in (None, SECOND):
        with pytest.raises(OperatorRefused, match="token set: got"):
            auth.set_token(SECOND, token, "operator:eve", "mine now")
    auth.require(FIRST, "operator:ann", "rollback")
    auth.set_token(SECOND, FIRST, "operator:ann", "rotated")
    auth.require(SECOND, "operator:ann", "rollback")
    with pytest.raises(OperatorRefused):
        auth.require(FIRST, "operator:ann", "rollback")
    changes = [row for row in recorded(auth) if not row[3]]
    assert changes == [
        ("operator:ann", "operator token set", "why", False),
        ("operator:ann", "operator token set", "rotated", False),
    ]


@pytest.mark.guarantee("operator-token")
def test_of_many_who_set_a_first_token_at_the_same_moment_one_succeeds(auth):
    def attempt(name: str) -> bool:
        try:
            auth.set_token(f"the token of all of {name}", None, f"operator:{name}", "me first")
        except OperatorRefused:
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        outcomes = dict(zip("abcd", pool.map(attempt, "abcd"), strict=True))
    assert sorted(outcomes.values()) == [False, False, False, True]
    winner = next(name for name, succeeded in outcomes.items() if succeeded)
    auth.require(f"the token of all of {winner}", "operator:x", "rollback")


@pytest.mark.guarantee("token-hash")
def test_neither_token_stands_in_redis_or_in_an_error(redis_client, auth):
    auth.set_token(FIRST, None, "operator:ann", "why")
    with pytest.raises(OperatorRefused) as caught:
        auth.require(SECOND, "operator:eve", "promote 3")
    written = [redis_client.xrange(key.name("default")) for key in (OPERATOR_TOKEN, REFUSED_OPERATORS)]
    assert redis_client.keys("*") and len(redis_client.keys("*")) == 2  # noqa: PT018 - nothing else was written
    for token in (FIRST, SECOND):
        assert token not in str(written) + str(caught.value) + repr(caught.value) + repr(auth) + str(auth.history())


@pytest.mark.guarantee("refused-operators-kept")
def test_only_the_newest_refusals_are_kept_and_changes_of_the_token_stay(redis_client, auth):
    auth.set_token(FIRST, None, "operator:ann", "why")
    with redis_client.pipeline() as pipe:
        for number in range(REFUSALS_KEPT):
            pipe.xadd(REFUSED_OPERATORS.name("default"), {"by": f"operator:{number}", "act": "a", "why": "w"})
        pipe.execute()
    with pytest.raises(OperatorRefused):
        auth.require(None, "operator:newest", "a")
    first, *refused = recorded(auth)
    assert first[:2] == ("operator:ann", "operator token set")
    assert (len(refused), refused[0][0], refused[-1][0]) == (REFUSALS_KEPT, "operator:1", "operator:newest")


@pytest.mark.guarantee("operator-token")
@pytest.mark.parametrize("fields", [{"x": "y"}, {"seal": ""}, {"seal": b"\xff"}, {"seal": "scrypt1$zz$zz"}])
def test_a_damaged_seal_admits_nobody(redis_client, auth, fields):
    redis_client.xadd(OPERATOR_TOKEN.name("default"), fields)
    for token in (None, "", FIRST):
        with pytest.raises(OperatorRefused):
            auth.require(token, "operator:eve", "rollback")
    assert len(auth.history()) == 4


def test_speculators_have_tokens_of_their_own(redis_client, auth):
    auth.set_token(FIRST, None, "operator:ann", "why")
    OperatorAuth(redis_client, BufferConfig(speculator="other")).require(None, "operator:bob", "rollback")
