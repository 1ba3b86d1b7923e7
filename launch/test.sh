#!/usr/bin/env bash
# Tests. `launch/test.sh` is the fast tier (minutes on 2 cores, no torch, no download); `launch/test.sh --full` adds torch
# parity, full fuzzing, kill points and long runs. Uses .venv, which it makes if there is none; other arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."

extra=test
if [ "${1:-}" = "--full" ]; then
  extra=full
  export RW_TEST_FULL=1
  shift
fi
python=${PYTHON:-.venv/bin/python}
if [ ! -x "$python" ]; then
  python3 -m venv .venv
fi
if ! "$python" -c "import rw, pytest, hypothesis, xdist" 2>/dev/null || [ "$extra" = full ]; then
  echo "installing rw with extra '$extra' into .venv"
  "$python" -m pip install --quiet --disable-pip-version-check -e ".[$extra]"
fi
export JAX_PLATFORMS=cpu
"$python" -m ruff check rw tests configs launch notebooks setup.py
exec "$python" -m pytest -n 2 --dist loadfile --durations 15 "$@"
