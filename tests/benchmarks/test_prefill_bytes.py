"""What the benchmark counts is what the hook hands on: rows of a window's context, and their bytes."""

import pytest
from paceline.benchmarks.prefill_bytes import HandedOn, handed_on, line
from paceline.serving.capture.prefill_rows import WindowSizes

WINDOW, CONTEXT = 16, 4


@pytest.mark.parametrize("prompt_tokens", [1, 15, 16, 40])
@pytest.mark.parametrize("chunk_tokens", [7, 64])
def test_a_prompt_hands_on_the_rows_that_a_window_holds_and_their_bytes(prompt_tokens, chunk_tokens):
    with_its_first_token = prompt_tokens + 1
    rows = prompt_tokens if with_its_first_token <= WINDOW else CONTEXT - 1
    narrow, wide = (
        handed_on(prompt_tokens, chunk_tokens, width, WindowSizes(WINDOW, CONTEXT)) for width in (1000, 1500)
    )
    assert narrow.rows == wide.rows == rows
    assert wide.size_bytes - narrow.size_bytes == rows * 500 * 2  # bfloat16
    heads_bytes = narrow.size_bytes - rows * (1000 * 2 + 4)  # a row is its features and its token id
    assert 0 < heads_bytes < 1000 * (1 + prompt_tokens // chunk_tokens)


def test_the_table_divides_by_the_whole_prompt():
    assert line(8192, HandedOn(8192, 81920), HandedOn(511, 8192)) == "| 8192 | 8192 | 10 | 511 | 1 | 0.100 |"
