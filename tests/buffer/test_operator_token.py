"""The seal of an operator's token verifies that token alone and reveals nothing of it."""

import hashlib

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from paceline.buffer.board.operator_token import hash_token, verify_token

TOKEN = "correct horse battery"
SEAL = hash_token(TOKEN)


@pytest.mark.guarantee("token-hash")
def test_a_seal_is_scrypt_of_the_token_and_its_salt():
    kind, salt, digest = SEAL.split("$")
    expected = hashlib.scrypt(TOKEN.encode(), salt=bytes.fromhex(salt), n=32768, r=8, p=1, maxmem=1 << 26)
    assert (kind, digest) == ("scrypt1", expected.hex())
    assert len(bytes.fromhex(salt)) == 16


def test_every_seal_has_a_salt_of_its_own():
    other = hash_token(TOKEN)
    assert other.split("$")[1] != SEAL.split("$")[1]
    assert other.split("$")[2] != SEAL.split("$")[2]
    assert verify_token(TOKEN, other)


@pytest.mark.parametrize("token", ["", TOKEN[:-1], TOKEN + " ", TOKEN.upper(), SEAL, "\udcff" * 16])
def test_a_seal_verifies_no_other_token(token):
    assert not verify_token(token, SEAL)


def test_a_token_of_any_bytes_is_verified_by_its_seal():
    for token in ("\udcff" * 16, "пароль-оператора-1"):
        assert verify_token(token, hash_token(token))


@settings(max_examples=15, deadline=None)
@given(st.one_of(st.text(), st.text(alphabet="scrypt1$0f"), st.text(alphabet="$").map(lambda end: SEAL[:-1] + end)))
@example(SEAL.replace("scrypt1", "scrypt2"))
@example("scrypt1$$")
@example("scrypt1$00$")
@example(SEAL + "00")
@example(SEAL + "é")
def test_a_malformed_seal_verifies_no_token(seal):
    assert not verify_token(TOKEN, seal)
