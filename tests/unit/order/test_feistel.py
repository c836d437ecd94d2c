from __future__ import annotations

import hashlib
import itertools
import math
import struct
import warnings
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prepserver.order import KeyedPermutation

MASK = (1 << 64) - 1


def reference(n: int, key: tuple[int, ...], value: int) -> int:
    """The same function in Python's integers, one value at a time, written from the description alone."""
    digest = hashlib.blake2b(struct.pack(f"<{len(key)}Q", *key), person=b"prepserver.ord1", digest_size=64).digest()
    keys = struct.unpack("<8Q", digest)
    if n <= 512:
        numbers = []
        for i in range(n):
            x = (i * 0x9E3779B97F4A7C15 + keys[0]) & MASK
            x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
            x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
            numbers.append(x ^ (x >> 31))
        return sorted(range(n), key=numbers.__getitem__)[value]
    root = math.isqrt(n)
    a = min(range(root, root - min(64, root // 4) - 1, -1), key=lambda size: -n % size)
    b = -(-n // a)
    while True:
        left, right = divmod(value, b)
        sizes = (a, b)
        for round_key in keys:
            x = ((right + round_key) * 0xBF58476D1CE4E5B9) & MASK
            x = ((x ^ (x >> 32)) * 0x94D049BB133111EB) & MASK
            left, right = right, ((x >> 32) + left) % sizes[0]
            sizes = (sizes[1], sizes[0])
        value = left * b + right
        if value < n:
            return value


def images(n: int, *key: int, at: list[int] | None = None) -> list[int]:
    values = np.arange(n, dtype=np.uint64) if at is None else np.array(at, dtype=np.uint64)
    return [int(value) for value in KeyedPermutation(n, *key)(values)]


@given(n=st.integers(1, 3000), seed=st.integers(0, MASK))
def test_every_value_below_n_is_hit_once(n: int, seed: int) -> None:
    assert sorted(images(n, seed)) == list(range(n))


@pytest.mark.parametrize("n", [511, 512, 513, 514, 8191, 65537, 99991])
def test_sizes_around_the_limit_and_large_primes_are_permuted(n: int) -> None:
    assert sorted(images(n, 3)) == list(range(n))


@given(
    n=st.integers(1, 2000) | st.integers(1, 1 << 40),
    key=st.lists(st.integers(0, MASK), max_size=4).map(tuple),
    place=st.floats(0, 1, exclude_max=True),
)
def test_vectorised_values_equal_plain_integer_arithmetic(n: int, key: tuple[int, ...], place: float) -> None:
    value = min(int(place * n), n - 1)
    assert images(n, *key, at=[value]) == [reference(n, key, value)]


GOLDEN = {
    1: [0],
    2: [1, 0],
    3: [1, 0, 2],
    10: [4, 1, 3, 2],
    512: [384, 85, 206, 245],
    513: [403, 333, 363, 97],
    8192: [4746, 6254, 2703, 7477],
    10**6: [827375, 433750, 306155, 535927],
    10**9: [534419686, 593980275, 661257494, 753756724],
    1 << 40: [599418539857, 997758543311, 155430624437, 28099144918],
}


@pytest.mark.parametrize("n", GOLDEN)
def test_values_are_those_of_the_first_release(n: int) -> None:
    assert images(n, 7, 0, 123, at=sorted({0, min(1, n - 1), n // 2, n - 1})) == GOLDEN[n]


@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_permutations_of_a_tiny_domain_are_equally_likely(n: int) -> None:
    keys = 8000
    seen = Counter(tuple(images(n, seed)) for seed in range(keys))
    expected = keys / math.factorial(n)
    chi2 = sum((seen[p] - expected) ** 2 / expected for p in itertools.permutations(range(n)))
    freedom = math.factorial(n) - 1
    assert abs(chi2 - freedom) < 4 * math.sqrt(2 * freedom)


@pytest.mark.parametrize("n", [513, 8192, 100_003])
def test_the_images_of_neighbours_are_independent_over_keys(n: int) -> None:
    keys = 4000
    pairs = np.array([images(n, seed, at=[0, 1]) for seed in range(keys)])
    counts, _, _ = np.histogram2d(pairs[:, 0], pairs[:, 1], bins=(8, 8), range=((0, n), (0, n)))
    expected = keys / 64
    chi2 = float(((counts - expected) ** 2 / expected).sum())
    assert abs(chi2 - 63) < 4 * math.sqrt(2 * 63)


@pytest.mark.parametrize("n", [600, 8192, 20_000])
def test_steps_look_like_those_of_a_random_permutation(n: int) -> None:
    values = np.array(images(n, 5))
    steps = np.diff(values)
    # The mean distance of two random values is n / 3, and steps seldom repeat.
    assert abs(np.abs(steps).mean() / (n / 3) - 1) < 4 / math.sqrt(n)
    assert max(Counter(steps.tolist()).values()) < 12
    assert (values == np.arange(n)).sum() < 8
    assert abs(np.corrcoef(values, np.arange(n))[0, 1]) < 4 / math.sqrt(n)


def test_wrapping_arithmetic_warns_of_nothing() -> None:
    with warnings.catch_warnings(), np.errstate(all="raise"):
        warnings.simplefilter("error")
        assert len(images(5000, MASK, MASK)) == 5000


def test_keys_of_different_lengths_differ() -> None:
    assert images(1000, 1) != images(1000, 1, 0)


def test_the_arguments_are_left_as_they_were() -> None:
    values = np.arange(1000, dtype=np.uint64)
    KeyedPermutation(1000, 1)(values)
    assert values.tolist() == list(range(1000))


def test_an_empty_array_gives_an_empty_array() -> None:
    assert images(1000, 1, at=[]) == []
