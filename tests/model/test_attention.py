"""Attention backends against a NumPy oracle and against each other."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rw.errors import ConfigError
from rw.model.attention import _needed_pairs, attend, attend_pages
from rw.model.cache import PagedLayer

B, T, H, N, HEAD = 3, 13, 4, 2, 6
random = np.random.default_rng(0)
QUERY = random.normal(size=(B, T, H, HEAD)).astype(np.float32)
KEY = random.normal(size=(B, N, T, HEAD)).astype(np.float32)
VALUE = random.normal(size=(B, N, HEAD, T)).astype(np.float32)
INDEX = np.broadcast_to(np.arange(T, dtype=np.int32), (B, T)).copy()
INDEX[0, :3] = -1  # padding on the left
INDEX[1, 9:] = -1  # and on the right
SEGMENTS = np.broadcast_to(np.repeat([1, 2, 3], [4, 6, 3]).astype(np.int32), (B, T))
# A prompt of 4 tokens with continuations of 3 and 2, and another of 1 with a continuation of 3.
CONTINUED = np.broadcast_to(np.repeat([1, 2, 3, 4, 5], [4, 3, 2, 1, 3]).astype(np.int32), (B, T))
PREFIXES = np.broadcast_to(np.repeat([1, 4], [9, 4]).astype(np.int32), (B, T))


def belongs(segments, prefixes):
    """bool[B, T, T]: whether a key is of the query's segment or prefix."""
    same = segments[:, :, None] == segments[:, None, :]
    return same if prefixes is None else same | (prefixes[:, :, None] == segments[:, None, :])


def oracle(query, key, value, query_index, key_index, segments=None, prefixes=None):
    """One query and one head at a time, in float64."""
    out = np.zeros(query.shape)
    group = query.shape[2] // key.shape[1]
    for b, t, h in np.ndindex(*query.shape[:3]):
        seen = (key_index[b] >= 0) & (key_index[b] <= query_index[b, t])
        if segments is not None:
            seen &= belongs(segments, prefixes)[b, t]
        if not seen.any():
            continue
        scores = key[b, h // group, seen].astype(np.float64) @ query[b, t, h] / np.sqrt(query.shape[-1])
        weights = np.exp(scores - scores.max())
        out[b, t, h] = value[b, h // group][:, seen] @ (weights / weights.sum())
    return out


def softmax_total(arrays, segments, prefixes, weights):
    """The weighted sum of the outputs through a textbook softmax, for its gradients; queries without keys left out."""
    query, key, value = arrays
    seen = (INDEX[:, None, :] <= INDEX[:, :, None]) & (INDEX >= 0)[:, None, :]
    if segments is not None:
        seen = seen & belongs(segments, prefixes)
    key, value = jnp.repeat(key, H // N, axis=1), jnp.repeat(value, H // N, axis=1)
    scores = jnp.einsum("bthd,bhsd->bhts", query, key) / np.sqrt(HEAD)
    scores = jnp.where(seen[:, None], scores, -1e9)
    out = jnp.einsum("bhts,bhds->bthd", jax.nn.softmax(scores, axis=-1), value)
    return (out * weights * (INDEX >= 0)[:, :, None, None]).sum()


def total(arrays, segments, prefixes, weights, backend):
    out = attend(*arrays, INDEX, INDEX, segments, segments, query_prefixes=prefixes, backend=backend, chunk=5)
    return (out * weights).sum(), out


run = jax.jit(jax.value_and_grad(total, has_aux=True), static_argnames="backend")


@pytest.mark.parametrize(
    "segments, prefixes",
    [(None, None), (SEGMENTS, None), (CONTINUED, PREFIXES)],
    ids=["plain_rows", "packed_rows", "shared_rows"],
)
def test_backends_equal_the_oracle_and_each_other(segments, prefixes):
    weights = random.normal(size=QUERY.shape).astype(np.float32)
    expected = oracle(QUERY, KEY, VALUE, INDEX, INDEX, segments, prefixes)
    results = [run((QUERY, KEY, VALUE), segments, prefixes, weights, backend) for backend in ("xla", "chunked_xla")]
    for (_, out), gradients in results:
        np.testing.assert_allclose(out, expected, atol=1e-5)
        assert all(np.isfinite(g).all() for g in gradients)
    expected_gradients = jax.jit(jax.grad(softmax_total))((QUERY, KEY, VALUE), segments, prefixes, weights)
    for _, gradients in results:
        for found, gradient in zip(gradients, expected_gradients, strict=True):
            np.testing.assert_allclose(found, gradient, atol=1e-5)


@pytest.mark.parametrize("backend", ["xla", "chunked_xla"])
def test_a_query_without_keys_gives_zero(backend):
    (_, out), gradients = run((QUERY, KEY, VALUE), None, None, np.ones_like(QUERY), backend)
    assert np.all(out[0, :3] == 0) and np.all(out[1, 9:] == 0) and np.all(out[2] != 0)
    assert np.all(gradients[1][0, :, :3] == 0) and np.all(gradients[2][1, :, :, 9:] == 0)


@pytest.mark.parametrize("backend", ["xla", "chunked_xla"])
def test_keys_of_a_cache_are_read_up_to_each_query(backend):
    query_index = np.array([[4, 5, -1], [0, 1, 2], [10, 11, 12]], np.int32)
    key_index = np.broadcast_to(np.arange(T, dtype=np.int32), (B, T))
    out = attend(QUERY[:, :3], KEY, VALUE, query_index, key_index, backend=backend, chunk=4)
    np.testing.assert_allclose(out, oracle(QUERY[:, :3], KEY, VALUE, query_index, key_index), atol=1e-5)


def rows_in_pages(seed, ends, page=4, queries=1):
    """(query, layer, index, keys and values by row): rows of which the positions before `ends` are real, their pages in
    any order; what lies beyond is large."""
    draw = np.random.default_rng(seed)
    columns = -(-max(ends) // page)
    tables = draw.permutation(len(ends) * columns).reshape(len(ends), columns).astype(np.int32)
    keys, values = draw.normal(size=(2, tables.size, N, HEAD, page)).astype(np.float32)
    for row, end in enumerate(ends):
        for place in range(end, columns * page):
            keys[tables[row, place // page], :, :, place % page] = 1e4
            values[tables[row, place // page], :, :, place % page] = -1e4
    query = draw.normal(size=(len(ends), queries, H, HEAD)).astype(np.float32)
    index = np.array(ends, np.int32)[:, None] - np.arange(queries, 0, -1, dtype=np.int32)
    whole = [np.concatenate(np.moveaxis(x[tables], 1, 0), axis=-1) for x in (keys, values)]
    layer = PagedLayer(jnp.asarray(keys), jnp.asarray(values.swapaxes(2, 3)), jnp.asarray(tables))
    return query, layer, index, *whole


@pytest.mark.parametrize("queries", [1, 3])
@pytest.mark.parametrize("rows", [1, 6, 8, 24])
def test_pages_are_read_as_rows_are(rows, queries):
    ends = np.random.default_rng(rows).integers(1, 40, rows).tolist()
    query, layer, index, key, value = rows_in_pages(rows, ends, queries=queries)
    index[index < 0] = -1
    found = jax.jit(attend_pages)(query, layer, index)
    key_index = np.broadcast_to(np.arange(key.shape[-1]), (rows, key.shape[-1]))
    want = oracle(query, key.swapaxes(2, 3), value, index, key_index)
    np.testing.assert_allclose(found, want, atol=1e-5)
    plain = attend(query, key.swapaxes(2, 3), value, index, key_index, backend="xla")
    np.testing.assert_allclose(found, plain, atol=1e-5)


def test_longer_neighbours_change_no_bit_of_a_row_in_pages():
    query, layer, index, *_ = rows_in_pages(1, [3] * 8 + [33] * 8)
    attend_all = jax.jit(attend_pages)
    apart = np.asarray(attend_all(query, layer, index))
    order = np.random.default_rng(2).permutation(16)
    mixed = attend_all(query[order], layer._replace(tables=layer.tables[order]), index[order])
    np.testing.assert_array_equal(mixed, apart[order])


def test_padding_in_pages_is_zero_and_reads_nothing():
    query, layer, index, *_ = rows_in_pages(3, [9] * 16)
    index[4:] = -1
    spoilt = layer._replace(keys=layer.keys.at[layer.tables[8:]].set(jnp.nan))
    found = attend_pages(query, spoilt, index)
    assert np.all(found[4:] == 0) and np.all(np.isfinite(found)) and np.all(np.asarray(found[:4]) != 0)


def test_rows_with_prefixes_are_the_same_program_under_a_kernels_name():
    def program(backend):
        options = {"query_prefixes": PREFIXES, "backend": backend, "chunk": 5, "whole_rows": True}
        return str(jax.make_jaxpr(lambda *a: attend(*a, INDEX, INDEX, CONTINUED, CONTINUED, **options))(*arrays))

    arrays = (QUERY, KEY, VALUE)
    for backend in ("splash", "pallas_gpu", "cudnn"):
        assert program(backend) == program("chunked_xla") != program("xla")


def temporaries(backend, length):
    shapes = [(1, length, 2, 8), (1, 2, length, 8), (1, 2, 8, length)]
    index = jnp.arange(length, dtype=jnp.int32)[None]

    def loss(arrays):
        return attend(*arrays, index, index, backend=backend, chunk=64).sum()

    arrays = tuple(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)
    return jax.jit(jax.grad(loss)).lower(arrays).compile().memory_analysis().temp_size_in_bytes


def test_memory_of_chunked_gradients_is_linear_in_tokens():
    scores = 2 * 2048 * 2048 * 4
    assert temporaries("xla", 2048) > scores
    assert temporaries("chunked_xla", 2048) < scores / 4
    assert temporaries("chunked_xla", 4096) < 2.3 * temporaries("chunked_xla", 2048)


def test_plain_scores_of_very_long_rows_are_refused():
    length, dtype = 18432, jnp.bfloat16
    query = jax.ShapeDtypeStruct((1, length, 32, 128), dtype)
    key, value = (jax.ShapeDtypeStruct((1, 8, *shape), dtype) for shape in ((length, 128), (128, length)))
    index = jax.ShapeDtypeStruct((1, length), jnp.int32)

    def shape_of(backend):
        return jax.eval_shape(lambda *arrays: attend(*arrays, backend=backend), query, key, value, index, index).shape

    with pytest.raises(ConfigError, match="scores would take 40 GiB; use chunked_xla"):
        shape_of("xla")
    assert shape_of("chunked_xla") == (1, length, 32, 128)


def test_chunks_of_other_sequences_are_skipped():
    """Four sequences of four chunks each, and a row of one sequence that is half padding."""
    index = np.arange(64, dtype=np.int32).reshape(16, 1, 4)
    segments = np.repeat(np.arange(1, 5, dtype=np.int32), 16).reshape(16, 1, 4)
    causal = np.tril(np.ones((16, 16), bool))
    np.testing.assert_array_equal(_needed_pairs((index, None, None), (index, None)), causal)
    same = np.kron(np.eye(4, dtype=bool), np.ones((4, 4), bool))
    np.testing.assert_array_equal(_needed_pairs((index, segments, None), (index, segments)), causal & same)
    half = np.where(index < 32, index, -1).astype(np.int32)
    needed = np.asarray(_needed_pairs((half, segments, None), (half, segments)))
    np.testing.assert_array_equal(needed, causal & same & (np.arange(16) < 8) & (np.arange(16) < 8)[:, None])
    both = [np.concatenate([a, b], axis=1) for a, b in ((index, half), (segments, np.ones_like(segments)))]
    assert np.asarray(_needed_pairs((*both, None), tuple(both)))[:8, :8].sum() == causal[:8, :8].sum()


def test_chunks_of_other_continuations_are_skipped():
    """Two prompts, each with two continuations, which end at chunks and within them."""
    index = np.arange(64, dtype=np.int32).reshape(16, 1, 4)
    for lengths, spare in (((8, 12, 12, 8, 12, 12), 0), ((7, 13, 11, 9, 14, 10), 3)):
        ids, prefixes = (np.repeat(x, lengths).astype(np.int32) for x in (np.arange(1, 7), [1, 1, 1, 4, 4, 4]))
        seen = np.tril((ids[:, None] == ids) | (prefixes[:, None] == ids))
        expected = seen.reshape(16, 4, 16, 4).any((1, 3))
        ids, prefixes = ids.reshape(16, 1, 4), prefixes.reshape(16, 1, 4)
        needed = np.asarray(_needed_pairs((index, ids, prefixes), (index, ids)))
        assert needed[expected].all() and needed.sum() <= expected.sum() + spare < 80


def long_arrays(length):
    shapes = [(1, length, 2, 8), (1, 1, length, 8), (1, 1, 8, length)]
    return tuple(np.random.default_rng(1).normal(size=shape).astype(np.float32) for shape in shapes)


def long_segments(length):
    """Unequal sequences that end within chunks, the last of them padding."""
    ends = [length // 7, length // 2, length - length // 9]
    segments = np.searchsorted(ends, np.arange(length), side="right").astype(np.int32)[None]
    index = np.where(segments == len(ends), -1, np.arange(length)).astype(np.int32)
    return index, segments


@pytest.mark.full
@pytest.mark.parametrize("is_packed", [False, True], ids=["plain_rows", "packed_rows"])
def test_gradients_of_many_chunks_are_those_of_plain_attention(is_packed):
    arrays = long_arrays(3000)
    index, segments = long_segments(3000)
    weights = np.random.default_rng(2).normal(size=arrays[0].shape).astype(np.float32)

    def loss(arrays, backend):
        ids = segments if is_packed else None
        return (attend(*arrays, index, index, ids, ids, backend=backend, chunk=128) * weights).sum()

    gradient = jax.jit(jax.grad(loss), static_argnums=1)
    for found, expected in zip(gradient(arrays, "chunked_xla"), gradient(arrays, "xla"), strict=True):
        assert np.linalg.norm(found - expected) / np.linalg.norm(expected) < 1e-5


@pytest.mark.full
def test_gradients_at_the_longest_rows_are_those_written_out():
    """By the few queries that the loss reads, in float64: plain attention would not fit."""
    length, queries = 18432, (0, 1, 2632, 2633, 9000, 12287, 16383)
    arrays = long_arrays(length)
    index, segments = long_segments(length)
    weights = np.random.default_rng(2).normal(size=(len(queries), 2, 8))

    def loss(arrays):
        out = attend(*arrays, index, index, segments, segments, backend="chunked_xla", chunk=512)
        return (out[0, list(queries)] * weights.astype(np.float32)).sum()

    query, key, value = (x[0].astype(np.float64) for x in arrays)
    expected = [np.zeros_like(x) for x in (query, key, value)]
    for n, at in enumerate(queries):
        seen = np.flatnonzero((segments[0] == segments[0, at]) & (np.arange(length) <= at))
        for head in range(2):
            scores = key[0, seen] @ query[at, head] / np.sqrt(8)
            shares = np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum()
            slope = value[0][:, seen].T @ weights[n, head]  # of each share
            slope = shares * (slope - shares @ slope) / np.sqrt(8)  # of each score, unscaled
            expected[0][at, head] = slope @ key[0, seen]
            expected[1][0, seen] += slope[:, None] * query[at, head]
            expected[2][0][:, seen] += np.outer(weights[n, head], shares)
    for found, exact in zip(jax.jit(jax.grad(loss))(arrays), expected, strict=True):
        assert np.linalg.norm(found[0] - exact) / np.linalg.norm(exact) < 1e-5
