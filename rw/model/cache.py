"""Keys and values kept between calls: a list of L pairs of arrays, argument and return value of the forward function.

Keys lie as [rows, N, hd, C] and values as [rows, N, C, hd]: a decode step then computes runs of contiguous results,
which is vectorised even though a group has few queries. On CPU attention took 2.9 ms so, 17 with both as
[rows, N, C, hd] and 32 with the reverse pair (32 rows, 4 key heads of 64, groups of 2, C 1024).
Index c of a row holds the token at position c; what lies beyond the positions written so far is never read. One array a
layer, so that each can be donated and updated in place. Use the functions below instead of indexing, and pass the cache
in `donate_argnums`.

A cache may also lie in pages (`PagedLayer`), of which each row has as many as it needs: attention then reads no more of
a row than it has, however long others are.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from rw.model.config import ModelConfig

KEY_AXIS, VALUE_AXIS = 3, 2  # where the capacity lies


class PagedLayer(NamedTuple):
    """One layer of a cache in pages, each of which holds the tokens of some consecutive positions of a row."""

    keys: jax.Array  # [P, N, hd, page]
    values: jax.Array  # [P, N, page, hd]
    tables: jax.Array  # i32[rows, M]: the page of a row's positions m · page and on; finite pages beyond its end


Cache = list[tuple[jax.Array, jax.Array]] | list[PagedLayer]


def init_cache(config: ModelConfig, rows: int, capacity: int, dtype=None) -> Cache:
    """An empty cache: L pairs (keys [rows, N, hd, C], values [rows, N, C, hd]) in `dtype` or the compute dtype."""
    dtype = jnp.dtype(dtype or config.compute_dtype)
    lead = (rows, config.n_kv_heads)
    return [
        (jnp.zeros((*lead, config.head_dim, capacity), dtype), jnp.zeros((*lead, capacity, config.head_dim), dtype))
        for _ in range(config.n_layers)
    ]


def token_bytes(config: ModelConfig) -> int:
    """Keys and values of one token over all layers, in the compute dtype."""
    return 2 * config.n_layers * config.n_kv_heads * config.head_dim * jnp.dtype(config.compute_dtype).itemsize


def capacity(cache: Cache) -> int:
    """Positions that each row can hold."""
    return cache[0][0].shape[KEY_AXIS]


def write(layer_cache, key, value, positions):
    """Stores key, value [B, t, N, hd] of one layer at positions i32[B, t]; those below 0 or from C on are dropped."""
    if isinstance(layer_cache, PagedLayer):
        return _write_pages(layer_cache, key, value, positions)
    keys, values = layer_cache
    slots = jnp.where(positions < 0, keys.shape[KEY_AXIS], positions)  # a negative index would count from the end
    keys = jax.vmap(lambda row, new, at: row.at[:, :, at].set(new, mode="drop"))(
        keys, key.transpose(0, 2, 3, 1).astype(keys.dtype), slots
    )
    values = jax.vmap(lambda row, new, at: row.at[:, at].set(new, mode="drop"))(
        values, value.transpose(0, 2, 1, 3).astype(values.dtype), slots
    )
    return keys, values


def _write_pages(layer: PagedLayer, key, value, positions) -> PagedLayer:
    pages, page = layer.keys.shape[0], layer.keys.shape[KEY_AXIS]
    place, columns = positions // page, layer.tables.shape[1]
    held = jnp.take_along_axis(layer.tables, jnp.clip(place, 0, columns - 1), axis=1)
    held = jnp.where((positions >= 0) & (place < columns), held, pages)  # beyond the last: dropped
    keys = layer.keys.at[held, :, :, positions % page].set(key.astype(layer.keys.dtype), mode="drop")
    values = layer.values.at[held, :, positions % page].set(value.astype(layer.values.dtype), mode="drop")
    return PagedLayer(keys, values, layer.tables)


def attended(layer_cache):
    """Keys [rows, N, C, hd] and values [rows, N, hd, C] of one layer, as `attention.attend` takes them."""
    keys, values = layer_cache
    return jnp.swapaxes(keys, 2, 3), jnp.swapaxes(values, 2, 3)
