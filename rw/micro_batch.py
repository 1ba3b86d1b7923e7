"""`batch.micro_batch=0`: a run measures how many rows suit its machine, once, and keeps the number in its workdir."""

from __future__ import annotations

import dataclasses
import json
import pathlib

from rw import progress
from rw.errors import ConfigError
from rw.learner.measured_batch import Choice, candidates, measure
from rw.memory import device_limit, device_memory
from rw.parts import Parts
from rw.run_config import RunConfig

FILE = "micro_batch.json"


def check_micro_batch(config: RunConfig, process_count: int) -> None:
    """Raises ConfigError where a size that depends on the clock must not be used."""
    if config.batch.micro_batch:
        return
    for is_given, what in (
        (config.deterministic, "deterministic=True asks for the same sums in every run"),
        (process_count != 1, f"{process_count} processes must all take the same number"),
    ):
        if is_given:
            raise ConfigError(f"batch.micro_batch=0, which is measured: {what}; give a number of rows, such as 8")


def with_micro_batch(parts: Parts) -> RunConfig:
    """The run's config with a number for `batch.micro_batch`. On the device thread.

    Raises ConfigError as `check_micro_batch`.
    """
    config = parts.config
    if config.batch.micro_batch:
        return config
    check_micro_batch(config, parts.processes.count)
    return with_rows(config, kept_choice(config, parts).micro_batch)


def with_rows(config: RunConfig, rows: int) -> RunConfig:
    """The config with `rows` for `batch.micro_batch`."""
    return dataclasses.replace(config, batch=dataclasses.replace(config.batch, micro_batch=rows))


def kept_choice(config: RunConfig, parts: Parts) -> Choice:
    """What was measured before for this model, these shapes and this mesh, or is now. Says which."""
    path = parts.workdir.file(FILE)
    measured_with = repr((config.model, config.batch, config.loss, config.mesh))
    if (found := _read(path, measured_with)) is not None:
        progress.say(f"micro-batches of {found.micro_batch} rows, as measured before ({path})")
        return found
    limit = device_limit().size
    choice = measure(
        config.model,
        config.batch,
        config.loss,
        parts.mesh,
        candidates(config.mesh.data * config.mesh.fsdp, config.queries_per_batch * config.rollouts_per_query),
        lambda rows: device_memory(with_rows(config, rows)).peak_bytes <= limit,
    )
    rates = {str(rows): round(rate, 1) for rows, rate in choice.tokens_per_s.items()}
    kept = {"micro_batch": choice.micro_batch, "tokens_per_s": rates, "measured_with": measured_with}
    aside = path.with_suffix(".tmp")
    aside.write_text(json.dumps(kept, indent=2) + "\n")
    aside.replace(path)
    said = ", ".join(f"{rows}: {rate:,.0f}" for rows, rate in choice.tokens_per_s.items())
    progress.say(f"micro-batches of {choice.micro_batch} rows, from tokens/s by rows: {said}")
    return choice


def _read(path: pathlib.Path, measured_with: str) -> Choice | None:
    """The choice in a file, or None where there is none that was made with the same."""
    try:
        kept = json.loads(path.read_text())
        rates = {int(rows): float(rate) for rows, rate in kept["tokens_per_s"].items()}
        return Choice(int(kept["micro_batch"]), rates) if kept["measured_with"] == measured_with else None
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
        return None
