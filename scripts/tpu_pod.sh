#!/usr/bin/env bash
# Runs a program of retrieval_jax on all workers of a TPU VM, or of several slices (a queued resource), by gcloud.
set -euo pipefail

usage() {
  cat <<'END'
usage: bash scripts/tpu_pod.sh COMMAND --name=NAME --zone=ZONE [OPTION]... [PROGRAM [ARGUMENT]...]

commands, in the order of use:
  create     ask for the TPU: needs --type, and --version unless the type has a usual one
  status     show it; a queued resource is ready when its state is ACTIVE
  copy       copy this checkout (and what --include names) to ~/retrieval_jax of every worker
  install    make ~/retrieval_jax/.venv there, with the extras --extras (default: tpu)
  run        run PROGRAM (train, eval, encode, ...) with its ARGUMENTs on every worker and wait; --background: leave it running
  logs       show what the workers' program wrote (--background), or with --output=DIR fetch a file of each worker
  stop       send the program SIGTERM: a training saves and ends; the same `run` goes on from there
  delete     delete the TPU and what is on its disks
  up         create, copy, install, in one call (a TPU VM; a queued resource has to become ACTIVE first)

options:
  --name=NAME --zone=ZONE   of the TPU; --project=PROJECT, if it is not gcloud's own
  --type=TYPE               accelerator type, such as v5litepod-16, v5p-128, v6e-256
  --version=VERSION         software of the TPU VM (default: the one for v2 to v6e that the type's name asks for)
  --slices=N                N slices of that type, as one queued resource (Multislice)
  --queued                  a queued resource also for one slice
  --spot                    cheaper, and taken away at any time with a notice
  --create_arg=ARG          one more argument of gcloud's create, such as --network=NAME; repeatable
  --include=PATH            copy this file or folder too, to ~/retrieval_jax/<its name>; repeatable
  --extras=NAMES            extras of setup.py to install, such as tpu,gcs
  --restarts=N              start the program again after exit codes 75 and 76 and after a death by a signal (default: 10)
  --background              with run: do not wait
  --output=DIR              with logs: the folder
  --dry-run                 print the exact commands and run nothing; needs no gcloud
  --help                    this text

ARGUMENTs reach the program as they are here, quotes, spaces and parentheses too. On TPU VMs jax finds the workers by
itself, so the program needs no flags for that. MODEL_DIR must lie where all workers see it.

example:
  tpu="--name=pod --zone=us-west4-a"
  bash scripts/tpu_pod.sh up $tpu --type=v5litepod-16 --include=run.gin
  bash scripts/tpu_pod.sh run $tpu --background train --gin_file=run.gin --gin.MODEL_DIR=/mnt/shared/run
END
}

fail() {
  echo "error: tpu_pod.sh: $1" >&2
  exit 2
}

quoted() { # quoted WORD...: the words as one line of shell, easy to read
  local word separator=
  for word in "$@"; do
    printf '%s' "$separator"
    separator=' '
    if [[ "$word" =~ ^(--[A-Za-z_.-]+=)(.+)$ ]]; then
      printf '%s' "${BASH_REMATCH[1]}"
      word="${BASH_REMATCH[2]}"
    fi
    if [[ "$word" =~ ^[A-Za-z0-9_@%+=:,./-]+$ ]]; then
      printf '%s' "$word"
    else
      printf "'%s'" "${word//\'/\'\\\'\'}"
    fi
  done
}

call() { # call WORD...: runs it, or prints it under --dry-run
  if $dry_run; then
    quoted "$@"
    echo
  else
    "$@"
  fi
}

name='' zone='' project='' type='' version='' slices=1 queued=false spot=false extras=tpu restarts=10
background=false output='' dry_run=false command=''
create_args=() includes=()
while (($#)); do
  case "$1" in
    --name=*) name="${1#*=}" ;;
    --zone=*) zone="${1#*=}" ;;
    --project=*) project="${1#*=}" ;;
    --type=*) type="${1#*=}" ;;
    --version=*) version="${1#*=}" ;;
    --slices=*) slices="${1#*=}" ;;
    --queued) queued=true ;;
    --spot) spot=true ;;
    --create_arg=*) create_args+=("${1#*=}") ;;
    --include=*) includes+=("${1#*=}") ;;
    --extras=*) extras="${1#*=}" ;;
    --restarts=*) restarts="${1#*=}" ;;
    --background) background=true ;;
    --output=*) output="${1#*=}" ;;
    --dry-run) dry_run=true ;;
    --help | -h)
      usage
      exit 0
      ;;
    -*) fail "unknown option $1; --help lists what there is. Options of the program follow its name." ;;
    *)
      if [ -z "$command" ]; then
        command="$1"
      else
        break
      fi
      ;;
  esac
  shift
done

case "$command" in
  create | status | copy | install | run | logs | stop | delete | up) ;;
  '') fail "a command is missing: create, status, copy, install, run, logs, stop, delete or up." ;;
  *) fail "no command is called $command; expected create, status, copy, install, run, logs, stop, delete or up." ;;
esac
[ -n "$name" ] || fail "--name=NAME is missing."
[ -n "$zone" ] || fail "--zone=ZONE is missing, such as --zone=us-west4-a."
[[ "$slices" =~ ^[1-9][0-9]*$ ]] || fail "--slices=$slices: expected a whole number of at least 1."
[[ "$restarts" =~ ^[0-9]+$ ]] || fail "--restarts=$restarts: expected a whole number."
[ "$command" = run ] || (($# == 0)) || fail "$command takes no PROGRAM: $*"
[ "$command" != run ] || (($#)) || fail "a PROGRAM is missing after the options, such as train --gin_file=run.gin."
# Whatever can be wrong is found before a TPU is asked for, which costs money.
for path in ${includes[@]+"${includes[@]}"}; do
  [ -e "$path" ] || fail "--include=$path: no such file."
done
if [ "$command" = run ] && [[ "$1" != *.py ]]; then
  [ -f "$(dirname "${BASH_SOURCE[0]}")/../retrieval_jax/$1.py" ] || fail "no program is called $1; expected train, eval, encode, mine or another one of retrieval_jax."
fi
if ((slices > 1)); then
  queued=true
fi
$dry_run || command -v gcloud >/dev/null || fail "gcloud is not installed here; --dry-run prints the commands without it."

if $queued; then
  tpu=(gcloud compute tpus queued-resources)
  everywhere=(--node=all --worker=all)
else
  tpu=(gcloud compute tpus tpu-vm)
  everywhere=(--worker=all)
fi
place=(--zone="$zone")
[ -z "$project" ] || place+=(--project="$project")

usual_version() { # the software that Google's pages name for a type
  case "$type" in
    v2-* | v3-* | v4-*) version='tpu-ubuntu2204-base' ;;
    v5litepod-*) version=v2-alpha-tpuv5-lite ;;
    v5p-*) version=v2-alpha-tpuv5 ;;
    v6e-*) version=v2-alpha-tpuv6e ;;
    tpu7x*) fail "--type=$type is not rented as a TPU VM: use GKE (scripts/gke_jobset.yaml)." ;;
    *) fail "--type=$type: no usual software is known for it; name one with --version." ;;
  esac
}

create() {
  local arguments=(--accelerator-type="$type")
  [ -n "$type" ] || fail "--type=TYPE is missing, such as --type=v5litepod-16."
  [ -n "$version" ] || usual_version
  if ! $queued; then
    arguments+=(--version="$version")
  else
    arguments+=(--runtime-version="$version")
    if ((slices > 1)); then
      arguments+=(--node-count="$slices" --node-prefix="$name")
    else
      arguments+=(--node-id="$name")
    fi
  fi
  if $spot; then
    arguments+=(--spot)
  fi
  call "${tpu[@]}" create "$name" "${place[@]}" "${arguments[@]}" ${create_args[@]+"${create_args[@]}"}
  if $queued && ! $dry_run; then
    echo "wait until \`tpu_pod.sh status\` says ACTIVE before you copy" >&2
  fi
}

on_workers() { # on_workers SHELL_LINE [ARGUMENT OF gcloud]...: runs it on every worker
  local line="$1"
  shift
  call "${tpu[@]}" ssh "$name" "${place[@]}" "${everywhere[@]}" ${@+"$@"} --command="$line"
}

worker() { # worker WORD...: the line that calls tpu_worker.sh there
  echo "bash retrieval_jax/scripts/tpu_worker.sh $(quoted "$@")"
}

copy() {
  local root archive path entries=(setup.py pyproject.toml constraints.txt README.md retrieval_jax configs tasks scripts)
  root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
  archive=/tmp/retrieval_jax.tgz
  local pack=(tar -czf "$archive" --exclude=__pycache__ -C "$root" "${entries[@]}")
  for path in ${includes[@]+"${includes[@]}"}; do
    pack+=(-C "$(cd "$(dirname "$path")" && pwd)" "$(basename "$path")")
  done
  if ! $dry_run; then # another user's file may lie there
    archive="$(mktemp -d)/retrieval_jax.tgz"
    pack[2]="$archive"
  fi
  call "${pack[@]}"
  call "${tpu[@]}" scp "$archive" "$name:retrieval_jax.tgz" "${place[@]}" "${everywhere[@]}"
  # What was deleted here goes there too; .venv, the logs and what was trained stay.
  on_workers "mkdir -p retrieval_jax && cd retrieval_jax && rm -rf $(quoted "${entries[@]}") && tar -xzf ../retrieval_jax.tgz"
  $dry_run || rm -r "$(dirname "$archive")"
}

logs() {
  if [ -z "$output" ]; then
    on_workers "$(worker log)"
  else
    call mkdir -p "$output"
    on_workers "$(worker log)" --output-directory="$output"
  fi
}

case "$command" in
  create) create ;;
  status) call "${tpu[@]}" describe "$name" "${place[@]}" ;;
  copy) copy ;;
  install) on_workers "$(worker install "$extras")" ;;
  run)
    if $background; then
      on_workers "$(worker start "$restarts" "$@")"
    else
      on_workers "$(worker run "$restarts" "$@")"
    fi
    ;;
  logs) logs ;;
  stop) on_workers "$(worker stop)" ;;
  delete)
    if $queued; then
      call "${tpu[@]}" delete "$name" "${place[@]}" --force --quiet
    else
      call "${tpu[@]}" delete "$name" "${place[@]}" --quiet
    fi
    ;;
  up)
    ! $queued || fail "a queued resource is not there at once: create, wait until status says ACTIVE, then copy and install."
    create
    copy
    on_workers "$(worker install "$extras")"
    ;;
esac
