"""Finds a router that was saved: parameters in a directory, or of a run the best by validation or those of a step.

Only reads: the run that wrote them may still be going on.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any

import jax

from rw.errors import CheckpointError, ConfigError
from rw.evaluation.validation import best_validation
from rw.learner.checkpoint import load_params
from rw.learner.exported import checkpoint_params, checkpoint_steps
from rw.model.config import ModelConfig
from rw.model.hf_config import CONFIG, is_hf, model_config
from rw.parts import PACKAGED, TOKENIZERS, params_path
from rw.router_files import TOKENIZER, files_beside, tokenizer_bytes
from rw.typed_values import build
from rw.workdir import LOCK


@dataclasses.dataclass(frozen=True)
class SavedRouter:
    """A router with what is known of it."""

    params: Any
    model: ModelConfig
    path: pathlib.Path  # what was read
    about: str  # why that, in words
    tokenizer_fingerprint: str
    files: pathlib.Path | None  # the tokenizer and so on that it came with from Hugging Face
    run_config: Mapping[str, Any] | None  # of the run that made it

    def tokenizer(self, named: str = "") -> bytes:
        """tokenizer.json of the router: of the files it came with, or `named`, or its run's, or one that rw has.

        Raises:
            CheckpointError: none of them is the router's.
        """
        places = [named] if named else self._tokenizer_places()
        for place in places:
            data = tokenizer_bytes(place) if pathlib.Path(place).is_file() else b""
            if hashlib.sha256(data).hexdigest() == self.tokenizer_fingerprint:  # as TokenCodec.fingerprint
                return data
        raise CheckpointError(
            f"the tokenizer of {self.path} ({str(self.tokenizer_fingerprint)[:16]}…) is not in "
            f"{', '.join(map(str, places))}; name its tokenizer.json with --tokenizer"
        )

    def _tokenizer_places(self) -> list[pathlib.Path | str]:
        if self.files is not None:
            return [self.files / TOKENIZER]
        named = (self.run_config or {}).get("tokenizer", {}).get("path")
        own = [PACKAGED / TOKENIZERS[named] if named in TOKENIZERS else named] if named else []
        return [*own, *(PACKAGED / file for file in TOKENIZERS.values())]

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence that its run trained on, but at least 32,768."""
        protocol = (self.run_config or {}).get("protocol", {})
        return max(32_768, protocol.get("prompt_limit", 0) + protocol.get("response_budget", 0))


@dataclasses.dataclass(frozen=True)
class RouterPlace:
    """Where a saved router lies, and what is known of it before its parameters are read."""

    path: pathlib.Path  # what is read
    about: str  # why that, in words
    step: int | None = None  # updates that made it, where the place says so
    files: pathlib.Path | None = None  # the tokenizer and so on that it came with from Hugging Face
    run_config: Mapping[str, Any] | None = None  # of the run that made it
    is_checkpoint: bool = False  # a training state, of which the parameters are a part

    def load(self, shardings: Mapping[str, jax.sharding.Sharding] | None = None) -> tuple[Any, dict[str, Any]]:
        """(parameters as they are saved, metadata); see `load_params`. Not of a Hugging Face directory.

        Raises:
            CheckpointError: nothing there, damaged, or of another format.
        """
        if self.is_checkpoint:
            return checkpoint_params(self.path.parent, int(self.path.name), shardings)
        return load_params(self.path, shardings)

    def model(self, metadata: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The model that the parameters are of, as it was recorded; None where nobody says."""
        return metadata.get("model") or metadata.get("config", {}).get("model") or (self.run_config or {}).get("model")


def open_saved_router(path: str | os.PathLike, step: int | None = None) -> SavedRouter:
    """The router at `path`; see `find_router`.

    Raises:
        ConfigError: a step of what is no run, or a Hugging Face directory.
        CheckpointError: nothing there, no such step, or damaged.
    """
    place = find_router(path, step)
    if is_hf(place.path):
        raise ConfigError(f"{place.path} is a Hugging Face directory; it is imported with --from-hf {place.path}")
    params, metadata = place.load()
    described = place.model(metadata)
    if described is None and place.files is None:
        raise CheckpointError(
            f"{place.path} does not say which model its parameters are of; export its run's directory"
        )
    model = build(ModelConfig, described, "model.") if described is not None else model_config(place.files)
    tokenizer = metadata.get("tokenizer_fingerprint")
    return SavedRouter(params, model, place.path, place.about, tokenizer, place.files, place.run_config)


def find_router(path: str | os.PathLike, step: int | None = None) -> RouterPlace:
    """Where the router of that name lies.

    Args:
        path: saved parameters, a name of those that come with rw, a Hugging Face directory, or the working directory of
            a run: its best router by validation, or its last checkpoint where nothing was validated.
        step: of a run, instead.

    Raises:
        ConfigError: a step of what is no run.
        CheckpointError: nothing there, or no such step.
    """
    path = pathlib.Path(params_path(str(path)))
    run = None if is_hf(path) else _run_config(path)
    if run is not None:
        return _of_run(path, run, step)
    if step is not None:
        raise ConfigError(f"--step {step}: {path} is not the working directory of a run; leave it out")
    if is_hf(path):
        return RouterPlace(path, "a Hugging Face directory", files=path)
    if (path / LOCK).is_file():
        raise CheckpointError(f"{path} is the working directory of a run that has not come to its first step yet")
    if not path.exists():
        raise CheckpointError(
            f"no parameters at {path}; correct the path, or make them first (the word quickstart alone names those "
            "that come with rw)"
        )
    run = next((found for found in map(_run_config, path.absolute().parents[:2]) if found), None)
    files = files_beside(path) or (files_beside(path.parent.parent / "reference") if run else None)
    return RouterPlace(path, "saved parameters", files=files, run_config=run)


def _of_run(workdir: pathlib.Path, run: Mapping[str, Any], step: int | None) -> RouterPlace:
    best, steps = _best(workdir), checkpoint_steps(workdir / "checkpoints")
    files = files_beside(workdir / "reference")
    if best is not None and step in (None, best):
        path = workdir / "best" / f"step_{best:06d}"
        return RouterPlace(path, f"the best by validation, of step {best}", best, files, run)
    if not steps:
        raise CheckpointError(
            f"{workdir} has no checkpoint yet; the router that it begins from is in {workdir / 'reference'}"
        )
    taken = steps[-1] if step is None else step
    if taken not in steps:
        kept = ", ".join(map(str, sorted({*steps, *([] if best is None else [best])})))
        raise CheckpointError(f"--step {taken}: {workdir} keeps only the routers of steps {kept}")
    path = workdir / "checkpoints" / str(taken)
    return RouterPlace(path, f"the checkpoint of step {taken}", taken, files, run, is_checkpoint=True)


def _best(workdir: pathlib.Path) -> int | None:
    """The step of the best validated router that is kept."""
    try:
        lines = (workdir / "validation.jsonl").read_text().splitlines()
        rows = [json.loads(line) for line in lines if line.endswith("}")]  # the last one may be half written
    except (OSError, ValueError):
        return None
    kept = [row for row in rows if (workdir / "best" / f"step_{row['step']:06d}").is_dir()]
    best = best_validation(kept)
    return best[0] if best is not None else kept[-1]["step"] if kept else None


def _run_config(path: pathlib.Path) -> dict[str, Any] | None:
    """config.json of a run's working directory; None where it is none."""
    try:
        config = json.loads((path / CONFIG).read_bytes())
    except (OSError, ValueError):
        return None
    return config if isinstance(config, dict) and isinstance(config.get("tokenizer"), dict) else None
