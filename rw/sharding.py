"""How arrays lie on a mesh of devices: tables of logical axes and parameter names. Knows no model and no step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from rw.errors import ConfigError

MESH_AXES = ("data", "fsdp", "tensor")

# Where each logical axis lies. Parameters are split by width over fsdp and gathered where a layer uses them;
# activations keep their width whole, so that the batch owns fsdp.
LOGICAL_AXES: dict[str, tuple[str, ...]] = {
    "batch": ("data", "fsdp"),
    "rows": ("data",),  # of the batch, where fsdp holds features
    "length": (),
    "sequence": ("tensor",),  # length of the residual stream between blocks
    "width": (),  # d_model of activations
    "layers": (),
    "embed": ("fsdp",),  # d_model of parameters
    "heads": ("tensor",),  # heads × head_dim, or heads
    "mlp": ("tensor",),
    "vocab": ("tensor",),
    "norm": (),
}

# Logical axes of a parameter by the module that owns it: the part of its name before `.weight`.
PARAMETER_AXES: dict[str, tuple[str, ...]] = {
    "embed_tokens": ("vocab", "embed"),
    "lm_head": ("embed", "vocab"),
    "q_proj": ("embed", "heads"),
    "k_proj": ("embed", "heads"),
    "v_proj": ("embed", "heads"),
    "o_proj": ("heads", "embed"),
    "gate_proj": ("embed", "mlp"),
    "up_proj": ("embed", "mlp"),
    "down_proj": ("mlp", "embed"),
    "q_norm": ("norm",),
    "k_norm": ("norm",),
    "input_layernorm": ("norm",),
    "post_attention_layernorm": ("norm",),
    "norm": ("norm",),
}


def make_mesh(shape: Mapping[str, int] | Sequence[int], devices=None, n_kv_heads: int | None = None):
    """A mesh of axes (data, fsdp, tensor) that the compiler partitions by itself.

    Args:
        shape: sizes by name (axes left out are 1) or in order. devices: by default all; the sizes must use them all.
        n_kv_heads: of the model, which `tensor` must divide: a head is never split between devices.

    Raises ConfigError, with the legal values, on sizes that do not fit.
    """
    sizes = _sizes(shape)
    count = jax.device_count() if devices is None else len(devices)
    kind = jax.default_backend() if devices is None else devices[0].platform
    if math.prod(sizes) != count:
        named = dict(zip(MESH_AXES, sizes, strict=True))
        raise ConfigError(f"mesh {named}: the product must be the {count} {kind} device{'s' * (count > 1)} here")
    if n_kv_heads is not None:
        check_tensor(sizes[MESH_AXES.index("tensor")], n_kv_heads)
    return jax.make_mesh(sizes, MESH_AXES, axis_types=(AxisType.Auto,) * len(MESH_AXES), devices=devices)


def check_tensor(tensor: int, n_kv_heads: int) -> None:
    """Raises ConfigError, with the legal values, where that many devices cannot share the key/value heads."""
    if n_kv_heads % tensor:
        legal = [n for n in range(1, n_kv_heads + 1) if n_kv_heads % n == 0]
        raise ConfigError(f"mesh.tensor={tensor}: must divide the {n_kv_heads} key/value heads, one of {legal}")


def _sizes(shape) -> tuple[int, ...]:
    if isinstance(shape, Mapping):
        unknown = sorted(set(shape) - set(MESH_AXES))
        if unknown:
            raise ConfigError(f"mesh axis {unknown[0]!r}: must be one of {', '.join(MESH_AXES)}")
        shape = [shape.get(name, 1) for name in MESH_AXES]
    sizes = tuple(int(size) for size in shape)
    if len(sizes) != len(MESH_AXES) or min(sizes) < 1:
        raise ConfigError(f"mesh {sizes}: must be {len(MESH_AXES)} sizes of at least 1, for {', '.join(MESH_AXES)}")
    return sizes


def partition_spec(logical: Sequence[str]) -> PartitionSpec:
    """The mesh axes of an array whose axes are named as in LOGICAL_AXES."""
    return PartitionSpec(*(LOGICAL_AXES[name] or None for name in logical))


def param_shardings(mesh, tree):
    """A NamedSharding for each leaf of a tree keyed by parameter names: parameters, gradients, optimiser state.

    Both layouts work, with and without a leading layer axis. Scalars are replicated. Raises ConfigError on a name that
    the table lacks, and, with the legal sizes of the mesh, where an axis does not divide.
    """
    return jax.tree_util.tree_map_with_path(lambda path, leaf: _leaf_sharding(mesh, path, leaf), tree)


def _leaf_sharding(mesh, path, leaf) -> NamedSharding:
    if not leaf.shape:
        return NamedSharding(mesh, PartitionSpec())
    names = [entry.key for entry in path if isinstance(entry, jax.tree_util.DictKey)]
    name = str(names[-1]) if names else jax.tree_util.keystr(path)
    owner = name.removesuffix(".weight").rpartition(".")[2]
    if owner not in PARAMETER_AXES:
        raise ConfigError(f"parameter {name!r}: no sharding rule; rules exist for {', '.join(PARAMETER_AXES)}")
    logical = PARAMETER_AXES[owner]
    logical = ("layers",) * (len(leaf.shape) - len(logical)) + logical
    for size, axis in zip(leaf.shape, logical, strict=True):
        ways = math.prod(mesh.shape[name] for name in LOGICAL_AXES[axis])
        if size % ways:
            legal = [n for n in range(1, mesh.size + 1) if size % n == 0]
            split = "·".join(f"mesh.{name}" for name in LOGICAL_AXES[axis])
            raise ConfigError(
                f"parameter {name!r}: axis {axis} of {size} does not divide over {split}={ways}, which must be one of "
                f"{legal}"
            )
    return NamedSharding(mesh, partition_spec(logical))


def batch_sharding(mesh) -> NamedSharding:
    """Arrays whose first axis is the batch: split over data and fsdp."""
    return NamedSharding(mesh, partition_spec(("batch",)))


def sampler_shardings(mesh, tree):
    """`param_shardings` of the sampler's copy: split over tensor alone, whole over data and fsdp."""

    def without_fsdp(sharding: NamedSharding) -> NamedSharding:
        return NamedSharding(mesh, PartitionSpec(*(axis if axis == "tensor" else None for axis in sharding.spec)))

    return jax.tree.map(without_fsdp, param_shardings(mesh, tree))


def on_own_devices(tree):
    """The same arrays on the devices of this process alone; they must be whole within every process."""
    mesh = jax.tree.leaves(tree)[0].sharding.mesh
    if not mesh.is_multi_process:
        return tree
    own = own_mesh(mesh)

    def local(array):
        shards = {shard.device: shard.data for shard in array.addressable_shards}
        sharding = NamedSharding(own, array.sharding.spec)
        parts = [shards[device] for device in sharding.addressable_devices_indices_map(array.shape)]
        return jax.make_array_from_single_device_arrays(array.shape, sharding, parts)

    return jax.tree.map(local, tree)


def own_mesh(mesh) -> jax.sharding.Mesh:
    """The part of a mesh that lies on this process's devices, which form a block of it."""
    own = np.vectorize(lambda device: device.process_index == jax.process_index())(mesh.devices)
    places = np.argwhere(own)
    block = mesh.devices[tuple(slice(low, high + 1) for low, high in zip(places.min(0), places.max(0), strict=True))]
    if block.size != own.sum():
        raise ConfigError(f"mesh {dict(mesh.shape)}: the {own.sum()} devices of a process must be a block of it")
    return jax.sharding.Mesh(block, mesh.axis_names, axis_types=mesh.axis_types)


def check_processes(mesh) -> None:
    """Raises ConfigError where `tensor` crosses a border between processes: every layer would wait for the network."""
    local = jax.local_device_count()
    tensor = mesh.shape["tensor"]
    if mesh.is_multi_process and local % tensor:
        legal = [n for n in range(1, local + 1) if local % n == 0]
        raise ConfigError(f"mesh.tensor={tensor}: must divide the {local} devices of a process, one of {legal}")


def replicated(mesh) -> NamedSharding:
    """One whole copy on every device."""
    return NamedSharding(mesh, PartitionSpec())


def constrain(x, *logical: str):
    """Says how an activation lies, where a mesh is set (`jax.set_mesh`); axes that do not divide are left alone.

    Without it the compiler may follow a parameter's split by width into the activations and gather the batch instead.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or any(name not in mesh.axis_names for name in MESH_AXES):
        return x
    axes = []
    for size, name in zip(x.shape, logical, strict=True):
        names = LOGICAL_AXES[name]
        fits = size % math.prod(mesh.shape[axis] for axis in names) == 0
        axes.append(names if names and fits else None)
    return jax.lax.with_sharding_constraint(x, PartitionSpec(*axes))


def whole_weight(weight, owner: str):
    """A weight, without a layer axis, as its layer uses it: whole over fsdp, its gradient split again by the table.

    Left alone the compiler may gather activations instead, or add up whole gradients on every device.

    Args:
        weight: [in, out] in the compute dtype, which is what is gathered. owner: a name in PARAMETER_AXES.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return weight
    return _whole_weight(weight, PARAMETER_AXES[owner])


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def _whole_weight(weight, logical: tuple[str, ...]):
    # Split first: the gather belongs here, after slice and cast; further up it would want all layers in its own layout.
    return constrain(constrain(weight, *logical), *("width" if axis == "embed" else axis for axis in logical))


def _split_gradient(logical: tuple[str, ...], _, gradient):
    return (constrain(gradient, *logical),)


_whole_weight.defvjp(lambda weight, logical: (_whole_weight(weight, logical), None), _split_gradient)
