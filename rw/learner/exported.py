"""The parameters alone of a run's checkpoint, which take a third of the memory that its training state does."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import orbax.checkpoint as ocp
from etils import epath

from rw.errors import CheckpointError
from rw.learner.checkpoint import FORMAT_VERSION, wanted_arrays
from rw.learner.stored_arrays import read_arrays


def checkpoint_steps(directory: str | pathlib.Path) -> list[int]:
    """Steps that have a finished checkpoint, ascending; [] where there is no such directory. Changes nothing there."""
    path = pathlib.Path(directory)
    names = [entry.name for entry in path.iterdir() if entry.is_dir()] if path.is_dir() else []
    return sorted(int(name) for name in names if name.isdigit())


def checkpoint_params(
    directory: str | pathlib.Path, step: int, shardings: Mapping[str, jax.sharding.Sharding] | None = None
) -> tuple[Any, dict[str, Any]]:
    """(parameters, metadata) of one checkpoint of a run.

    Args:
        shardings: where each array is to lie; every process of a job reads what its devices hold. None puts all on this
            process's first device.

    Raises:
        CheckpointError: it is damaged, of another format, or holds parameters of other names than `shardings`.
    """
    path = pathlib.Path(directory).absolute() / str(step)
    with _readable(path), ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as checkpointer:
        metadata = dict(checkpointer.restore(path, args=ocp.args.Composite(metadata=ocp.args.JsonRestore())).metadata)
    version = metadata.get("format_version")
    if version != FORMAT_VERSION:
        raise CheckpointError(
            f"checkpoint {path} has format version {version}, this code reads {FORMAT_VERSION}: use the release that "
            "wrote it"
        )
    with _readable(path):
        return _params(path / "state", shardings), metadata


@contextlib.contextmanager
def _readable(path: pathlib.Path) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # orbax has no type for a damaged file: whatever it raises, this one is unreadable
        reason = " ".join(str(error).split())[:160]
        raise CheckpointError(
            f"checkpoint {path} cannot be read ({type(error).__name__}: {reason}); take another --step"
        ) from error


def _params(path: pathlib.Path, shardings: Mapping[str, jax.sharding.Sharding] | None) -> Any:
    stored = ocp.PyTreeCheckpointHandler().metadata(epath.Path(path)).tree["params"]
    wanted = {"params": wanted_arrays(stored, shardings)}
    return read_arrays(path, wanted, partial=True)["params"]
