"""From the command line to a call: the only file that knows gin and flags. Programs are plain functions elsewhere."""

import argparse
import ast
import errno
import importlib.util
import json
import os
import pathlib
import platform
import subprocess
import sys
from collections.abc import Sequence
from typing import NamedTuple

from retrieval_jax import configuration, exit_codes
from retrieval_jax.bag_section import bag_section
from retrieval_jax.config_changes import changed_settings, other_settings
from retrieval_jax.errors import UserError
from retrieval_jax.model_section import FILE, ROOTS, START, keep_vocabularies
from retrieval_jax.paths import atomic_write, cache_dir, output_dir

REFUSED = frozenset((errno.EACCES, errno.EPERM, errno.ENOSPC, errno.EDQUOT, errno.EROFS))
CONFIGS = "retrieval_jax.configs"
# How texts are written before they are tokenised: the model's, and never another one afterwards.
TEXT_MACROS = frozenset(("QUERY_PREFIX", "PASSAGE_PREFIX", "PASSAGE_TEMPLATE"))


class Program(NamedTuple):
  """function: module-level name in retrieval_jax.<program>. reads_model: takes the model section from MODEL_DIR. distributed:
  several processes can run it together."""

  function: str
  reads_model: bool
  example: str
  takes_queries: bool = False
  compares: bool = False
  plans: bool = False
  distributed: bool = False


PROGRAMS = {
  "train": Program(
    "train",
    False,
    "--gin_file=experiments/pydocs_minilm_samtone.gin --gin.MODEL_DIR=/tmp/run",
    distributed=True,
  ),
  "eval": Program(
    "evaluate", True, "--gin_file=data/pydocs.gin --gin.MODEL_DIR=/tmp/run", compares=True, distributed=True
  ),
  "encode": Program("encode", True, "--gin_file=data/pydocs.gin --gin.MODEL_DIR=/tmp/run", distributed=True),
  "search": Program(
    "search", True, '--gin_file=data/pydocs.gin --gin.MODEL_DIR=/tmp/run "sort an array"', True
  ),
  "mine": Program(
    "mine",
    True,
    "--gin_file=data/pydocs.gin --gin.MODEL_DIR=/tmp/run --gin.OUTPUT_PATH=/tmp/negatives.tsv",
    distributed=True,
  ),
  "fuse": Program(
    "fuse",
    True,
    "--gin_file=data/extreme.gin --gin.DATA_PATH=lf_titles --gin.HELD_OUT=0.05 --gin.MODEL_DIR=/tmp/run",
  ),
  "train_classifiers": Program(
    "train_classifiers",
    True,
    "--gin_file=data/pydocs.gin --gin.MODEL_DIR=/tmp/run --gin.TRAIN_STEPS=2000",
  ),
  "plan": Program(
    "plan",
    False,
    "--topology=v5e:4x4 --gin_file=models/t5_1_1_base.gin --gin_file=losses/samtone.gin --gin.BATCH_SIZE=512",
    plans=True,
  ),
}


def main(program: str, argv: Sequence[str] | None = None) -> None:
  """Runs a program; a UserError becomes one message on stderr and exit code 2."""
  try:
    run(program, sys.argv[1:] if argv is None else argv)
  except KeyboardInterrupt:
    print("interrupted", file=sys.stderr)
    _end(exit_codes.INTERRUPTED)
  except UserError as error:
    message = str(error).split("\n  In call to configurable")[0]
    print(f"error: {message}", file=sys.stderr)
    _end(exit_codes.BAD_INPUT)
  except OSError as error:
    cause = _cause(error)
    if cause.errno not in REFUSED:
      _end_of_several(error)
      raise
    print(
      f"error: {cause.filename}: {cause.strerror}. Make room there, correct the rights, or name another folder.",
      file=sys.stderr,
    )
    _end(exit_codes.BAD_INPUT)
  except Exception as error:
    _end_of_several(error)
    raise
  if _is_of_several():
    _end(exit_codes.DONE)


def _end(code: int) -> None:
  """Ends the program; of several processes at once, since jax's own end would wait for all of them."""
  if not _is_of_several():
    sys.exit(code)
  from retrieval_jax import processes

  processes.leave(code)


def _end_of_several(error: Exception) -> None:
  """Ends this process of several by its error; returns where there is one process, which may raise it."""
  if not _is_of_several():
    return
  from retrieval_jax import processes

  processes.leave_for(error)


def _is_of_several() -> bool:
  if "jax" not in sys.modules:
    return False
  from retrieval_jax import processes

  return processes.are_several()


def _cause(error: OSError) -> OSError:
  """Returns the error that the system reported: gin raises a copy without its number where it went through a configurable."""
  found: BaseException | None = error
  while found is not None:
    if isinstance(found, OSError) and found.errno is not None:
      return found
    found = found.__context__
  return error


def run(program: str, argv: Sequence[str]) -> object:
  """Parses flags and gin files, checks that nothing is missing or left over, and calls the program."""
  flags, bindings = parse_flags(program, argv)
  spec = PROGRAMS[program]
  if spec.compares and (flags.compare or flags.qrels):
    return _compare(flags, bindings)
  import gin

  search_paths = [*flags.gin_search_paths.split(","), str(configs_dir())]
  files = configuration.collect([f"runs/{program}.gin"], search_paths)
  user_files = configuration.collect(flags.gin_file, search_paths)
  if spec.reads_model:
    files = [*files, *_model_section(user_files, bindings)]
  files = [*files, *user_files]
  prepare_jax()
  if spec.plans:
    from retrieval_jax import topologies

    topologies.prepare(flags.topology)
  configuration.parse(files, bindings, search_paths)
  try:
    configuration.check(f"{program}.{spec.function}", files, bindings)
  except UserError as error:
    hint = _no_model(user_files, bindings) if spec.reads_model and "MODEL is not set" in str(error) else None
    raise UserError(f"{hint}\n{error}" if hint else str(error)) from None
  configuration.finalize()
  configured = gin.get_configurable(f"{program}.{spec.function}")
  _join_processes(spec, flags)

  def on_start(folder: pathlib.Path) -> None:
    write = write_record if spec.reads_model else write_run_files
    write(folder, [program, *argv])

  if spec.takes_queries:
    return configured(flags.query, on_start=on_start)
  if spec.plans:
    return configured(topology=flags.topology, json_path=flags.json)
  return configured(on_start=on_start)


def parse_flags(program: str, argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
  """Returns (flags, gin bindings); `--gin.NAME=VALUE` is a binding, VALUE a Python literal, @reference or bare string."""
  spec = PROGRAMS[program]
  parser = argparse.ArgumentParser(
    prog=f"python -m retrieval_jax.{program}",
    description=_summary(program),
    epilog=f"example: python -m retrieval_jax.{program} {spec.example}",
    allow_abbrev=False,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  parser.add_argument(
    "--gin_file", action="append", default=[], metavar="FILE", help="gin file, repeatable; later files win"
  )
  parser.add_argument(
    "--gin_search_paths",
    default=".",
    metavar="DIRS",
    help="comma-separated folders that gin files are looked up in, before the shipped ones (default: .)",
  )
  parser.add_argument(
    "--gin.NAME=VALUE",
    dest="_gin",
    action="store_const",
    const=None,
    help="one binding, applied after all files",
  )
  if spec.compares:
    parser.add_argument(
      "--compare",
      nargs=2,
      metavar=("RUN_A", "RUN_B"),
      help="compare two results instead (folders MODEL_DIR/eval/<task>/step_<n>, or run files with --qrels): the "
      "difference of each metric, its confidence interval and a paired test",
    )
    parser.add_argument(
      "--qrels", metavar="FILE", help="judgements that --compare measures two TREC run files by"
    )
  if spec.distributed:
    _add_process_flags(parser)
  if spec.plans:
    parser.add_argument(
      "--topology",
      required=True,
      metavar="NAME",
      help="what to compile for: v4, v5e, v5p, v6e or tpu7x and a shape, such as v5e:4x4, or cpu:8",
    )
    parser.add_argument("--json", metavar="FILE", help="where all numbers are written")
  if spec.takes_queries:
    parser.add_argument("query", nargs="+", help="query text")
  bindings = [_binding(a) for a in argv if a.startswith("--gin.")]
  flags = parser.parse_args([a for a in argv if not a.startswith("--gin.")])
  return flags, bindings


def _add_process_flags(parser: argparse.ArgumentParser) -> None:
  group = parser.add_argument_group(
    "several processes", "found out from SLURM or the TPU's metadata, or given to each process:"
  )
  group.add_argument("--coordinator_address", metavar="HOST:PORT", help="of process 0, a free port there")
  group.add_argument("--num_processes", "--process_count", type=int, metavar="N", help="how many there are")
  group.add_argument(
    "--process_id", "--process_index", type=int, metavar="I", help="which this one is, from 0"
  )
  group.add_argument(
    "--initialization_timeout",
    type=int,
    default=300,
    metavar="S",
    help="seconds to wait for the others (default: 300)",
  )


def _join_processes(spec: Program, flags: argparse.Namespace) -> None:
  """Makes this process one of its run's, if the run has several."""
  if not spec.distributed:
    return
  from retrieval_jax import processes

  processes.start(
    processes.ProcessOptions(
      flags.coordinator_address, flags.num_processes, flags.process_id, flags.initialization_timeout
    ),
    takes_notice=spec.function == "train",
  )
  if processes.are_several():
    _check_same_settings()


def _check_same_settings() -> None:
  """Raises UserError, on every process, if one of them was started with other settings: it would wait for the others, or they
  for it, at another step."""
  import gin

  from retrieval_jax import processes

  own = gin.config_str()
  different = other_settings(processes.agree(own), own)
  if not processes.all_agree(not different):
    said = "\n".join(f"  {line:.200}" for line in different) or "  not this one: see the others' messages"
    raise UserError(
      f"{processes.described()}: the processes of this run have different settings:\n{said}\n"
      "Start all of them with the same files and flags; --process_id alone differs."
    )


def _compare(flags: argparse.Namespace, bindings: Sequence[str]) -> object:
  """Prints the comparison of two runs; needs no model and no gin file."""
  if not flags.compare:
    raise UserError("--qrels goes with --compare RUN_A RUN_B: it measures two run files anew.")
  if flags.gin_file or bindings:
    given = [*flags.gin_file, *bindings][0]
    raise UserError(f"--compare reads two results and nothing else; leave {given} out.")
  from retrieval_jax.comparison import compare, comparison_table

  found = compare(*flags.compare, qrels=flags.qrels)
  print(comparison_table(found, tuple(flags.compare)))
  return found


def _summary(program: str) -> str:
  source = pathlib.Path(__file__).with_name(f"{program}.py").read_text(encoding="utf-8")
  return (ast.get_docstring(ast.parse(source)) or "").splitlines()[0]


def _binding(argument: str) -> str:
  name, separator, value = argument.removeprefix("--gin.").partition("=")
  if not separator or not name:
    raise UserError(f"{argument}: expected --gin.NAME=VALUE, for example --gin.BATCH_SIZE=64.")
  if value.lstrip()[:1] in ("@", "%"):
    return f"{name} = {value.strip()}"
  try:
    ast.literal_eval(value.strip())
  except (SyntaxError, ValueError):
    if value.lstrip()[:1] in ("'", '"', "[", "(", "{"):
      return f"{name} = {value}"  # meant as a literal or as gin's own syntax: gin names what is wrong with it
    return f"{name} = {value!r}"
  return f"{name} = {value}"


def configs_dir() -> pathlib.Path:
  """Returns the folder of the shipped gin files."""
  spec = importlib.util.find_spec(CONFIGS)
  assert spec is not None
  assert spec.submodule_search_locations
  return pathlib.Path(next(iter(spec.submodule_search_locations)))


def _model_section(
  files: Sequence[configuration.GinFile], bindings: Sequence[str]
) -> list[configuration.GinFile]:
  """Returns MODEL_DIR/model.gin when MODEL_DIR was trained here: its architecture need not be repeated."""
  model_dir = configuration.literal_macro("MODEL_DIR", files, bindings)
  if not isinstance(model_dir, str):
    return []
  path = output_dir(model_dir, "MODEL_DIR") / FILE
  if not path.is_file():
    return []
  for name in ("MODEL", "INPUTS"):
    macro = configuration.macros_set(files, bindings).get(name)
    trained = any(path.parent.glob("checkpoint_*"))
    if macro is not None and trained:
      raise UserError(
        f"{name} is set ({macro.where}), but MODEL_DIR was trained and brings its own model ({path}). "
        "Leave the file of models/ out."
      )
  section = configuration.read(path)
  if not {"MODEL", "INPUTS"} <= configuration.macros_set([section], ()).keys():
    raise UserError(
      f"{path} is damaged: it does not define MODEL and INPUTS. Write it anew by resuming the training."
    )
  _check_text(section, files, bindings)
  return [section]


def _check_text(
  section: configuration.GinFile, files: Sequence[configuration.GinFile], bindings: Sequence[str]
) -> None:
  """Raises UserError for a prefix or template other than the one the model reads its texts with."""
  own, given = configuration.macros_set([section], ()), configuration.macros_set(files, bindings)
  for name in sorted(TEXT_MACROS & own.keys() & given.keys()):
    trained, wanted = (
      configuration.literal_macro(name, *where) for where in (([section], ()), (files, bindings))
    )
    if trained != wanted:
      raise UserError(
        f"{name}={wanted!r} ({given[name].where}), but the model of MODEL_DIR reads its texts with {trained!r} "
        f"({own[name].where}): another one gives embeddings that belong to no model. Leave it out, or train with it."
      )


def _no_model(files: Sequence[configuration.GinFile], bindings: Sequence[str]) -> str | None:
  """Returns why MODEL_DIR gives no model, where it was named."""
  model_dir = configuration.literal_macro("MODEL_DIR", files, bindings)
  if not isinstance(model_dir, str):
    return None
  folder = pathlib.Path(model_dir).expanduser()
  if not folder.is_dir():
    return f"MODEL_DIR={model_dir}: no such folder, and no file of models/ is given."
  from retrieval_jax.interop import sources

  try:
    kind = sources.detect(folder)
  except UserError as error:
    return f"MODEL_DIR: {error}"
  return (
    f"MODEL_DIR={model_dir} is a {kind} folder, not one of retrieval_jax: convert it first, with\n"
    f"  python -m retrieval_jax.convert --from={model_dir} --to=..."
  )


def prepare_jax() -> None:
  """Settings that must stand before the first array: a persistent compilation cache, quiet TensorFlow."""
  os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
  from importlib import metadata

  import jax

  if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    # XLA's CPU executables are specific to the machine: one folder per processor and jaxlib.
    machine = f"{platform.node()}-{platform.machine()}-jaxlib-{metadata.version('jaxlib')}"
    jax.config.update("jax_compilation_cache_dir", str(cache_dir() / "xla" / machine))


def write_run_files(folder: pathlib.Path, argv: Sequence[str]) -> None:
  """Writes MODEL_DIR/config.gin (all that was used), model.gin (the model section) and versions.json."""
  import gin

  _report_changes(folder)
  write_record(folder, argv)
  model, inputs = (gin.get_configurable(f"{root}/{configuration.MACRO}")() for root in ROOTS)
  copies = keep_vocabularies(inputs, folder)
  section = bag_section(model, inputs, copies) or configuration.section_str(ROOTS, copies) + START
  with atomic_write(folder / FILE) as file:
    file.write(section)


def _report_changes(folder: pathlib.Path) -> None:
  """Says which settings are others than those of the run before in a folder: a resumed training goes on with the new ones."""
  import gin

  try:
    before = (folder / "config.gin").read_text(encoding="utf-8")
  except (OSError, UnicodeDecodeError):
    return
  for line in changed_settings(before, gin.operative_config_str()):
    print(f"warning: this is not as it was in {folder.name}'s last run: {line:.300}", file=sys.stderr)


def write_record(folder: pathlib.Path, argv: Sequence[str]) -> None:
  """Writes config.gin (all that was used) and versions.json: what a result must name to be repeated."""
  import gin

  with atomic_write(folder / "config.gin") as file:
    file.write(gin.operative_config_str())
  with atomic_write(folder / "versions.json") as file:
    json.dump(versions(argv), file, indent=2)
    file.write("\n")


def versions(argv: Sequence[str]) -> dict[str, object]:
  """Returns what a run must name to be repeated: command, Python, packages, git revision of the code."""
  from importlib import metadata

  packages = (
    "retrieval-jax",
    "jax",
    "jaxlib",
    "flax",
    "optax",
    "orbax-checkpoint",
    "seqio",
    "tensorflow",
    "numpy",
  )
  found = {}
  for name in packages:
    try:
      found[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
      found[name] = None
  return {
    "command": list(argv),
    "python": platform.python_version(),
    "packages": found,
    "git": _git_revision(),
  }


def _git_revision() -> str | None:
  command = [
    "git",
    "-C",
    str(pathlib.Path(__file__).parent),
    "describe",
    "--always",
    "--dirty",
    "--abbrev=40",
  ]
  try:
    done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
  except (OSError, subprocess.TimeoutExpired):
    return None
  return done.stdout.strip() or None
