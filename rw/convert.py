"""`rw convert`: a Qwen3 of Hugging Face as saved parameters (`--from-hf DIR --to PATH`), or the reverse (`--to-hf`)."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import pathlib
import sys
from collections.abc import Sequence

import jax

from rw import progress
from rw.aside import written_aside
from rw.cli import Parser
from rw.errors import CheckpointError, ConfigError, RwError
from rw.learner.checkpoint import ONE_FILE, save_params
from rw.model.hf_config import CONFIG, is_hf, model_config, written_config
from rw.model.hf_files import MAX_FILE_BYTES, open_weights, read_hf, write_hf
from rw.protocol.chat import TokenCodec
from rw.router_files import carried_config, copy_files, keep_files, make_files, tokenizer_of
from rw.saved_router import open_saved_router

STORED = ("bfloat16", "float32")


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    # Files alone are wanted, and an accelerator may be in use by a run, or have less memory than its host.
    jax.config.update("jax_platforms", "cpu")
    try:
        known = _parse(sys.argv[1:] if argv is None else argv)
        if known.from_hf:
            import_hf(known.from_hf, known.to, known.dtype, known.overwrite)
        else:
            export_hf(
                known.source,
                known.to_hf,
                known.dtype,
                step=known.step,
                tokenizer=known.tokenizer,
                max_file_bytes=known.max_file_bytes,
                overwrite=known.overwrite,
            )
    except (RwError, OSError) as error:
        print(f"rw convert: error: {error}", file=sys.stderr)
        return error.exit_code if isinstance(error, RwError) else RwError.exit_code
    return 0


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = Parser("convert")
    parser.add_argument("--from-hf", metavar="DIR", help="a Hugging Face directory of a Qwen3, to import")
    parser.add_argument("--to", metavar="PATH", help="where its saved parameters go (init.path of a run)")
    parser.add_argument("--from", dest="source", metavar="PATH", help="saved parameters or a run's workdir, to export")
    parser.add_argument("--to-hf", metavar="DIR", help="where their Hugging Face directory goes")
    parser.add_argument("--step", type=int, help="of a run: this step (default: the best by validation, or the last)")
    parser.add_argument("--dtype", choices=STORED, help="what is written (default: what is stored)")
    parser.add_argument("--tokenizer", default="", metavar="FILE", help="tokenizer.json of what is exported")
    parser.add_argument(
        "--max-file-bytes", type=int, default=MAX_FILE_BYTES, metavar="N", help="of a file of weights (default 4e9)"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace what is there, once the new one is whole")
    known = parser.parse_args(argv)
    imports, exports = bool(known.from_hf and known.to), bool(known.source and known.to_hf)
    halves = sum(map(bool, (known.from_hf, known.to, known.source, known.to_hf)))
    if halves != 2 or imports == exports:
        parser.error("give either --from-hf DIR --to PATH, or --from PATH --to-hf DIR")
    if imports and (known.step is not None or known.tokenizer):
        parser.error("--step and --tokenizer belong to an export (--from PATH --to-hf DIR)")
    if known.max_file_bytes < 1:
        parser.error("--max-file-bytes must be at least 1")
    return known


def import_hf(directory: str, target: str, dtype: str | None = None, overwrite: bool = False) -> None:
    """Writes the weights of a Hugging Face directory as saved parameters, with its other files beside them in `hf`.

    Beside what the arrays take, it needs about 0.7 GB of memory: weights of Qwen3-4B, 8.04 GB, peaked at 8.73 GB.

    Args:
        dtype: bfloat16 or float32; None: as they are stored.

    Raises:
        RwError: weights, config or tokenizer that cannot be used; what was at `target` is as it was.
    """
    if pathlib.Path(target).suffix == ONE_FILE:
        raise ConfigError(f"--to {target}: name a directory, so that the tokenizer files have a place in it")
    codec = tokenizer_of(directory)
    model = model_config(directory)
    stored = {tensor.dtype.name for tensor in open_weights(directory, model).values()}
    if len(stored) > 1 and dtype is None:
        raise ConfigError(f"{directory} holds tensors in {' and '.join(sorted(stored))}; choose one with --dtype")
    model = dataclasses.replace(model, param_dtype=dtype or stored.pop())
    if codec.vocab_size > model.vocab_size:
        raise CheckpointError(
            f"{directory}: the tokenizer has {codec.vocab_size} tokens, the embedding only {model.vocab_size} rows"
        )
    with written_aside(target, overwrite, _is_saved) as aside:
        params = read_hf(directory, model)
        metadata = {"tokenizer_fingerprint": codec.fingerprint, "model": dataclasses.asdict(model)}
        save_params(aside, params, metadata)
        keep_files(directory, aside)
    progress.say(f"{target}: {_size(params)} parameters in {model.param_dtype}, from {directory}")


def export_hf(
    source: str,
    target: str,
    dtype: str | None = None,
    *,
    step: int | None = None,
    tokenizer: str = "",
    max_file_bytes: int = MAX_FILE_BYTES,
    overwrite: bool = False,
) -> None:
    """Writes saved parameters, or a router of a run, as a directory that transformers loads.

    Beside what the arrays take, it needs the memory of the largest of them and about 0.9 GB: those of Qwen3-4B, 8.04 GB
    of which 1.79 GB are one array, peaked at 10.63 GB.

    Args:
        dtype: bfloat16 or float32; None: as they are stored.
        step, tokenizer: as `open_saved_router` and `SavedRouter.tokenizer` take them.

    Raises:
        RwError: what cannot be exported; what was at `target` is as it was.
    """
    with written_aside(target, overwrite, is_hf) as aside:
        router = open_saved_router(source, step)
        data = router.tokenizer(tokenizer)
        codec = TokenCodec(data)
        stored = {leaf.dtype.name for leaf in jax.tree.leaves(router.params)}
        if dtype is None and (len(stored) > 1 or not stored <= set(STORED)):
            raise ConfigError(f"{router.path} holds {' and '.join(sorted(stored))}; choose one with --dtype")
        dtype = dtype or stored.pop()
        config = written_config(router.model, dtype, carried_config(router.files, codec, router.longest))
        aside.mkdir()
        write_hf(aside, router.params, router.model, dtype, max_file_bytes)
        if router.files is None:
            make_files(aside, data, codec, router.longest)
        else:
            copy_files(router.files, aside)
        (aside / CONFIG).write_text(json.dumps(config, indent=2) + "\n")
    progress.say(f"{target}: {_size(router.params)} parameters in {dtype}, from {router.path} ({router.about})")


def _is_saved(path: pathlib.Path) -> bool:
    return (path / "params").is_dir() and (path / "metadata").is_dir()


def _size(params) -> str:
    count = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params))
    return f"{count / 1e9:.2f} G" if count >= 1e9 else f"{count / 1e6:.2f} M"


if __name__ == "__main__":
    sys.exit(main())
