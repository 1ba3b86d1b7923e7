"""Checkpoints of a run (`TrainState` with what identifies the run) and files of bare parameters, both by orbax.

A save is finished when it returns and appears under its final name in one rename, so a killed process leaves the
previous checkpoint whole. Knows no model, no data and no training loop.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
import hashlib
import json
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from absl import logging
from etils import epath
from jax.experimental import multihost_utils
from safetensors import safe_open
from safetensors.flax import save_file

from rw.errors import CheckpointError
from rw.learner.stored_arrays import arrays_to_save, read_arrays
from rw.types import TrainState

FORMAT_VERSION = 1
ONE_FILE = ".safetensors"


@dataclasses.dataclass(frozen=True)
class RunIdentity:
    """What a checkpoint must agree on with the run that continues it."""

    config: Mapping[str, Any]  # nested, JSON-able
    tokenizer_fingerprint: str
    reference_fingerprint: str
    seed: int

    def metadata(self) -> dict[str, Any]:
        """The JSON that is stored beside the state."""
        config = json.loads(json.dumps(self.config))  # tuples become lists, as they will be read back
        return {
            "format_version": FORMAT_VERSION,
            "config": config,
            "config_fingerprint": config_fingerprint(config),
            "tokenizer_fingerprint": self.tokenizer_fingerprint,
            "reference_fingerprint": self.reference_fingerprint,
            "seed": self.seed,
        }


def config_fingerprint(config: Mapping[str, Any]) -> str:
    """sha256 (hex) of the config as canonical JSON."""
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()


class Checkpoints:
    """The checkpoints of one run, `keep` newest of them, named by their step. Not thread-safe."""

    def __init__(
        self, directory: str | pathlib.Path, identity: RunIdentity, *, keep: int = 3, may_change: Sequence[str] = ()
    ):
        """`may_change`: dotted config keys, with shell wildcards, in which a continued run may differ."""
        self.directory = pathlib.Path(directory).absolute()
        self._metadata = identity.metadata()
        self._may_change = tuple(may_change)
        self._manager = ocp.CheckpointManager(
            self.directory,
            item_names=("state", "metadata"),
            options=ocp.CheckpointManagerOptions(
                max_to_keep=keep, enable_async_checkpointing=False, cleanup_tmp_directories=True
            ),
        )

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def steps(self) -> list[int]:
        """Steps that have a finished checkpoint, ascending."""
        return sorted(self._manager.all_steps())

    def save(self, state: TrainState) -> None:
        """Writes the state under its step and drops the oldest beyond `keep`; a step already there is left alone."""
        step = int(state.step)
        args = ocp.args.Composite(
            state=arrays_to_save(state), metadata=ocp.args.JsonSave({**self._metadata, "step": step})
        )
        with _writing(self.directory / str(step)):
            if step not in self._manager.all_steps() and not self._manager.save(step, args=args, force=True):
                raise CheckpointError(f"no checkpoint of step {step} was written to {self.directory}")
            self._manager.wait_until_finished()

    def restore(self, template: TrainState) -> TrainState | None:
        """The newest readable state, or None where there is no checkpoint at all.

        A damaged newest checkpoint is set aside as `damaged-<step>`, said in the log, and the one before is taken.

        Args:
            template: a state of the same structure; its shapes, dtypes and shardings are those of the result.

        Raises:
            CheckpointError: the checkpoint is of another format, config, tokenizer, reference or seed, or all damaged.
        """
        damaged: list[tuple[int, str]] = []
        for step in reversed(self.steps()):
            metadata = self._read_metadata(step, damaged)
            if metadata is None:
                continue
            self._check(step, metadata)
            state = self._read_state(step, template, damaged)
            if state is not None:
                for newer, reason in damaged:
                    self._set_aside(newer, reason, step)
                return state
        if damaged:
            step, reason = damaged[0]
            raise CheckpointError(
                f"no readable checkpoint in {self.directory} ({len(damaged)} damaged; step {step}: {reason}); "
                "restore a backup or start in a new workdir"
            )
        return None

    def check_config(self) -> None:
        """Raises CheckpointError where the newest readable checkpoint is of another config.

        For whoever is about to compute something that a run needs before it can restore.
        """
        for step in reversed(self.steps()):
            metadata = self._read_metadata(step, [])
            if metadata is not None:
                return self._check_config(step, metadata)

    def close(self) -> None:
        """Finishes pending work."""
        self._manager.close()

    def _read_metadata(self, step: int, damaged: list[tuple[int, str]]) -> dict[str, Any] | None:
        try:
            restored = self._manager.restore(step, args=ocp.args.Composite(metadata=ocp.args.JsonRestore()))
            return dict(restored["metadata"])
        except Exception as error:  # orbax has no type for a damaged file: whatever it raises, this one is unreadable
            damaged.append((step, _first_line(error)))
            return None

    def _read_state(self, step: int, template: TrainState, damaged: list[tuple[int, str]]) -> TrainState | None:
        state, reason = None, "another process could not read its part"
        try:
            state = read_arrays(self.directory / str(step) / "state", _abstract(template))
        except Exception as error:  # as above
            reason = _first_line(error)
        if _all_processes(state is not None):
            return state
        damaged.append((step, reason))
        return None

    def _set_aside(self, step: int, reason: str, taken: int) -> None:
        if jax.process_index():
            multihost_utils.sync_global_devices(f"damaged checkpoint {step}")
            return self._manager.reload()
        logging.warning("checkpoint of step %d is damaged (%s): continuing from step %d", step, reason, taken)
        target = self.directory / f"damaged-{step}"
        count = 1
        while target.exists():
            count += 1
            target = self.directory / f"damaged-{step}-{count}"
        (self.directory / str(step)).rename(target)
        if jax.process_count() > 1:
            multihost_utils.sync_global_devices(f"damaged checkpoint {step}")
        self._manager.reload()

    def _check(self, step: int, stored: Mapping[str, Any]) -> None:
        where = f"checkpoint {self.directory / str(step)}"
        version = stored.get("format_version")
        if version != FORMAT_VERSION:
            raise CheckpointError(
                f"{where} has format version {version}, this code reads {FORMAT_VERSION}: use the release that wrote it"
            )
        self._check_config(step, stored)
        for key in ("tokenizer_fingerprint", "reference_fingerprint", "seed"):
            if stored[key] != self._metadata[key]:
                raise CheckpointError(
                    f"{where} was made with another {key.replace('_', ' ')}: {_short(stored[key])} → "
                    f"{_short(self._metadata[key])}; restore the old one or use a new workdir"
                )

    def _check_config(self, step: int, stored: Mapping[str, Any]) -> None:
        changes = config_changes(stored["config"], self._metadata["config"], self._may_change)
        if changes:
            where = f"checkpoint {self.directory / str(step)}"
            raise CheckpointError(f"{where} was made with another config: {'; '.join(changes)}; use a new workdir")


def _all_processes(said: bool) -> bool:
    """Whether every process of the job says so; each reads its own part of a checkpoint, and all take the same one."""
    if jax.process_count() == 1:
        return said
    return bool(np.all(multihost_utils.process_allgather(np.array(said))))


def lasting_fingerprint(config: Mapping[str, Any], may_change: Sequence[str] = ()) -> str:
    """`config_fingerprint` of the dotted keys in which a continued run may not differ."""
    config = json.loads(json.dumps(config))
    return config_fingerprint(
        {
            key: value
            for key, value in _flatten(config).items()
            if not any(fnmatch.fnmatchcase(key, pattern) for pattern in may_change)
        }
    )


def config_changes(old: Mapping[str, Any], new: Mapping[str, Any], may_change: Sequence[str] = ()) -> list[str]:
    """`key: old → new` for every dotted key that differs and matches no pattern of `may_change`, sorted by key."""
    before, after = _flatten(old), _flatten(new)
    return [
        f"{key}: {_short(before.get(key, 'absent'))} → {_short(after.get(key, 'absent'))}"
        for key in sorted(before.keys() | after.keys())
        if before.get(key, _ABSENT) != after.get(key, _ABSENT)
        and not any(fnmatch.fnmatchcase(key, pattern) for pattern in may_change)
    ]


def save_params(path: str | pathlib.Path, params: Any, metadata: Mapping[str, Any], *, overwrite: bool = False) -> None:
    """Writes a parameter tree (a warm start, or a run's frozen reference) and its metadata, in one rename.

    A directory in orbax's format; a path that ends with `.safetensors` becomes one file instead, of a flat tree whose
    arrays lie on this process's devices.

    Raises:
        CheckpointError: `path` exists and `overwrite` is False.
    """
    path = pathlib.Path(path).absolute()
    if path.exists() and not overwrite:
        raise CheckpointError(f"{path} exists; remove it or name another path")
    if path.suffix == ONE_FILE:
        return _save_file(path, params, {**metadata, "format_version": FORMAT_VERSION})
    args = ocp.args.Composite(
        params=arrays_to_save(params),
        metadata=ocp.args.JsonSave({**metadata, "format_version": FORMAT_VERSION}),
    )
    with _writing(path), ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as checkpointer:
        checkpointer.save(path, args=args, force=overwrite)


@contextlib.contextmanager
def _writing(path: pathlib.Path) -> Iterator[None]:
    """A full disk in one line: orbax says it as a ValueError where the write is tensorstore's."""
    try:
        yield
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise CheckpointError(f"cannot write {path}: {reason}; make room, and give the same command again") from error


def load_params(
    path: str | pathlib.Path, shardings: Mapping[str, jax.sharding.Sharding] | None = None
) -> tuple[Any, dict[str, Any]]:
    """(parameters, metadata) of `save_params`.

    Args:
        path: as it was given to `save_params`.
        shardings: where each array of a flat tree is to lie; every process of a job reads what its devices hold. None
            puts all on this process's first device.

    Raises:
        CheckpointError: nothing there, damaged, or another format or shape.
    """
    path = pathlib.Path(path).absolute()
    if not path.exists():
        raise CheckpointError(f"no parameters at {path}; correct the path, or make them first")
    try:
        if path.is_file():
            metadata = _file_metadata(path)
        else:
            metadata = _read_metadata(path)
    except Exception as error:  # as in Checkpoints: unreadable, whatever the type
        raise _unreadable(path, error) from error
    if metadata.get("format_version") != FORMAT_VERSION:
        raise CheckpointError(
            f"{path} has format version {metadata.get('format_version')}, this code reads {FORMAT_VERSION}: "
            "use the release that wrote it"
        )
    try:
        if path.is_file():
            return _load_file(path, shardings), metadata
        # The handler itself: a checkpointer would look for a file one level up, and complain.
        stored = ocp.PyTreeCheckpointHandler().metadata(epath.Path(path / "params")).tree
        return read_arrays(path / "params", wanted_arrays(stored, shardings)), metadata
    except Exception as error:  # as above
        raise _unreadable(path, error) from error


def _unreadable(path: pathlib.Path, error: Exception) -> CheckpointError:
    """What to say of a path that is there; never to remove a directory that is none of ours."""
    if path.is_dir() and not (path / "params").exists():
        inside = [child.name for child in sorted(path.iterdir()) if (child / "params").exists()]
        advice = f"; it has {', '.join(inside)} in it: name one of them" if inside else ""
        return CheckpointError(f"there are no saved parameters in {path}{advice}")
    return CheckpointError(
        f"parameters at {path} cannot be read ({_first_line(error)}); restore them, or, if a run made them, remove "
        f"{path} to have them made again"
    )


def _save_file(path: pathlib.Path, params: Mapping[str, jax.Array], metadata: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(path.name + ".tmp")
    save_file(dict(params), aside, {"metadata": json.dumps(metadata, sort_keys=True)})
    aside.replace(path)


def _file_metadata(path: pathlib.Path) -> dict[str, Any]:
    with safe_open(path, framework="flax") as file:
        return dict(json.loads(file.metadata()["metadata"]))


def _load_file(path: pathlib.Path, shardings: Mapping[str, jax.sharding.Sharding] | None) -> dict[str, jax.Array]:
    with safe_open(path, framework="flax") as file:
        params = {name: file.get_tensor(name) for name in file.keys()}
    if shardings is None:
        return params
    _check_names(params, shardings)
    return {name: jax.device_put(leaf, shardings[name]) for name, leaf in params.items()}


def _check_names(params: Mapping[str, Any], shardings: Mapping[str, Any]) -> None:
    if others := sorted(params.keys() ^ shardings.keys()):
        raise ValueError(f"it holds parameters of other names: {', '.join(others)}")


def _read_metadata(path: pathlib.Path) -> dict[str, Any]:
    with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as checkpointer:
        restored = checkpointer.restore(path, args=ocp.args.Composite(metadata=ocp.args.JsonRestore()))
    return dict(restored["metadata"])


_ABSENT = object()


def _abstract(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), tree)


def wanted_arrays(stored: Mapping[str, Any], shardings: Mapping[str, jax.sharding.Sharding] | None) -> Any:
    """What to read of a stored tree of parameters: every array, where `shardings` says or on the first device.

    Raises ValueError where their names differ.
    """
    if shardings is None:
        first = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=first), stored)
    _check_names(stored, shardings)
    return {
        name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=shardings[name]) for name, leaf in stored.items()
    }


def _flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            flat.update(_flatten(value, f"{prefix}{key}."))
        elif _have_ids(value):  # who, in which order, and each one's fields under its id
            flat[f"{prefix}{key}"] = [item["id"] for item in value]
            for item in value:
                flat.update({f"{prefix}{key}.{item['id']}.{name}": field for name, field in item.items()})
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _have_ids(value: Any) -> bool:
    is_list = isinstance(value, (list, tuple)) and bool(value)
    return is_list and all(isinstance(item, Mapping) and isinstance(item.get("id"), str) for item in value)


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:16]}…"


def _first_line(error: Exception) -> str:
    return (
        f"{type(error).__name__}: {_shorten(str(error).strip().splitlines()[0])}" if str(error).strip() else repr(error)
    )


def _shorten(line: str, limit: int = 160) -> str:
    """At most `limit` characters, cut between words where there are any."""
    return line if len(line) <= limit else f"{line[:limit].rsplit(maxsplit=1)[0]} …"
