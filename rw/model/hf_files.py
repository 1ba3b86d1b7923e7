"""Qwen3 weights in a Hugging Face directory: read into our arrays wherever they are to lie, and written from them.

A tensor is never whole in memory beside the array that it becomes part of. Knows no run and no tokenizer.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterator, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from rw.errors import CheckpointError, ConfigError
from rw.model.config import ModelConfig
from rw.model.hf import expected_shapes, hf_shapes, is_turned
from rw.model.hf_config import check_fits
from rw.model.qwen3 import EMBEDDING, HEAD, LAYER_PREFIX, Params, UnstackedParams
from rw.model.tensor_files import DTYPES, StoredTensor, open_tensors, write_tensors

MAX_FILE_BYTES = 4_000_000_000
_ALIGNMENT = 64  # bytes: from there the CPU's arrays take host memory over without a copy


def read_hf(
    directory: str | os.PathLike,
    config: ModelConfig,
    shardings: Mapping[str, jax.sharding.Sharding] | None = None,
) -> Params:
    """The stacked parameters of a Hugging Face directory, in `param_dtype`.

    Every process of a job may call it: each reads the rows that its own devices hold, and nobody waits for another. On
    the host it takes the memory of the arrays that lie there and a few MB; where devices have memory of their own, that
    of one parameter's local part at a time.

    Args:
        shardings: one a parameter; None puts everything on the first device.

    Raises:
        ConfigError: config.json is of another model than `config`.
        CheckpointError: files or tensors are missing, left over, misshapen, truncated or not finite.
    """
    stored, dtype = open_weights(directory, config), jnp.dtype(config.param_dtype)
    params = {}
    for name, shape in expected_shapes(config).items():
        sharding = _first_device() if shardings is None else shardings[name]
        twin = stored.get(HEAD) if name == EMBEDDING and config.tied else None
        params[name] = _array(name, _tensors(stored, name, config), shape, dtype, sharding, twin)
    return params


def read_hf_unstacked(directory: str | os.PathLike, config: ModelConfig) -> UnstackedParams:
    """As `read_hf`, in the sampler's layout and the compute dtype, all on the first device.

    For a model that is only to write: unstacking parameters takes their memory twice.
    """
    stored, dtype, sharding = open_weights(directory, config), jnp.dtype(config.compute_dtype), _first_device()
    top: Params = {}
    layers: list[Params] = [{} for _ in range(config.n_layers)]
    for name, shape in expected_shapes(config).items():
        tensors = _tensors(stored, name, config)
        if name.startswith(LAYER_PREFIX):
            inner = name.removeprefix(LAYER_PREFIX)
            for params, tensor in zip(layers, tensors, strict=True):
                params[inner] = _array(inner, [tensor], shape[1:], dtype, sharding)
        else:
            twin = stored.get(HEAD) if name == EMBEDDING and config.tied else None
            top[name] = _array(name, tensors, shape, dtype, sharding, twin)
    return UnstackedParams(top, layers)


def _tensors(stored: Mapping[str, StoredTensor], name: str, config: ModelConfig) -> list[StoredTensor]:
    """What a parameter is made of: the tensors of all layers, or one."""
    if not name.startswith(LAYER_PREFIX):
        return [stored[name]]
    inner = name.removeprefix(LAYER_PREFIX)
    return [stored[f"{LAYER_PREFIX}{layer}.{inner}"] for layer in range(config.n_layers)]


def write_hf(
    directory: str | os.PathLike,
    params: Mapping[str, jax.Array],
    config: ModelConfig,
    dtype: str,
    max_file_bytes: int = MAX_FILE_BYTES,
) -> None:
    """Writes the weights of stacked parameters, which this process must hold whole, into a directory; no config.json.

    Args:
        params: on one device or sharded over this process's.
        dtype: of the files, bfloat16 or float32.

    Raises:
        CheckpointError: parameters that do not fit `config` or are not finite, with the tensor's name.
    """
    if dtype not in {known.name for known in DTYPES.values()}:
        raise ConfigError(f"dtype {dtype!r}: weights are written in {' or '.join(d.name for d in DTYPES.values())}")
    _check_params(params, config)

    def array_of(hf_name: str) -> np.ndarray:
        name, layer = _ours(hf_name)
        array = _on_host(params[name], layer).astype(jnp.dtype(dtype), copy=False)
        _check_finite(array, hf_name, "the parameters")
        return array.T if is_turned(name, array.ndim) else array

    write_tensors(directory, hf_shapes(config), jnp.dtype(dtype), array_of, max_file_bytes)


def _check_params(params: Mapping[str, jax.Array], config: ModelConfig) -> None:
    expected = expected_shapes(config)
    for name in sorted(expected.keys() | params.keys()):
        found = tuple(params[name].shape) if name in params else "absent"
        wanted = expected.get(name, "absent")
        if found != wanted:
            raise CheckpointError(f"{name} is {found} in the parameters and {wanted} in the model config")
        if isinstance(params[name], jax.Array) and not params[name].is_fully_addressable:
            raise CheckpointError(f"{name} lies on devices of several processes; export what they saved instead")


def open_weights(directory: str | os.PathLike, config: ModelConfig) -> dict[str, StoredTensor]:
    """The tensors of a directory, none of them read, after everything that can be checked without; raises as `read_hf`.

    A tied model's second copy of the embedding, under the head's name, is among them where there is one.
    """
    check_fits(directory, config)
    stored = open_tensors(directory)
    if config.n_layers > len(stored):  # no list of the names of whatever number a damaged config says
        raise CheckpointError(f"{directory} holds {len(stored)} tensors, too few for {config.n_layers} layers")
    embedding, size = stored.get(EMBEDDING), (config.vocab_size, config.d_model)
    if embedding is not None and embedding.shape != size:
        raise CheckpointError(
            f"{embedding.path}: {EMBEDDING} has shape {embedding.shape}, the model config needs {size}"
        )
    expected = hf_shapes(config)
    if config.tied and HEAD in stored:
        expected[HEAD] = expected[EMBEDDING]
    for name in [*expected, *sorted(stored.keys() - expected.keys())]:
        if name not in stored:
            raise CheckpointError(f"{directory} lacks {name}, which the model config needs")
        if name not in expected:
            raise CheckpointError(f"{stored[name].path} holds {name}, which the model config has no place for")
        if stored[name].shape != expected[name]:
            raise CheckpointError(
                f"{stored[name].path}: {name} has shape {stored[name].shape}, the model config needs {expected[name]}"
            )
    return stored


@dataclasses.dataclass(frozen=True)
class _Block:
    """The part of an array that one device holds, or several the same, on the host."""

    array: np.ndarray  # as the device will hold it
    layers: np.ndarray  # the same memory, [layers, rows, ...] with a stored tensor's axes
    first_layer: int
    rows: range  # of a stored tensor
    columns: slice  # of a stored tensor that has them

    def take(self, layer: int, first: int, piece: np.ndarray) -> None:
        """Copies what it needs of a layer's tensor, of which `piece` holds the rows from `first` on."""
        start, stop = max(first, self.rows.start), min(first + len(piece), self.rows.stop)
        if start >= stop or not 0 <= layer - self.first_layer < len(self.layers):
            return
        part = piece[start - first : stop - first]
        target = self.layers[layer - self.first_layer, start - self.rows.start : stop - self.rows.start]
        target[...] = part[:, self.columns] if part.ndim == 2 else part


def _array(
    name: str,
    tensors: Sequence[StoredTensor],
    shape: tuple[int, ...],
    dtype: np.dtype,
    sharding: jax.sharding.Sharding,
    twin: StoredTensor | None = None,
) -> jax.Array:
    """The parameter `name` from one tensor, or from those of all layers where `shape` begins with them.

    Args:
        twin: a tensor that must equal the one.
    """
    is_stacked = name.startswith(LAYER_PREFIX)
    where = {
        device: tuple(range(*axis.indices(size)) for axis, size in zip(index, shape, strict=True))
        for device, index in sharding.addressable_devices_indices_map(shape).items()
    }
    blocks = {part: _block(name, part, is_stacked, dtype) for part in where.values()}
    for layer, tensor in enumerate(tensors):
        needed = [block.rows for block in blocks.values() if 0 <= layer - block.first_layer < len(block.layers)]
        for first, piece in _pieces(tensor, needed, dtype):
            if twin is not None:
                _check_twin(twin, first, piece)
            for block in blocks.values():
                block.take(layer, first, piece)
    arrays = [jax.device_put(blocks[part].array, device) for device, part in where.items()]
    result = jax.make_array_from_single_device_arrays(shape, sharding, arrays)
    return result.block_until_ready()  # so that no more than one parameter's host memory waits for its devices


def _block(name: str, part: tuple[range, ...], is_stacked: bool, dtype: np.dtype) -> _Block:
    shape = tuple(len(axis) for axis in part)
    memory = np.empty(math.prod(shape) * dtype.itemsize + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    array = memory[start : len(memory) - _ALIGNMENT + start].view(dtype).reshape(shape)
    layers, inner = (array, part[1:]) if is_stacked else (array[None], part)
    if is_turned(name, len(inner)):
        layers, inner = layers.swapaxes(1, 2), inner[::-1]
    columns = slice(inner[1].start, inner[1].stop) if len(inner) == 2 else slice(None)
    return _Block(array, layers, part[0].start if is_stacked else 0, inner[0], columns)


def _pieces(tensor: StoredTensor, needed: Sequence[range], dtype: np.dtype) -> Iterator[tuple[int, np.ndarray]]:
    """(first row, rows in `dtype`) of the rows that anyone needs, each once."""
    end = 0
    for rows in sorted(needed, key=lambda rows: rows.start):
        for first, piece in tensor.pieces(max(rows.start, end), rows.stop):
            piece = piece.astype(dtype, copy=False)
            _check_finite(piece, tensor.name, str(tensor.path))
            yield first, piece
        end = max(end, rows.stop)


def _check_finite(array: np.ndarray, name: str, where: str) -> None:
    if not np.isfinite(array).all():
        raise CheckpointError(f"{name} in {where} holds NaN or infinity; take weights from before that")


def _check_twin(twin: StoredTensor, first: int, piece: np.ndarray) -> None:
    for start, rows in twin.pieces(first, first + len(piece)):
        if not np.array_equal(rows.astype(piece.dtype, copy=False), piece[start - first : start - first + len(rows)]):
            raise CheckpointError(
                f"{twin.path}: {twin.name} differs from {EMBEDDING}, but config.json says tie_word_embeddings; "
                "set that to false (and config.model.tied) to use both, or remove the tensor"
            )


def _ours(hf_name: str) -> tuple[str, int | None]:
    """The name of the parameter that holds an array of Hugging Face, and which layer of it."""
    if not hf_name.startswith(LAYER_PREFIX):
        return hf_name, None
    layer, _, inner = hf_name.removeprefix(LAYER_PREFIX).partition(".")
    return LAYER_PREFIX + inner, int(layer)


def _on_host(array: jax.Array, layer: int | None) -> np.ndarray:
    """One layer, or all of an array without layers, put together from the devices' parts without a device program."""
    if not isinstance(array, jax.Array) or len(array.sharding.device_set) == 1:
        return np.asarray(array) if layer is None else np.asarray(array)[layer]
    whole = np.empty(array.shape if layer is None else array.shape[1:], array.dtype)
    for shard in array.addressable_shards:
        data, index = np.asarray(shard.data), shard.index
        if layer is not None:
            layers = range(*index[0].indices(array.shape[0]))
            if layer not in layers:
                continue
            data, index = data[layer - layers.start], index[1:]
        whole[index] = data
    return whole


def _first_device() -> jax.sharding.Sharding:
    return jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
