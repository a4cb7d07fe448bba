#!/usr/bin/env bash
# Runs a program of retrieval_jax on all GPUs of this machine: in one process, or in several that are one run.
set -euo pipefail

usage() {
  cat <<'END'
usage: bash scripts/multi_gpu.sh [OPTION]... PROGRAM [ARGUMENT]...

PROGRAM is one of retrieval_jax (train, eval, encode, search, mine, ...) or a Python file; ARGUMENTs go to it.

  --processes=N     so many processes, each with its share of the GPUs; the GPUs' number for one process a GPU (default: 1,
                    which has all GPUs and is the simplest)
  --gpus=0,2,5      these GPUs alone, by number or UUID (default: CUDA_VISIBLE_DEVICES, else all that nvidia-smi lists)
  --platform=cpu    run on the CPU instead, to try things out: each process has --devices fake devices
  --devices=N       with --platform=cpu: fake devices of each process (default: 1)
  --port=PORT       of 127.0.0.1, where process 0 waits for the others (default: a free one)
  --logs=DIR        where the output of processes 1, 2, ... goes, as process_<i>.log (default: a new folder in TMPDIR)
  --restarts=N      start all again after exit codes 75 and 76 and after a death by a signal, N times at most (default: 0)
  --grace=SECONDS   how long the other processes may take to end by themselves when one has ended (default: 15; after exit
                    code 0 ten times as long)
  --dry-run         print the commands and run nothing
  --help            this text

The output of process 0 is shown. When one process ends, the others end too, and the exit code is that of the first one that
ended (another's, if that was 0); 76 stands for a death by a signal that another process has noticed. SIGTERM and Ctrl-C go to all processes as SIGTERM:
a training finishes its step, saves and exits with 0. The Python is the one that PYTHON names (default: python).

examples:
  bash scripts/multi_gpu.sh --processes=8 --restarts=3 train --gin_file=run.gin --gin.MODEL_DIR=/tmp/run
  bash scripts/multi_gpu.sh --platform=cpu --processes=2 --devices=4 train --gin_file=run.gin --gin.MODEL_DIR=/tmp/run
END
}

fail() {
  echo "error: multi_gpu.sh: $1" >&2
  exit 2
}

number() { # number OPTION VALUE LEAST
  if ! [[ "$2" =~ ^[0-9]+$ ]] || (($2 < $3)); then
    fail "$1=$2: expected a whole number of at least $3."
  fi
}

processes=1 gpus='' platform='' devices='' port='' logs='' restarts=0 grace=15 dry_run=false
again=() # the options of a start under keep_running.sh
while (($#)); do
  case "$1" in
    --processes=*) processes="${1#*=}" ;;
    --gpus=*) gpus="${1#*=}" ;;
    --platform=*) platform="${1#*=}" ;;
    --devices=*) devices="${1#*=}" ;;
    --port=*) port="${1#*=}" ;;
    --logs=*) logs="${1#*=}" ;;
    --restarts=*) restarts="${1#*=}" ;;
    --grace=*) grace="${1#*=}" ;;
    --dry-run) dry_run=true ;;
    --help | -h)
      usage
      exit 0
      ;;
    --processes | --gpus | --platform | --devices | --port | --logs | --restarts | --grace)
      fail "$1 needs its value after an equals sign: $1=${2:-VALUE}."
      ;;
    -*) fail "unknown option $1 before the PROGRAM; --help lists what there is." ;;
    *) break ;;
  esac
  [[ "$1" == --restarts=* ]] || again+=("$1")
  shift
done
(($#)) || fail "a PROGRAM is missing, such as train; --help shows how to call it."
number --processes "$processes" 1
number --restarts "$restarts" 0
number --grace "$grace" 0
[ -z "$port" ] || number --port "$port" 1
case "$platform" in
  cpu) [ -z "$gpus" ] || fail "--gpus=$gpus with --platform=cpu: leave one of them out." ;;
  '' | gpu | cuda) [ -z "$devices" ] || fail "--devices=$devices: fake devices need --platform=cpu; GPUs are named by --gpus." ;;
  *) fail "--platform=$platform: expected cpu, or nothing for GPUs." ;;
esac
devices="${devices:-1}"
number --devices "$devices" 1

if ((restarts > 0)) && ! $dry_run; then
  here="$(dirname "${BASH_SOURCE[0]}")"
  exec bash "$here/keep_running.sh" --restarts="$restarts" --wait=2 bash "$here/multi_gpu.sh" "${again[@]}" "$@"
fi

python="${PYTHON:-python}"
$dry_run || command -v "$python" >/dev/null || fail "no $python on PATH: activate the environment, or set PYTHON."
program="$1"
shift
if [[ "$program" != *.py ]]; then
  [ -f "$(dirname "${BASH_SOURCE[0]}")/../retrieval_jax/$program.py" ] || fail "no program is called $program; expected train, eval, encode, mine or another one of retrieval_jax."
  case "$program" in
    train | eval | encode | mine) ;;
    *) ((processes == 1)) || fail "$program runs in one process: leave out --processes=$processes." ;;
  esac
fi
case "$program" in
  *.py) command=("$python" "$program" "$@") ;;
  *) command=("$python" -m "retrieval_jax.$program" "$@") ;;
esac

cards=()
if [ "$platform" != cpu ]; then
  gpus="${gpus:-${CUDA_VISIBLE_DEVICES:-}}"
  if [ -z "$gpus" ]; then
    command -v nvidia-smi >/dev/null || fail "no nvidia-smi here, so the GPUs are unknown: name them with --gpus=0,1, or try it with --platform=cpu."
    gpus="$(nvidia-smi --query-gpu=index --format=csv,noheader | paste -sd, -)"
  fi
  IFS=, read -r -a cards <<<"$gpus"
  ((${#cards[@]} % processes == 0)) || fail "--processes=$processes does not divide the ${#cards[@]} GPUs ($gpus)."
fi

environment_of() { # environment_of PROCESS: sets environment, what `env` is given
  if [ "$platform" = cpu ]; then
    environment=(JAX_PLATFORMS=cpu "JAX_NUM_CPU_DEVICES=$devices" CUDA_VISIBLE_DEVICES=)
  else
    local each=$((${#cards[@]} / processes)) own
    own="$(IFS=, && echo "${cards[*]:$(($1 * each)):each}")"
    environment=("CUDA_VISIBLE_DEVICES=$own")
  fi
}

flags_of() { # flags_of PROCESS: sets flags, what the program is told about the processes
  flags=()
  if ((processes > 1)); then
    flags=("--coordinator_address=127.0.0.1:$port" "--num_processes=$processes" "--process_id=$1")
  fi
}

if ((processes > 1)) && [ -z "$port" ]; then
  if $dry_run; then
    port=PORT
  else
    port="$("$python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')"
  fi
fi

if $dry_run; then
  for ((i = 0; i < processes; i++)); do
    environment_of "$i"
    flags_of "$i"
    printf '%q ' env "${environment[@]}" "${command[@]}" ${flags[@]+"${flags[@]}"}
    echo
  done
  exit 0
fi

if ((processes > 1)); then
  logs="${logs:-$(mktemp -d "${TMPDIR:-/tmp}/multi_gpu.XXXXXX")}"
  mkdir -p "$logs"
  echo "multi_gpu.sh: process 0 of $processes is shown; the others write to $logs/process_<i>.log" >&2
fi

pids=()
codes=()
first=
asked=false
# shellcheck disable=SC2329  # the trap calls it
pass_on() {
  # Ctrl-C comes from the terminal and again from keep_running.sh, and a second SIGTERM would end a training unsaved.
  ! $asked || return 0
  asked=true
  kill -TERM "${pids[@]}" 2>/dev/null || true
}
trap pass_on TERM INT

for ((i = 0; i < processes; i++)); do
  environment_of "$i"
  flags_of "$i"
  if ((i == 0)); then
    env "${environment[@]}" "${command[@]}" ${flags[@]+"${flags[@]}"} &
  else
    env "${environment[@]}" "${command[@]}" "${flags[@]}" >>"$logs/process_$i.log" 2>&1 &
  fi
  pids+=($!)
done

# Polls, because `wait -n -p`, which would say who ended, needs a newer bash than many clusters have.
ended() { # ended PROCESS: whether it has; remembers its exit code
  [ -n "${codes[$1]:-}" ] && return 0
  kill -0 "${pids[$1]}" 2>/dev/null && return 1
  local code=0
  wait "${pids[$1]}" || code=$?
  codes[$1]=$code
  first="${first:-$1}"
}

running() { # running: how many processes have not ended
  local i count=0
  for ((i = 0; i < processes; i++)); do
    ended "$i" || count=$((count + 1))
  done
  left=$count
}

end_by() { # end_by SECOND: waits until all have ended or SECONDS has come there
  running
  while ((left > 0 && SECONDS < $1)); do
    sleep 0.2 || true
    running
  done
}

left=$processes
while ((left == processes)); do
  sleep 0.2 || true
  running
done
if $asked; then
  until ((left == 0)); do # whoever asked them to stop gives them the time to save
    end_by $((SECONDS + 3600))
  done
else
  patience=$grace
  ((codes[first] == 0)) && patience=$((grace * 10))
  end_by $((SECONDS + patience))
fi
for signal in TERM KILL; do
  if ((left > 0)); then
    echo "multi_gpu.sh: process $first ended with ${codes[$first]}; SIG$signal to the $left that are left" >&2
    for ((i = 0; i < processes; i++)); do
      ended "$i" || kill "-$signal" "${pids[$i]}" 2>/dev/null || true
    done
    end_by $((SECONDS + 5))
  fi
done

code="${codes[$first]}"
for other in "${codes[@]}"; do
  if ((code == 0)) || { ((code > 128 && other == 76)) && ! $asked; }; then
    code=$other
  fi
done
if ((code != 0 && processes > 1)); then
  echo "multi_gpu.sh: exit codes of the processes: ${codes[*]}; the first that ended was process $first" >&2
  if ((first > 0)); then
    echo "--- the end of $logs/process_$first.log" >&2
    tail -n 20 "$logs/process_$first.log" >&2
  fi
fi
exit "$code"
