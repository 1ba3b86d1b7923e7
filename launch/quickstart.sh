#!/usr/bin/env bash
# Trains a tiny router against simulated Workers on this machine: no key, no GPU, no spend. Makes .venv, installs rw into it
# and runs configs/quickstart.py; arguments go to `rw train`. Run it again to continue a run that was stopped.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ ! -x .venv/bin/python ]; then
  python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "rw needs Python 3.11 or newer as python3" >&2; exit 1; }
  python3 -m venv .venv
fi
if ! .venv/bin/python -c "import rw, jax, flax, orbax.checkpoint, aiohttp, rich" 2>/dev/null; then
  echo "installing rw and its packages into .venv (a minute or two)"
  .venv/bin/python -m pip install --quiet --disable-pip-version-check -e .
fi
export JAX_PLATFORMS=${JAX_PLATFORMS:-cpu}
exec .venv/bin/rw train --config configs/quickstart.py "$@"
