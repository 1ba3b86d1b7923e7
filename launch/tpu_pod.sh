#!/usr/bin/env bash
# Trains on a Cloud TPU pod, one process a host. From your machine, in a checkout whose last commit shall run:
#   TPU=my-pod ZONE=us-east5-a BUCKET=my-bucket KEYS=keys.env bash launch/tpu_pod.sh --config configs/qwen3_4b.py \
#     --config.model.attention=splash --config.mesh.fsdp=2 --config.mesh.tensor=4 ... # as the config says for the pod
# It copies the commit to every host, installs it there (Ubuntu 22.04 has Python 3.11), mounts the bucket as the hosts'
# runs/, starts `rw train` with the arguments on all of them and shows the log of the first. Ctrl-C ends the watching,
# not the run. The same command watches again; after the pod was lost and made anew, it goes on with the run.
# `touch` a file STOP in the run's directory of the bucket to end it. The bucket has weights and questions, too:
# `--config.init.path=runs/Qwen3-4B-Instruct-2507` finds the former, and its data/ is the hosts' data/.
# KEYS is a file of lines like OPENROUTER_API_KEY=...; leave it out where Workers need no key. PROJECT is optional, too.
set -euo pipefail

if [ "${1:-}" != --on-host ]; then
  cd "$(dirname "$0")/.."
  : "${TPU:?the name of the pod}" "${BUCKET:?a bucket for the run, in the region of the pod}"
  at=(--zone "${ZONE:?the zone of the pod}" ${PROJECT:+--project "$PROJECT"})
  ssh_to() { gcloud compute tpus tpu-vm ssh "$TPU" "${at[@]}" --worker="$1" --command="$2"; }
  copy() { gcloud compute tpus tpu-vm scp "$1" "$TPU:$2" "${at[@]}" --worker=all; }
  archive=$(mktemp --suffix=.tar.gz)
  git archive --format=tar.gz -o "$archive" HEAD
  copy "$archive" rw_new.tar.gz
  rm "$archive"
  if [ -n "${KEYS:-}" ]; then
    ssh_to all "touch keys.env && chmod 600 keys.env" # before there is anything to read in it
    copy "$KEYS" keys.env
  fi
  start="BUCKET=$BUCKET setsid nohup bash rw/launch/tpu_pod.sh --on-host$(printf ' %q' "$@") >>rw.log 2>&1 </dev/null"
  # Where it runs already, its files are left alone.
  ssh_to all "flock -n rw.lock true || exit 0; mkdir -p rw && tar -xzf rw_new.tar.gz -C rw && { $start & }"
  ssh_to 0 "tail -n 40 -F rw.log"
  exit
fi

shift
cd ~
exec 9>rw.lock
flock -n 9 || exit 0
if [ -r keys.env ]; then
  set -a
  # shellcheck disable=SC1091
  . ./keys.env
  set +a
fi
{ command -v python3.11 && command -v bwrap; } >/dev/null || sudo apt-get install -y python3.11-venv bubblewrap
[ -x .rw/bin/python ] || python3.11 -m venv .rw
.rw/bin/python -m pip install --quiet --disable-pip-version-check -e 'rw[tpu]'
export JAX_COMPILATION_CACHE_DIR=${JAX_COMPILATION_CACHE_DIR:-$HOME/compiled}
cd rw
mkdir -p runs
# What one host writes another must see at once: nothing is answered from a cache.
mountpoint -q runs || gcsfuse --implicit-dirs --stat-cache-ttl=0 --type-cache-ttl=0 "$BUCKET" runs
ln -sfn runs/data data
while true; do
  code=0
  ~/.rw/bin/rw train --processes auto "$@" || code=$?
  echo "rw train ended with $code"
  # 143: stopped by SIGTERM. 8: another process was lost. No other end calls for a restart.
  case $code in 143 | 8) sleep "${RW_RESTART_S:-15}" ;; *) exit "$code" ;; esac
done
