"""Feature rows in one byte per value: what comes back, how far off it is, and what cannot be stored."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from paceline.buffer.errors import TraceInvalid
from paceline.buffer.stream.feature_rows import FeatureDtype, as_float32, quantised
from paceline.buffer.stream.trace_codec import decode_trace, encode_trace

INT8, E4M3 = FeatureDtype.INT8, FeatureDtype.E4M3
QUANTISED = [kind for kind in FeatureDtype if kind.is_quantised]
LARGEST = {INT8: 127.0, E4M3: 448.0}


def rows(seed=0, count=300, width=12):
    """Rows whose sizes differ by many powers of two, and within a row by a few."""
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(count, width)) * 2.0 ** rng.integers(-20, 20, (count, 1))).astype(np.float32)


def slow_code(value, kind):
    """The nearest number that the kind has, by looking at all of them."""
    if kind is INT8:
        return float(round(value))
    return float(torch.tensor(value).to(torch.float8_e4m3fn).float())


@pytest.mark.parametrize("kind", QUANTISED)
def test_every_value_is_the_nearest_that_its_rows_scale_allows(kind):
    given_rows = rows()
    codes, scales = quantised(given_rows, FeatureDtype.FLOAT32, kind)
    assert (codes.shape, scales.shape, scales.dtype) == (given_rows.shape, (len(given_rows),), np.float32)
    for row, code, scale in zip(given_rows[::37], codes[::37], scales[::37], strict=True):
        assert scale == np.abs(row).max() / np.float32(LARGEST[kind])
        wanted = [slow_code(float(value / scale), kind) for value in row]
        assert as_float32(code[None], kind).tolist() == [wanted]
    back = as_float32(codes, kind, scales)
    largest = np.abs(given_rows).max(axis=1, keepdims=True)
    bound = largest / 254 if kind is INT8 else np.maximum(np.abs(given_rows) / 16, largest / 448 / 2**10)
    assert (np.abs(back - given_rows) <= bound * 1.0001).all()
    # The row's largest value comes back, and no other row has a say in it.
    np.testing.assert_allclose(np.abs(back).max(axis=1), largest[:, 0], rtol=1e-6)
    alone, own = quantised(given_rows[5:6], FeatureDtype.FLOAT32, kind)
    assert (alone.tolist(), own.tolist()) == (codes[5:6].tolist(), scales[5:6].tolist())


@given(st.lists(st.floats(-448, 448, width=32), min_size=1, max_size=40))
def test_e4m3_is_torchs(values):
    # 448 itself makes the scale 1, so that codes are those of the values.
    given_row = np.array([[448.0, *values]], np.float32)
    codes, scales = quantised(given_row, FeatureDtype.FLOAT32, E4M3)
    wanted = torch.from_numpy(given_row).to(torch.float8_e4m3fn)
    assert scales.tolist() == [1.0]
    assert codes.tolist() == wanted.view(torch.uint8).tolist()


def test_all_codes_mean_what_they_mean_to_torch():
    every = np.arange(256, dtype=np.uint8)[None]
    wanted = torch.from_numpy(every).view(torch.float8_e4m3fn).float().numpy()
    np.testing.assert_array_equal(as_float32(every, E4M3), wanted)


@pytest.mark.parametrize("kind", QUANTISED)
@pytest.mark.parametrize("stored", [FeatureDtype.FLOAT16, FeatureDtype.BFLOAT16])
def test_rows_of_half_precision_are_quantised_as_the_numbers_they_are(kind, stored):
    halves = torch.from_numpy(rows(1, 20) / 1024)
    if stored is FeatureDtype.BFLOAT16:
        halves = halves.bfloat16()
        bits, numbers = halves.view(torch.uint16).numpy(), halves.float().numpy()
    else:
        halves = halves.half()
        bits, numbers = halves.numpy(), halves.float().numpy()
    got, wanted = quantised(bits, stored, kind), quantised(numbers, FeatureDtype.FLOAT32, kind)
    assert [part.tolist() for part in got] == [part.tolist() for part in wanted]


@pytest.mark.parametrize("kind", QUANTISED)
def test_a_row_of_zeros_stays_one_and_no_rows_are_none(kind):
    codes, scales = quantised(np.zeros((2, 3), np.float32), FeatureDtype.FLOAT32, kind)
    assert as_float32(codes, kind, scales).tolist() == [[0.0] * 3] * 2
    codes, scales = quantised(np.zeros((0, 0), np.float32), FeatureDtype.FLOAT32, kind)
    assert (codes.shape, scales.shape) == ((0, 0), (0,))


@pytest.mark.parametrize("kind", QUANTISED)
@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_has_no_code_and_is_named_by_its_row(kind, wrong):
    given_rows = rows()
    given_rows[270, 3] = wrong
    with pytest.raises(TraceInvalid, match=f"features row 270: got a value that is not finite, .* for {kind}"):
        quantised(given_rows, FeatureDtype.FLOAT32, kind)


@pytest.mark.parametrize("kind", QUANTISED)
def test_a_trace_of_quantised_features_comes_back_from_the_wire(make_trace, kind):
    whole = make_trace(context_len=60)
    codes, scales = quantised(whole.features, whole.feature_dtype, kind)
    changes = {"features": codes, "feature_scales": scales, "feature_dtype": kind, "replay_exact": False}
    trace = make_trace(context_len=60, **changes)
    back = decode_trace(encode_trace(trace))
    assert back.features.tobytes() == codes.tobytes()
    assert back.feature_numbers().tolist() == as_float32(codes, kind, scales).tolist()
    assert np.abs(back.feature_numbers() - whole.features).max() < 0.1 * np.abs(whole.features).max()
