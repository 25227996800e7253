"""Sizes as text and of trees."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rematax._sizes import format_bytes, parse_bytes, tree_bytes


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("12", 12),
        ("12 B", 12),
        ("3 bytes", 3),
        ("1 kB", 1000),
        ("500 MB", 500_000_000),
        ("2 GiB", 2 * 1024**3),
        ("2gib", 2 * 1024**3),
        (" 1.5 KB ", 1500),
        ("0.5 KiB", 512),
        (".5kB", 500),
        ("1,000 kB", 1_000_000),
        ("1_000", 1000),
        ("9007199254740993 B", 2**53 + 1),
        (7, 7),
        (np.int64(7), 7),
        (2e9, 2_000_000_000),
    ],
)
def test_parse(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    "text",
    [
        "lots",
        "",
        "MB",
        "3 parsecs",
        "1e3 MB",
        "nan",
        "inf GB",
        "3 MB 2",
        "1,5 MB",
        "10,00 B",
        "_ B",
    ],
)
def test_text_that_is_no_size(text):
    with pytest.raises(ValueError, match=r"is not a memory size: write a number and a unit"):
        parse_bytes(text)


@pytest.mark.parametrize("size", ["-3 MB", -3, "-0.5 kB"])
def test_negative(size):
    with pytest.raises(ValueError, match="cannot be negative"):
        parse_bytes(size)


@pytest.mark.parametrize("size", [1.5, float("nan"), True, None, [3]])
def test_neither_number_nor_text(size):
    with pytest.raises(TypeError, match="whole number of bytes or text"):
        parse_bytes(size)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (9999, "10.0 kB"),
        (99_999, "100 kB"),
        (999_499, "999 kB"),
        (999_500, "1.00 MB"),
        (816_264, "816 kB"),
        (16_400_000, "16.4 MB"),
        (2 * 10**15, "2000 TB"),
    ],
)
def test_format(size, text):
    assert format_bytes(size) == text


@given(st.integers(0, 10**14))
def test_formatted_size_reads_back_within_its_figures(size):
    assert abs(parse_bytes(format_bytes(size)) - size) <= 0.0051 * size


@given(st.integers(0, 10**30))
def test_whole_bytes_are_exact(size):
    assert parse_bytes(f"{size} B") == size


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["float32", "bfloat16", "int8", "bool", "complex64", "uint16"]),
            st.lists(st.integers(0, 4), max_size=3),
        ),
        max_size=4,
    )
)
def test_tree_bytes_equals_nbytes(leaves):
    arrays = [jnp.zeros(shape, dtype) for dtype, shape in leaves]
    abstract = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in arrays]
    assert tree_bytes({"a": arrays, "b": None}) == sum(a.nbytes for a in arrays)
    assert tree_bytes(abstract) == sum(a.nbytes for a in arrays)


def test_tree_bytes_of_keys_and_numbers():
    keys = jax.random.split(jax.random.key(0), 3)
    assert tree_bytes(keys) == jax.random.key_data(keys).nbytes
    assert tree_bytes((1.0, 2)) == 8  # float32 and int32
    assert tree_bytes(()) == 0
