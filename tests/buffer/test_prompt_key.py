"""The key of a prompt: one per prompt, the same wherever it is made, and nothing to be read from it."""

import hashlib
from array import array

import numpy as np
import pytest
from paceline.buffer.stream.trace import is_prompt_key, prompt_key


@pytest.mark.parametrize("kept_in", [tuple, list, lambda ids: array("q", ids), lambda ids: np.array(ids, np.int32)])
def test_it_is_a_digest_of_the_ids_whatever_they_are_kept_in(kept_in) -> None:
    ids = [5, 2**31 - 1, 0]
    data = b"".join(number.to_bytes(8, "little") for number in ids)
    expected = hashlib.blake2b(data, digest_size=8, person=b"paceline prompt").hexdigest()
    assert prompt_key(kept_in(ids)) == expected
    assert is_prompt_key(expected)


def test_prompts_that_differ_anywhere_have_other_keys() -> None:
    prompts = [(1, 2, 3), (1, 2), (2, 1, 3), (1, 2, 3, 0), (0, 1, 2, 3), ()]
    assert len({prompt_key(prompt) for prompt in prompts}) == len(prompts)
