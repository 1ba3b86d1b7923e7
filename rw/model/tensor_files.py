"""Safetensors files, read and written in pieces. Knows names, dtypes, shapes and bytes, and no model.

The library maps files into memory, whose pages count as ours until the kernel takes them back, gives numpy no slice of
bfloat16, and writes a file only from arrays that are all there. Here tensors are read and written some rows at a time.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from rw.errors import CheckpointError

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
DTYPES = {"BF16": np.dtype(jnp.bfloat16), "F32": np.dtype(np.float32)}
PIECE_BYTES = 16 * 2**20
_LONGEST_HEADER = 100_000_000  # bytes; the format's own limit


@dataclasses.dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file, not read yet."""

    name: str
    path: pathlib.Path
    dtype: np.dtype
    shape: tuple[int, ...]
    offset: int  # bytes from the file's beginning

    def pieces(self, start: int, stop: int) -> Iterator[tuple[int, np.ndarray]]:
        """(first row, rows [n, ...]) in the file's dtype, over rows start to stop of the first axis.

        A piece has at least one row and else at most PIECE_BYTES. Raises CheckpointError where the file ends early.
        """
        row_bytes = math.prod(self.shape[1:]) * self.dtype.itemsize
        step = max(1, PIECE_BYTES // max(row_bytes, 1))
        with open(self.path, "rb", buffering=0) as file:
            for first in range(start, stop, step):
                rows = np.empty((min(step, stop - first), *self.shape[1:]), self.dtype)
                file.seek(self.offset + first * row_bytes)
                self._fill(file, rows.reshape(-1).view(np.uint8))
                yield first, rows

    def _fill(self, file, target: np.ndarray) -> None:
        done = 0
        while done < target.nbytes:
            count = file.readinto(target.data[done:])
            if not count:
                raise CheckpointError(f"{self.path} ends within {self.name}: the file is truncated; fetch it again")
            done += count


def open_tensors(directory: str | os.PathLike) -> dict[str, StoredTensor]:
    """Every tensor of a directory by name: of model.safetensors, or of all files that its index names.

    Raises:
        CheckpointError: no such files, one that is missing, truncated or malformed, a tensor that an index names and
            its file lacks, or the reverse, and dtypes other than bfloat16 and float32.
    """
    directory = pathlib.Path(directory)
    single, index = directory / SINGLE, directory / INDEX
    if single.exists() and index.exists():
        raise CheckpointError(f"{directory} holds both {SINGLE} and {INDEX}; remove the one that is out of date")
    if single.exists():
        return {tensor.name: tensor for tensor in read_header(single)}
    if not index.exists():
        raise CheckpointError(f"{directory} holds neither {SINGLE} nor {INDEX}; only safetensors are read")
    return _open_indexed(directory, _read_index(index))


def _read_index(index: pathlib.Path) -> dict[str, str]:
    try:
        places = json.loads(index.read_bytes())["weight_map"]
        return {str(name): str(file) for name, file in places.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{index} is not an index of safetensors ({error!r}); fetch it again") from error


def _open_indexed(directory: pathlib.Path, places: Mapping[str, str]) -> dict[str, StoredTensor]:
    tensors: dict[str, StoredTensor] = {}
    for file in sorted(set(places.values())):
        if pathlib.PurePath(file).name != file:
            raise CheckpointError(f"{directory / INDEX} names {file!r}, which is not a file beside it")
        if not (directory / file).is_file():
            lost = next(name for name, place in places.items() if place == file)
            raise CheckpointError(f"{directory / file} is missing; the index says that it holds {lost} and others")
        for tensor in read_header(directory / file):
            if places.get(tensor.name) != file:
                expected = places.get(tensor.name, "no file")
                raise CheckpointError(f"{directory / file} holds {tensor.name}, for which the index names {expected}")
            tensors[tensor.name] = tensor
    if lost := sorted(places.keys() - tensors.keys()):
        raise CheckpointError(f"{directory / places[lost[0]]} lacks {lost[0]}, which the index says that it holds")
    return tensors


def read_header(path: str | os.PathLike) -> list[StoredTensor]:
    """The tensors of one file, in the order of their bytes; CheckpointError where they do not fill it exactly."""
    path = pathlib.Path(path)
    size = path.stat().st_size
    try:
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or not 2 <= length <= min(size - 8, _LONGEST_HEADER):
                raise CheckpointError(f"{path} is truncated or no safetensors file: {size} bytes; fetch it again")
            entries = json.loads(file.read(length))
        entries.pop("__metadata__", None)
        found = sorted((entry["data_offsets"], name, entry) for name, entry in entries.items())
        tensors = [_stored(path, name, entry, 8 + length) for _, name, entry in found]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{path} has a malformed header ({error!r}); fetch it again") from error
    end = 8 + length
    for tensor in tensors:
        if tensor.offset != end:
            raise CheckpointError(f"{path}: {tensor.name} begins at byte {tensor.offset}, not {end}: malformed header")
        end += math.prod(tensor.shape) * tensor.dtype.itemsize
        if end > size:
            raise CheckpointError(f"{path} ends within {tensor.name}: the file is truncated; fetch it again")
    if end != size:
        raise CheckpointError(f"{path} has {size - end} bytes behind its last tensor; fetch it again")
    return tensors


def _stored(path: pathlib.Path, name: str, entry: Mapping[str, Any], start: int) -> StoredTensor:
    kind = entry["dtype"]
    if kind not in DTYPES:
        raise CheckpointError(f"{path}: {name} is stored as {kind}; only {' and '.join(DTYPES)} can be read")
    shape, (first, last) = tuple(entry["shape"]), entry["data_offsets"]
    if any(type(number) is not int for number in (*shape, first, last)):
        raise CheckpointError(f"{path}: shape and bytes of {name} are not all integers: malformed header")
    if last - first != math.prod(shape) * DTYPES[kind].itemsize or min(shape, default=1) < 0:
        raise CheckpointError(f"{path}: {name} of shape {shape} in {kind} has {last - first} bytes: malformed header")
    return StoredTensor(name, path, DTYPES[kind], shape, start + first)


def write_tensors(
    directory: str | os.PathLike,
    shapes: Mapping[str, tuple[int, ...]],
    dtype: np.dtype,
    array_of: Callable[[str], np.ndarray],
    max_file_bytes: int,
) -> None:
    """Writes tensors of one dtype into a directory: one file, or several of at most `max_file_bytes` with an index.

    Args:
        shapes: of every tensor, in the order in which they are written. One that is larger than a file may be has a
            file to itself.
        array_of: the array of a name, asked for once each, when it is written.
    """
    directory = pathlib.Path(directory)
    files = _distribute(shapes, dtype, max_file_bytes)
    if len(files) == 1:
        return _write_file(directory / SINGLE, files[0], dtype, array_of)
    places = {}
    for number, members in enumerate(files, 1):
        file = f"model-{number:05d}-of-{len(files):05d}.safetensors"
        _write_file(directory / file, members, dtype, array_of)
        places |= dict.fromkeys(members, file)
    count = sum(math.prod(shape) for shape in shapes.values())
    about = {"total_parameters": count, "total_size": count * dtype.itemsize}
    index = {"metadata": about, "weight_map": dict(sorted(places.items()))}
    (directory / INDEX).write_text(json.dumps(index, indent=2) + "\n")


def _distribute(shapes: Mapping[str, tuple[int, ...]], dtype: np.dtype, limit: int) -> list[dict[str, tuple]]:
    files: list[dict[str, tuple]] = [{}]
    used = 0
    for name, shape in shapes.items():
        size = math.prod(shape) * dtype.itemsize
        if files[-1] and used + size > limit:
            files.append({})
            used = 0
        files[-1][name] = shape
        used += size
    return files


def _write_file(
    path: pathlib.Path, shapes: Mapping[str, tuple], dtype: np.dtype, array_of: Callable[[str], np.ndarray]
) -> None:
    kind = next(kind for kind, known in DTYPES.items() if known == dtype)
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}  # what readers in torch look for
    end = 0
    for name, shape in shapes.items():
        start, end = end, end + math.prod(shape) * dtype.itemsize
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, shape in shapes.items():
            _write_array(file, name, array_of(name), shape, dtype)
        file.flush()
        os.fsync(file.fileno())


def _write_array(file, name: str, array: np.ndarray, shape: tuple, dtype: np.dtype) -> None:
    if array.shape != shape or array.dtype != dtype:
        raise ValueError(f"{name} is {array.dtype}{list(array.shape)}, announced as {dtype}{list(shape)}")
    for rows in _row_pieces(array):
        file.write(np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data)


def _row_pieces(array: np.ndarray) -> Iterable[np.ndarray]:
    step = max(1, PIECE_BYTES // max(array[:1].nbytes, 1))
    return (array[first : first + step] for first in range(0, len(array), step))
