#!/usr/bin/env bash
# Trains configs/replay_nq.py on 20 fixed splits of the recorded questions and lays the runs side by side. One warm start,
# which knows none of the questions, serves all of them. Run it again to continue where it was stopped: finished runs are
# not made again. Arguments go to every `rw train`; SPLITS="3 4 5" takes other splits, RUNS=DIR another place.
set -euo pipefail
cd "$(dirname "$0")/.."

export JAX_PLATFORMS=${JAX_PLATFORMS:-cpu}
rw=(rw)
[ -x .venv/bin/rw ] && rw=(.venv/bin/rw)
runs=${RUNS:-runs/replay_nq}
mkdir -p "$runs"
runs=$(cd "$runs" && pwd)
splits=${SPLITS:-$(seq 0 19)}
export JAX_COMPILATION_CACHE_DIR=${JAX_COMPILATION_CACHE_DIR:-$runs/compiled}  # all runs have the same programs
[ -d "$runs/warmstart" ] || "${rw[@]}" warmstart --config configs/replay_nq.py --workdir "$runs/warmstart_run" --config.init.path="$runs/warmstart"
workdirs=()
for split in $splits; do
  workdir=$runs/split_$(printf %02d "$split")
  "${rw[@]}" train --config configs/replay_nq.py --workdir "$workdir" --config.init.path="$runs/warmstart" --config.data.split_seed="$split" "$@"
  workdirs+=("$workdir")
done
"${rw[@]}" report "${workdirs[@]}"
