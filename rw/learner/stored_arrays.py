"""Trees of arrays in a directory of orbax's: written and read with little host memory beside what the arrays take.

Left to itself, orbax keeps up to the whole of every array in flight, and again as much of what is packed for the disk.
Knows no run, no metadata and no step: whoever saves says when a directory is whole.
"""

from __future__ import annotations

import gc
import math
import pathlib
from collections.abc import Iterator
from typing import Any

import jax
import orbax.checkpoint as ocp
from etils import epath

# Of a file, and of the pieces that arrays are packed in: one is filled in memory before it goes to the disk.
FILE_BYTES = 32 * 2**20


def arrays_to_save(tree: Any) -> ocp.args.PyTreeSave:
    """What a checkpointer of orbax's takes as an item: a tree of arrays, wherever they lie.

    The save takes some 0.4 GB of host memory, whatever the tree's size, beside what lies on devices with memory of
    their own and is copied to the host.
    """
    return ocp.args.PyTreeSave(tree, ocdbt_target_data_file_size=FILE_BYTES)


def read_arrays(path: pathlib.Path, wanted: Any, *, partial: bool = False) -> Any:
    """What an item's directory holds; every process of a job reads the part of its devices, and waits for no other.

    Beside the arrays it takes the host memory of the largest one's local part, and that of pieces of it.

    Args:
        wanted: a tree of `jax.ShapeDtypeStruct` with shardings.
        partial: whether the directory may hold more than `wanted`.

    Raises:
        Exception: as orbax and tensorstore have it, for files that are damaged and arrays that are not there or of
            another shape.
    """
    handler = ocp.PyTreeCheckpointHandler()
    restore_args = ocp.checkpoint_utils.construct_restore_args(wanted)
    leaves, structure = jax.tree.flatten(wanted)
    result: list[Any] = [None] * len(leaves)
    for group in _groups(leaves):
        chosen = [leaf if index in group else ocp.PLACEHOLDER for index, leaf in enumerate(leaves)]
        args = ocp.args.PyTreeRestore(structure.unflatten(chosen), restore_args, partial_restore=partial)
        found = structure.flatten_up_to(handler.restore(epath.Path(path), args=args))
        for index in group:
            result[index] = found[index].block_until_ready()
        del found
        gc.collect()  # what was read on the host lies in cycles of orbax's, and would for long
    return structure.unflatten(result)


def _groups(leaves: list[jax.ShapeDtypeStruct]) -> Iterator[range]:
    """Neighbours that together have no more bytes on this host than the largest leaf."""
    sizes = [_local_bytes(leaf) for leaf in leaves]
    first, total = 0, 0
    for index, size in enumerate(sizes):
        if total + size > max(sizes) and index > first:
            yield range(first, index)
            first, total = index, 0
        total += size
    yield range(first, len(sizes))


def _local_bytes(leaf: jax.ShapeDtypeStruct) -> int:
    shard = leaf.sharding.shard_shape(leaf.shape)
    return math.prod(shard) * leaf.dtype.itemsize * len(leaf.sharding.addressable_devices)
