#!/usr/bin/env bash
# Runs a command, and again when it ends in a way that a start anew mends: exit codes 75 (a step hung) and 76 (another process of
# the run is gone), or a signal that nobody sent through this script. Training then goes on from its last checkpoint.
set -euo pipefail

usage() {
  cat <<'END'
usage: bash scripts/keep_running.sh [OPTION]... COMMAND [ARGUMENT]...

Runs COMMAND and passes its exit code on. It is run again after 75, 76 and death by a signal, at most --restarts times;
never after 0, 2 (bad input: it would fail again) or another error. SIGTERM and SIGINT are handed to COMMAND, which may take
its time to save; afterwards nothing is run again.

  --restarts=N          so many starts anew at most (default: 10)
  --wait=SECONDS        before a start anew, so that the other processes of the run have ended too (default: 10)
  --stopped_file=FILE   MODEL_DIR/STOPPED, which a training that was asked to stop leaves while it exits with 0; one that is
                        older than this call says nothing
  --stopped_code=CODE   the exit code instead of 0 where COMMAND was asked to stop, by a signal to this script or as
                        --stopped_file says: for schedulers that take 0 for the end of the work (default: 0)
  --help                this text

example: bash scripts/keep_running.sh --restarts=5 python -m retrieval_jax.train --gin_file=run.gin
END
}

fail() {
  echo "error: keep_running.sh: $1" >&2
  exit 2
}

number() { # number OPTION VALUE: refuses anything but digits
  [[ "$2" =~ ^[0-9]+$ ]] || fail "$1=$2: expected a whole number."
}

restarts=10
pause=10
stopped_file=
stopped_code=0
while (($#)); do
  case "$1" in
    --restarts=*) restarts="${1#*=}" ;;
    --wait=*) pause="${1#*=}" ;;
    --stopped_file=*) stopped_file="${1#*=}" ;;
    --stopped_code=*) stopped_code="${1#*=}" ;;
    --help | -h)
      usage
      exit 0
      ;;
    --) shift && break ;;
    --restarts | --wait | --stopped_file | --stopped_code)
      fail "$1 needs its value after an equals sign: $1=${2:-VALUE}."
      ;;
    -*) fail "unknown option $1; --help lists what there is." ;;
    *) break ;;
  esac
  shift
done
(($#)) || fail "a COMMAND is missing; --help shows how to call it."
number --restarts "$restarts"
number --wait "$pause"
number --stopped_code "$stopped_code"
((stopped_code < 256)) || fail "--stopped_code=$stopped_code: expected at most 255, what an exit code can be."

child=
asked=false
began="$(mktemp)" # to tell a file that is written from now on
trap 'rm -f "$began"' EXIT
interrupted=false
# A command in the background ignores SIGINT where a shell script starts it, so that SIGTERM stands for both.
# shellcheck disable=SC2329  # the trap calls it
pass_on() {
  interrupted=true
  # Ctrl-C comes from the terminal and again from whoever hands it on, and a second SIGTERM would end a training unsaved.
  ! $asked || return 0
  asked=true
  [ -z "$child" ] || kill -TERM "$child" 2>/dev/null || true
}
trap pass_on TERM INT

run_once() { # run_once COMMAND...: sets code
  "$@" &
  child=$!
  interrupted=true
  while $interrupted; do # a trapped signal ends `wait`, not the command
    interrupted=false
    code=0
    wait "$child" || code=$?
  done
  child=
}

again() { # again CODE: whether a start anew can mend it
  (($1 == 75 || $1 == 76 || $1 > 128)) && [ "$1" != 130 ]
}

for ((start = 0; ; start++)); do
  run_once "$@"
  if $asked || ! again "$code" || ((start >= restarts)); then
    break
  fi
  echo "keep_running.sh: exit code $code; start $((start + 1)) of at most $restarts anew in $pause s" >&2
  # In the background, so that a signal ends the pause.
  sleep "$pause" &
  wait $! || true
  if $asked; then
    break
  fi
done
if again "$code" && ! $asked; then
  echo "keep_running.sh: exit code $code after $restarts starts anew: giving up" >&2
elif ((code != 0)) || $asked; then
  echo "keep_running.sh: exit code $code" >&2
fi
# Not older, rather than newer: the times of files that are made within some milliseconds are the same.
if ((code == 0)) && { $asked || { [ -n "$stopped_file" ] && [ -e "$stopped_file" ] && ! [ "$stopped_file" -ot "$began" ]; }; }; then
  code=$stopped_code
fi
exit "$code"
