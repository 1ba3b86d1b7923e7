#!/usr/bin/env bash
# Trains a tiny router against simulated Workers on this machine: no key, no GPU, no spend. Makes .venv, installs rw into it
# and runs configs/quickstart.py; other arguments go to `rw train`. Run it again to continue a run that was stopped.
# `--rebuild` as the first argument makes the warm start anew, from random weights, instead of taking the one in rw/data.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ ! -x .venv/bin/python ]; then
  python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "rw needs Python 3.11 or newer as python3" >&2; exit 1; }
  python3 -m venv .venv
fi
if ! .venv/bin/python -c "import rw, jax, flax, orbax.checkpoint, aiohttp, rich, matplotlib" 2>/dev/null; then
  echo "installing rw and its packages into .venv (a minute or two)"
  .venv/bin/python -m pip install --quiet --disable-pip-version-check -e .
fi
export JAX_PLATFORMS=${JAX_PLATFORMS:-cpu}
initial=()
if [ "${1:-}" = "--rebuild" ]; then
  initial=(--workdir runs/quickstart_rebuilt --config.init.source=warmstart --config.init.path=)
  shift
fi
exec .venv/bin/rw train --config configs/quickstart.py ${initial[@]+"${initial[@]}"} "$@"
