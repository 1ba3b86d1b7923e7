"""One entry point for attention, with the backend named by the config. Knows masks and arrays, nothing of weights.

Which key a query may read is decided by two index arrays, so that one rule serves a full forward, padded rows on either
side, packed rows and a cache: 0 <= key_index <= query_index, and equal segments where segments are given. A query may
have a prefix besides, a second segment that it reads: continuations of one prompt then share the prompt's keys and
values, and see nothing of each other.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from rw.errors import ConfigError
from rw.model import attention_kernels
from rw.model import cache as kv
from rw.model.attention_kernels import GPU, PADDING_SEGMENT, PLATFORMS, Kernel, mesh_ways
from rw.model.config import ModelConfig, wide

BUILT_IN = ("xla", "chunked_xla")
KERNELS: dict[str, Kernel] = {
    "splash": attention_kernels.splash,
    "pallas_gpu": attention_kernels.pallas_gpu,
    "cudnn": attention_kernels.cudnn,
}
OLDEST_GPU = 8.0  # compute capability; older ones lack bfloat16 and what both GPU kernels are built from
_LARGEST_SCORES = 16 * 2**30  # bytes; a backward pass holds several arrays of this size
_PAGED_ROWS = 8  # as many rows share a loop over pages
_MASKED = -1e30  # finite: the difference of two masked scores must not be NaN


def check_backend(backend: str, platform: str | None = None) -> None:
    """Raises ConfigError where a backend does not run on `platform`, by default the one that programs run on here."""
    if backend in BUILT_IN:
        return
    found = platform or _platform()
    if found not in PLATFORMS.get(backend, ()):
        here = [name for name, platforms in PLATFORMS.items() if found in platforms] + list(BUILT_IN)
        raise ConfigError(f"model.attention={backend!r}: not available on {found}; choose one of {', '.join(here)}")
    if platform is None and found in GPU:
        _check_gpu(backend)


def check_config(config: ModelConfig, packed: bool) -> None:
    """Raises ConfigError where the model's attention cannot take its own heads or dtype, or packed rows, anywhere."""
    if config.attention in KERNELS:
        attention_kernels.check_inputs(config.attention, config.compute_dtype, config.head_dim, packed)


@jax.named_scope("attention")
def attend(
    query,
    key,
    value,
    query_index,
    key_index,
    query_segments=None,
    key_segments=None,
    *,
    query_prefixes=None,
    backend,
    chunk=128,
    whole_rows=False,
):
    """Softmax attention of grouped heads, scores and sums in float32.

    The kernels (`splash`, `pallas_gpu`, `cudnn`) compute whole rows without prefixes. Rows with prefixes and a cache
    are read by `chunked_xla` under their names too, and by `xla` where there is one query a row: one config serves the
    learner and the sampler.

    Args:
        query: [B, T, H, hd]. key: [B, N, S, hd]. value: [B, N, hd, S] (`cache.attended`). N divides H.
        query_index: i32[B, T], order of each query. key_index: i32[B, S], order of each key, negative for padding.
        query_segments, key_segments: i32[B, T], i32[B, S] of packed rows: only equal ones see each other. Or None.
        query_prefixes: i32[B, T], a further segment of keys that each query sees, its own where it has none. Or None.
        backend: a name of config.ATTENTION_BACKENDS. chunk: queries and keys a step of `chunked_xla`.
        whole_rows: keys are those of the queries' own tokens, in the order of the row, and so are both indices.

    Returns:
        [B, T, H, hd] in the dtype of `query`; 0 where a query may read no key.

    Raises:
        ConfigError: the backend cannot do this, or not on this platform; or scores would not fit in memory.
    """
    batch, length, heads, head_dim = query.shape
    kv_heads = key.shape[1]
    # One query a row needs scores of [B, H, S] only: already linear, and chunking would copy the cache.
    if length > 1 and backend in KERNELS and whole_rows and query_prefixes is None:
        return _by_kernel(query, key, value, query_index, query_segments, backend)
    grouped = query.reshape(batch, length, kv_heads, heads // kv_heads, head_dim)
    grouped = grouped.transpose(0, 2, 3, 1, 4)  # [B, N, G, T, hd]
    indices = (query_index, key_index, query_segments, key_segments, query_prefixes)
    if backend == "xla" or length == 1:
        _check_scores_fit(batch, kv_heads, heads // kv_heads * length * key.shape[2])
        out = _plain(grouped, key, value, *indices)
    else:
        out = _chunked(grouped, key, value, *indices, chunk)
    return out.transpose(0, 3, 1, 2, 4).reshape(batch, length, heads, head_dim).astype(query.dtype)


def attend_pages(query, layer: kv.PagedLayer, query_index):
    """`attend` over a cache in pages, where queries read keys of positions up to their own. For CPUs: it goes through
    some rows at a time, page by page up to the last that one of them needs, so neighbours should be of like length.

    Args:
        query: [B, T, H, hd]. query_index: i32[B, T], the position of each query, negative for padding.

    Returns:
        [B, T, H, hd] in the dtype of `query`; 0 where a query may read no key.
    """
    batch, length, heads, head_dim = query.shape
    kv_heads, page = layer.keys.shape[1], layer.keys.shape[kv.KEY_AXIS]
    rows = math.gcd(batch, _PAGED_ROWS)
    grouped = query.reshape(batch // rows, rows, length, kv_heads, heads // kv_heads, head_dim)

    def some_rows(part):
        query, index, tables = part

        def one_page(place, carry):
            pages = jax.lax.dynamic_index_in_dim(tables, place, axis=1, keepdims=False)  # i32[rows]
            found = tuple(jnp.take(array, pages, axis=0, mode="clip") for array in layer[:2])
            key_index = jnp.broadcast_to(place * page + jnp.arange(page, dtype=jnp.int32), (rows, page))
            return _read(carry, query, *kv.attended(found), _visible(index, key_index, None, None, None))

        highest, total, out = jax.lax.fori_loop(0, index.max() // page + 1, one_page, _nothing_read(query))
        return out * _inverse_total(total, highest)[..., None]

    parts = grouped.transpose(0, 1, 3, 4, 2, 5), query_index, layer.tables
    parts = (parts[0], *(array.reshape(batch // rows, rows, -1) for array in parts[1:]))
    out = jax.lax.map(some_rows, parts)  # f32[B / rows, rows, N, G, T, hd]
    return out.transpose(0, 1, 4, 2, 3, 5).reshape(query.shape).astype(query.dtype)


def _platform() -> str:
    """Of the mesh that is set, which may be compiled for from elsewhere; otherwise of this process."""
    device = getattr(jax.sharding.get_abstract_mesh(), "abstract_device", None)
    return device.platform if device is not None and device.platform else jax.default_backend()


def _check_gpu(backend: str) -> None:
    """Raises ConfigError where this process's first GPU is too old, or another maker's."""
    # A device that is only compiled for says nothing of itself here.
    capability = str(getattr(jax.local_devices()[0], "compute_capability", OLDEST_GPU))
    is_number = capability.replace(".", "", 1).isdigit()
    if not is_number or float(capability) < OLDEST_GPU:
        raise ConfigError(
            f"model.attention={backend!r}: needs a GPU of compute capability {OLDEST_GPU} (A100) or later, this one "
            f"has {capability}; choose one of {', '.join(BUILT_IN)}"
        )


def _by_kernel(query, key, value, index, segments, backend: str):
    check_backend(backend)
    attention_kernels.check_inputs(backend, query.dtype, query.shape[-1], segments is not None)
    real = index >= 0
    ids = jnp.where(real, 0 if segments is None else segments, PADDING_SEGMENT).astype(jnp.int32)
    rows = (query, key.transpose(0, 2, 1, 3), value.transpose(0, 3, 1, 2))  # [B, T, heads, hd]
    out = attention_kernels.on_mesh(KERNELS[backend], *rows, ids)
    return jnp.where(real[..., None, None], out, 0).astype(query.dtype)


def _check_scores_fit(batch: int, kv_heads: int, scores_a_head: int) -> None:
    """Raises ConfigError where one device's part of the scores is too large."""
    count = scores_a_head
    for size, axis in ((batch, "batch"), (kv_heads, "heads")):
        ways = mesh_ways(axis)
        count *= size if size % ways else size // ways
    if 4 * count > _LARGEST_SCORES:
        raise ConfigError(
            f"model.attention='xla': one layer's scores would take {4 * count / 2**30:.0f} GiB; "
            "use chunked_xla, or fewer or shorter rows"
        )


def _visible(query_index, key_index, query_segments, key_segments, query_prefixes):
    """bool[B, 1, 1, T, S]: whether a query may read a key."""
    visible = (key_index[:, None, :] <= query_index[:, :, None]) & (key_index >= 0)[:, None, :]
    if query_segments is not None:
        belongs = query_segments[:, :, None] == key_segments[:, None, :]
        if query_prefixes is not None:
            belongs |= query_prefixes[:, :, None] == key_segments[:, None, :]
        visible &= belongs
    return visible[:, None, None]


def _scores(query, key, visible):
    """f32[B, N, G, T, S]. A group's queries are one matrix: a gradient that sums over two axes is slow on CPU."""
    batch, kv_heads, group, length, head_dim = query.shape
    rows = query.reshape(batch, kv_heads, group * length, head_dim)
    scores = jnp.einsum("bnqh,bnsh->bnqs", rows, key, preferred_element_type=wide(key.dtype))
    return jnp.where(visible, scores.reshape(*query.shape[:-1], -1) * head_dim**-0.5, _MASKED)


def _weighted_sum(weights, value):
    """f32[B, N, G, T, hd] of weights [B, N, G, T, S] and value [B, N, hd, S]."""
    batch, kv_heads, group, length, keys = weights.shape
    rows = weights.reshape(batch, kv_heads, group * length, keys).astype(value.dtype)
    out = jnp.einsum("bnqs,bnhs->bnqh", rows, value, preferred_element_type=wide(value.dtype))
    return out.reshape(*weights.shape[:-1], -1)


def _plain(query, key, value, *indices):
    scores = _scores(query, key, _visible(*indices))
    highest = jax.lax.stop_gradient(scores.max(-1))  # f32[B, N, G, T]
    weights = jnp.exp(scores - highest[..., None])
    return _weighted_sum(weights, value) * _inverse_total(weights.sum(-1), highest)[..., None]


def _chunked(query, key, value, query_index, key_index, query_segments, key_segments, query_prefixes, chunk):
    """Online softmax over key chunks inside a loop over query chunks; pairs in which nothing is visible are skipped.

    Both loops are rematerialised: a backward pass that kept the running sums of every key chunk for all queries would
    grow with the square of the length, whereas one query chunk at a time keeps T·H·hd of them.
    """
    length = query.shape[3]
    query_parts = (
        _split(query, 3, chunk),
        _split(query_index, 1, chunk, fill=-1),
        None if query_segments is None else _split(query_segments, 1, chunk),
        None if query_prefixes is None else _split(query_prefixes, 1, chunk),
    )
    key_parts = (
        _split(key, 2, chunk),
        _split(value, 3, chunk),
        _split(key_index, 1, chunk, fill=-1),
        None if key_segments is None else _split(key_segments, 1, chunk),
    )
    needed = _needed_pairs(query_parts[1:], key_parts[2:])

    @jax.checkpoint
    def one_query_chunk(part):
        query_part, needed_keys = part
        return _online_softmax(*query_part, key_parts, needed_keys)

    out = jax.lax.map(one_query_chunk, (query_parts, needed))  # f32[chunks, B, N, G, chunk, hd]
    out = jnp.moveaxis(out, 0, 3)
    return out.reshape(*out.shape[:3], -1, out.shape[-1])[:, :, :, :length]


def _needed_pairs(queries, keys):
    """bool[query chunks, key chunks]: whether any row may read any key of the pair, going by ranges alone.

    A packed row skips most of what is not on its diagonal, and a continuation all but itself and its prompt: the
    segments of a chunk are few.

    Args:
        queries: (indices, segments or None, prefixes or None), each [query chunks, B, chunk].
        keys: (indices, segments or None), each [key chunks, B, chunk].
    """
    (query_index, query_segments, query_prefixes), (key_index, key_segments) = queries, keys
    needed = _lowest(key_index, key_index >= 0)[None] <= query_index.max(-1)[:, None]  # [query chunks, key chunks, B]
    if query_segments is not None:
        belongs = _ranges_meet(query_segments, query_index, key_segments, key_index)
        if query_prefixes is not None:
            belongs |= _ranges_meet(query_prefixes, query_index, key_segments, key_index)
        needed &= belongs
    return needed.any(-1)


def _ranges_meet(query_ids, query_index, key_ids, key_index):
    """bool[query chunks, key chunks, B]: whether the ids of a pair's real tokens span ranges that overlap."""
    ids = ((query_ids, query_index >= 0), (key_ids, key_index >= 0))
    lowest = [_lowest(values, is_real) for values, is_real in ids]
    highest = [-_lowest(-values, is_real) for values, is_real in ids]
    return (lowest[1][None] <= highest[0][:, None]) & (lowest[0][:, None] <= highest[1][None])


def _lowest(values, mask):
    """The smallest of the values in the mask along the last axis; the largest integer where it is empty."""
    return jnp.where(mask, values, jnp.iinfo(values.dtype).max).min(-1)


def _nothing_read(query):
    """(highest score, sum of weights, weighted sum) of queries [B, N, G, T, hd] that have read no key yet."""
    shape, dtype = query.shape[:-1], wide(query.dtype)
    return jnp.full(shape, _MASKED, dtype), jnp.zeros(shape, dtype), jnp.zeros(query.shape, dtype)


def _read(carry, query, key, value, visible):
    """The same after some keys [B, N, S, hd] more."""
    highest, total, out = carry
    scores = _scores(query, key, visible)
    new_highest = jax.lax.stop_gradient(jnp.maximum(highest, scores.max(-1)))
    # While a query has seen masked keys only, these are ones; its first real key shrinks them to exactly 0.
    weights = jnp.exp(scores - new_highest[..., None])
    shrink = jnp.exp(highest - new_highest)
    out = out * shrink[..., None] + _weighted_sum(weights, value)
    return new_highest, total * shrink + weights.sum(-1), out


def _online_softmax(query, query_index, query_segments, query_prefixes, key_parts, needed):
    def add(carry, part):
        key, value, key_index, key_segments = part
        visible = _visible(query_index, key_index, query_segments, key_segments, query_prefixes)
        return _read(carry, query, key, value, visible)

    @jax.checkpoint
    def step(carry, part):
        part, is_needed = part
        return jax.lax.cond(is_needed, add, lambda carry, part: carry, carry, part), None

    (highest, total, out), _ = jax.lax.scan(step, _nothing_read(query), (key_parts, needed))
    return out * _inverse_total(total, highest)[..., None]


def _split(array, axis: int, chunk: int, fill=0):
    """Chunks along `axis` on a new leading axis, the last one filled up."""
    pad = -array.shape[axis] % chunk
    widths = [(0, pad if a == axis else 0) for a in range(array.ndim)]
    padded = jnp.pad(array, widths, constant_values=fill)
    shape = (*padded.shape[:axis], padded.shape[axis] // chunk, chunk, *padded.shape[axis + 1 :])
    return jnp.moveaxis(padded.reshape(shape), axis, 0)


def _inverse_total(total, highest):
    """1 / total, and 0 for a query that could read no key, whose weights are meaningless ones."""
    has_keys = highest > _MASKED / 2
    return jnp.where(has_keys, 1.0 / jnp.where(has_keys, total, 1.0), 0.0)
