"""What each device of a run must hold, known from the config before anything is built.

Arithmetic over names, shapes, dtypes and the mesh; only `device_limit` looks at this machine. In the regime `collect`
the caches are gone when an update begins; in `stream` its sums and a micro-batch lie beside them. Knows no arrays and
no Workers.
"""

from __future__ import annotations

import dataclasses
import math
import pathlib
from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from jax.sharding import AbstractMesh, AxisType

from rw.errors import ConfigError
from rw.evaluation.table import Table
from rw.learner.streaming import piece_config
from rw.model.config import ModelConfig
from rw.model.qwen3 import EMBEDDING, HEAD, LAYER_PREFIX, shapes_of
from rw.run_config import MeshConfig, RunConfig
from rw.sampler.pages import pages_for
from rw.sharding import MESH_AXES, param_shardings, sampler_shardings

GIB = 2**30
_WIDE = 4  # bytes of the float32 in which sums and gradients are taken
_MEMINFO = pathlib.Path("/proc/meminfo")
SMALLER = {
    "rollouts": "rollout.concurrency, batch.micro_batch or, in a new workdir, engine.kv_bytes, engine.lengths, "
    "engine.page_tokens or engine.decode_widths, or raise mesh.tensor,",
    "learning": "batch.micro_batch, or raise mesh.fsdp or mesh.tensor,",
}
_LARGEST_MESH = 4096  # devices tried for one that fits


@dataclasses.dataclass(frozen=True)
class Part:
    """Something that lies in a device's memory."""

    name: str
    size: float  # bytes on each device
    says: str  # what it is made of


@dataclasses.dataclass(frozen=True)
class DeviceMemory:
    """Bytes of each device: what it holds all the time, and what each phase adds, one at a time."""

    held: Sequence[Part]
    phases: Mapping[str, Sequence[Part]]
    always: Part  # of a phase: what it takes however short its rows are

    @property
    def held_bytes(self) -> float:
        return sum(part.size for part in self.held)

    @property
    def least_bytes(self) -> float:
        """What it takes however short its rows are."""
        return self.held_bytes + self.always.size

    @property
    def peak_bytes(self) -> float:
        """What is held and the largest phase."""
        return self.held_bytes + max(sum(part.size for part in parts) for parts in self.phases.values())


@dataclasses.dataclass(frozen=True)
class Limit:
    """What a device here can hold."""

    size: float  # bytes
    where: str


def device_memory(config: RunConfig) -> DeviceMemory:
    """What training takes of each device under `config.mesh`; at least, where `batch.micro_batch` is to be measured.
    Raises ConfigError where a parameter does not divide over the mesh."""
    if not config.batch.micro_batch:  # no measured size is below one row a device
        least = dataclasses.replace(config.batch, micro_batch=config.mesh.data * config.mesh.fsdp)
        config = dataclasses.replace(config, batch=least)
    mesh, model = abstract_mesh(config.mesh), config.model
    shapes = shapes_of(model)
    split = param_shardings(mesh, shapes)
    own = _tree_bytes(shapes, split, model.param_dtype)
    summed = _tree_bytes(shapes, split, jnp.promote_types(model.param_dtype, jnp.float32))
    published = _tree_bytes(shapes, sampler_shardings(mesh, shapes), model.compute_dtype)
    billions = sum(map(_count, shapes.values())) / 1e9
    held = (
        Part("parameters", own, f"{billions:.2f}e9 in {model.param_dtype}"),
        Part("Adam's moments", 2 * own, "two a parameter"),
        Part("reference", own, "the frozen initial router"),
        Part("sampler's weights", published, f"{model.compute_dtype}, split over tensor"),
    )
    gradient_sum = Part("gradient sum", summed, "over micro-batches")
    phases = {
        "rollouts": (*_rollout_parts(config), *_early_parts(config, mesh, shapes, own, summed)),
        "learning": (
            gradient_sum,
            Part("micro-batch's gradient", own, "before it is added"),
            *_activation_parts(config, mesh, shapes),
        ),
        "publishing": (Part("next weights", published, "before the old ones go"),),
        "resuming": (Part("restored state", 3 * own, "before the fresh one goes"),),
    }
    return DeviceMemory(held, phases, gradient_sum)


def evaluation_memory(config: RunConfig) -> DeviceMemory:
    """What an evaluation takes of each device: no gradient, moments or reference. ConfigError as above."""
    mesh, shapes = abstract_mesh(config.mesh), shapes_of(config.model)
    own = _tree_bytes(shapes, param_shardings(mesh, shapes), config.model.param_dtype)
    published = _tree_bytes(shapes, sampler_shardings(mesh, shapes), config.model.compute_dtype)
    read = Part("parameters", own, f"in {config.model.param_dtype}, as they are read")
    held = (Part("sampler's weights", published, f"{config.model.compute_dtype}, split over tensor"),)
    return DeviceMemory(held, {"reading": (read,), "rollouts": _rollout_parts(config)}, read)


def abstract_mesh(mesh: MeshConfig) -> AbstractMesh:
    """The mesh by its sizes alone: no device need be there."""
    return AbstractMesh((mesh.data, mesh.fsdp, mesh.tensor), MESH_AXES, axis_types=(AxisType.Auto,) * len(MESH_AXES))


def cache_token_bytes(model: ModelConfig) -> int:
    """Keys and values of one token over all layers."""
    return 2 * model.n_layers * model.n_kv_heads * model.head_dim * _itemsize(model.compute_dtype)


def _rollout_parts(config: RunConfig) -> tuple[Part, ...]:
    """The pool at its largest, where every episode of a process has a longest context, and the rows that a dispatch
    works on beside it."""
    engine = config.engine.single_shapes() if config.deterministic else config.engine
    token = cache_token_bytes(config.model)
    page = engine.page_tokens * token
    episodes = config.rollout.concurrency
    _, pages = engine.pool_pages(page, episodes)
    rows, longest = max(engine.decode_widths[-1], engine.prefill_rows[-1]), engine.longest
    kib = token / config.mesh.tensor / 2**10  # heads are split, pages lie on every device
    said = "engine.kv_bytes" if engine.kv_bytes is not None else f"{episodes} × {longest} tokens × {kib:g} KiB"
    columns = pages_for(longest, engine.page_tokens)
    beside = Part("work cache", rows * columns * page / config.mesh.tensor, f"{rows} rows for a dispatch")
    return Part("key/value pool", (pages + 1) * page / config.mesh.tensor, said), beside


def _early_parts(config: RunConfig, mesh: AbstractMesh, shapes, own: float, summed: float) -> tuple[Part, ...]:
    """What the learner takes while rollouts go on: for the reference's log-probs of the groups that are complete, and
    in the regime `stream` for their gradients, a sum for each divisor."""
    batch = piece_config(config.batch, mesh.shape["data"] * mesh.shape["fsdp"])
    config = dataclasses.replace(config, batch=batch)
    if config.regime == "collect":
        return (_reference_part(config, mesh, shapes),) if config.loss.kl_coefficient else ()
    sums = 2 if config.loss.kl_coefficient and config.loss.reduction == "segment" else 1
    kept, *work = _activation_parts(config, mesh, shapes)
    return (
        Part("gradient sums", sums * summed, "inner loss and inner KL" if sums == 2 else "over micro-batches"),
        Part("micro-batch's gradients", sums * own, "before they are added"),
        kept,
        *(dataclasses.replace(part, size=sums * part.size) for part in work),
    )


def _reference_part(config: RunConfig, mesh: AbstractMesh, shapes) -> Part:
    """A forward pass that keeps nothing: as much as a layer, or the head, takes of it."""
    model, batch = config.model, config.batch
    rows, tensor = math.ceil(batch.micro_batch / (mesh.shape["data"] * mesh.shape["fsdp"])), mesh.shape["tensor"]
    narrow, tokens = _itemsize(model.compute_dtype), rows * batch.length_buckets[-1]
    logits = rows * min(batch.logprob_chunk, batch.length_buckets[-1]) * model.vocab_size / tensor * _WIDE
    stream = tokens * narrow * model.d_model
    layer = max(tokens * _layer_token_bytes(model, tensor) + 2 * stream, 2 * logits + stream)
    return Part("reference's log-probs", layer, f"{rows} × {batch.length_buckets[-1]} tokens, early")


def _layer_token_bytes(model: ModelConfig, tensor: int) -> float:
    """Of one token inside a layer: gate, up and their product; queries, output, keys and values."""
    numbers = 3 * model.d_ff + 2 * (model.n_heads + model.n_kv_heads) * model.head_dim
    return _itemsize(model.compute_dtype) * numbers / tensor


def _activation_parts(config: RunConfig, mesh: AbstractMesh, shapes) -> tuple[Part, ...]:
    """One micro-batch of the longest rows: what all its layers leave for the backward pass, and beside that the larger
    of what one layer and what the head needs. What attention needs itself is small where it goes by chunks."""
    model, batch = config.model, config.batch
    rows = math.ceil(batch.micro_batch / (mesh.shape["data"] * mesh.shape["fsdp"]))
    length, tensor = batch.length_buckets[-1], mesh.shape["tensor"]
    narrow, tokens = _itemsize(model.compute_dtype), rows * length
    layer_input = tokens / tensor * narrow * model.d_model  # the residual stream is split by length
    inner = _layer_token_bytes(model, tensor)
    one_layer = tokens * (inner + 2 * narrow * model.d_model)  # and the stream and its norm
    attention = narrow * tokens * model.n_heads * model.head_dim / tensor
    saved = {"nothing_saveable": layer_input, "attention_saveable": layer_input + attention}.get(model.remat, one_layer)
    backward = 2 * tokens * (inner + (narrow + _WIDE) * model.d_model)
    layer = sum(_count(leaf) for name, leaf in shapes.items() if name.startswith(LAYER_PREFIX)) / model.n_layers
    layer = (narrow + _WIDE) * layer / tensor if mesh.shape["fsdp"] > 1 else 0
    logits = rows * min(batch.logprob_chunk, length) * model.vocab_size / tensor * _WIDE
    head = (narrow + _WIDE) * _count(shapes[EMBEDDING if model.tied else HEAD]) / tensor
    head_work = 3 * logits + 2 * tokens * narrow * model.d_model + head
    kept = Part("kept of all layers", model.n_layers * saved, f"{rows} × {length} tokens")
    if backward + layer >= head_work:
        return kept, Part("one layer", backward + layer, "again, with its gradients")
    return kept, Part("the head", head_work, f"logits of {rows} × {batch.logprob_chunk} tokens")


def device_limit() -> Limit:
    """What the smallest device of this process may take. The CPU's devices share the memory that is free now."""
    devices = jax.local_devices()
    stats = [device.memory_stats() or {} for device in devices]
    sizes = [found["bytes_limit"] for found in stats if "bytes_limit" in found]
    if sizes:
        return Limit(min(sizes), f"on a {devices[0].device_kind} here")
    return Limit(free_memory() / len(devices), f"free on this machine, for each of {len(devices)} devices")


def free_memory() -> float:
    """Bytes that this machine could still give away; no limit where it does not say."""
    try:
        lines = dict(line.split(":", 1) for line in _MEMINFO.read_text().splitlines())
        return 1024 * float(lines["MemAvailable"].split()[0])
    except (OSError, KeyError, ValueError):
        return math.inf


def check_memory(
    config: RunConfig,
    limit: Limit | None = None,
    memory_of: Callable[[RunConfig], DeviceMemory] = device_memory,
) -> None:
    """Raises ConfigError, with the figures and a remedy, where a device cannot even hold what is always taken, and
    warns where it may not hold the most that it can come to.

    Args:
        limit: of a device; None asks the devices here, which starts them.
        memory_of: what is to be done: training, or `evaluation_memory`.
    """
    limit = limit or device_limit()
    found = memory_of(config)
    if found.least_bytes <= limit.size:
        if found.peak_bytes > limit.size:
            _warn(found, limit)
        return
    parts = ", ".join(f"{part.name} {_gib(part.size)}" for part in (*found.held, found.always))
    raise ConfigError(
        f"each device would have to hold {_gib(found.least_bytes)} GiB ({parts}) under {_mesh_words(config.mesh)}, but "
        f"there are {_gib(limit.size)} GiB {limit.where}: {_remedy(config, limit, memory_of)}"
    )


def _warn(found: DeviceMemory, limit: Limit) -> None:
    phase = max(found.phases, key=lambda name: sum(part.size for part in found.phases[name]))
    logging.warning(
        "%s may take up to %s GiB on each device, and there are %s GiB %s: lower %s if memory runs out",
        *(phase, _gib(found.peak_bytes), _gib(limit.size), limit.where, SMALLER.get(phase, "the model")),
    )


def _remedy(config: RunConfig, limit: Limit, memory_of: Callable[[RunConfig], DeviceMemory]) -> str:
    fsdp = config.mesh.fsdp
    while (fsdp := 2 * fsdp) * config.mesh.data * config.mesh.tensor <= _LARGEST_MESH:
        wider = dataclasses.replace(config, mesh=dataclasses.replace(config.mesh, fsdp=fsdp))
        try:
            found = memory_of(wider)
        except ConfigError:  # an axis that no longer divides
            break
        if found.least_bytes <= limit.size:
            return (
                f"over {_mesh_words(wider.mesh)} it would be {_gib(found.least_bytes)} GiB; set mesh to the devices "
                "that you have, or take a smaller model (configs/quickstart.py is for a CPU)"
            )
    return "no mesh.fsdp brings that down to it; raise mesh.tensor, or take a smaller model"


def memory_table(config: RunConfig, found: DeviceMemory) -> Table:
    """A row for each part, the sums below. The larger one is the least where `batch.micro_batch` is to be measured."""
    rows = [("always", part.name, _gib(part.size), part.says) for part in found.held]
    rows += [(phase, part.name, _gib(part.size), part.says) for phase, parts in found.phases.items() for part in parts]
    measured = "learning" in found.phases and not config.batch.micro_batch
    most = ("at least", "arrays alone, by one row") if measured else ("at most", "arrays alone")
    rows += [("always", "together", _gib(found.held_bytes), ""), (most[0], "together", _gib(found.peak_bytes), most[1])]
    title = f"Memory of each device under {_mesh_words(config.mesh)}"
    return Table(title, ("when", "what", "GiB", "which"), tuple(rows))


def _mesh_words(mesh: MeshConfig) -> str:
    return f"mesh.data={mesh.data} × mesh.fsdp={mesh.fsdp} × mesh.tensor={mesh.tensor}"


def _gib(size: float) -> str:
    return f"{size / GIB:.2f}" if size >= GIB else f"{size / GIB:.2g}"


def _count(leaf) -> int:
    return math.prod(leaf.shape)


def _itemsize(dtype) -> int:
    return np.dtype(jnp.dtype(dtype)).itemsize


def _tree_bytes(shapes, shardings, dtype) -> float:
    return _itemsize(dtype) * sum(math.prod(shardings[name].shard_shape(leaf.shape)) for name, leaf in shapes.items())
