#!/usr/bin/env bash
# What tpu_pod.sh calls on every worker of a TPU: install the code that was copied there, run a program, stop it, show its output.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
  cat <<'END'
usage: bash scripts/tpu_worker.sh install EXTRAS | run RESTARTS PROGRAM [ARGUMENT]... | start RESTARTS PROGRAM [ARGUMENT]... |
       stop | log | --help

On a worker of a TPU, in the copied checkout: `install` makes .venv, `run` runs a program of retrieval_jax and waits for it, `start`
leaves it running when the connection ends (its output in run.log), `stop` sends it SIGTERM and waits until it has saved,
`log` prints run.log. scripts/tpu_pod.sh calls this.
END
}

fail() {
  echo "error: tpu_worker.sh on $(hostname): $1" >&2
  exit 2
}

find_python() {
  local candidate
  for candidate in python3.12 python3.13 python3.11 python3; do
    if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
}

install() { # install EXTRAS
  local python
  if [ ! -x .venv/bin/python ]; then
    python="$(find_python)"
    if [ -n "$python" ]; then
      "$python" -m venv .venv
    else # the images of TPU VMs may have an older Python: uv brings its own
      python3 -m pip install --quiet --user uv
      python3 -m uv venv --quiet --seed --python 3.12 .venv
    fi
  fi
  .venv/bin/python -m pip install --quiet --disable-pip-version-check -e ".[$1]" -c constraints.txt
  echo "$(hostname): $(.venv/bin/python --version), jax $(.venv/bin/python -c 'from importlib import metadata; print(metadata.version("jax"))')"
}

is_running() {
  [ -f run.pid ] && kill -0 "$(cat run.pid)" 2>/dev/null
}

run() { # run RESTARTS PROGRAM ARGUMENT...
  local restarts="$1" program="$2"
  shift 2
  [ -x .venv/bin/python ] || fail "nothing is installed here: run tpu_pod.sh install first."
  echo $$ >run.pid # exec keeps the number
  exec bash scripts/keep_running.sh --restarts="$restarts" --wait=20 .venv/bin/python -m "retrieval_jax.$program" "$@"
}

start() { # start RESTARTS PROGRAM ARGUMENT...
  ! is_running || fail "process $(cat run.pid) is running here: tpu_pod.sh stop ends it."
  [ -x .venv/bin/python ] || fail "nothing is installed here: run tpu_pod.sh install first."
  # A session of its own outlives the connection.
  nohup setsid bash scripts/tpu_worker.sh run "$@" >run.log 2>&1 </dev/null &
  echo "$(hostname): started; tpu_pod.sh logs shows its output"
}

stop() {
  is_running || { echo "$(hostname): nothing is running" && return; }
  kill -TERM "$(cat run.pid)"
  while is_running; do
    sleep 0.5
  done
  echo "$(hostname): $(tail -n 1 run.log)"
}

log() {
  [ -f run.log ] || fail "nothing was started here."
  cat run.log
  if is_running; then
    echo "--- $(hostname): still running"
  else
    echo "--- $(hostname): ended"
  fi
}

case "${1:-}" in
  install | run | start | stop | log) "$@" ;;
  --help | -h) usage ;;
  *) fail "expected install, run, start, stop or log; --help shows how to call it." ;;
esac
