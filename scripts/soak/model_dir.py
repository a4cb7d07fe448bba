"""What a MODEL_DIR holds after a fault, and whether two of them hold the same bits."""

import json
import logging
import pathlib
import re
import subprocess
import time

import numpy as np

from retrieval_jax import exit_codes

WRITING = "checkpoint_*.orbax-checkpoint-tmp"
_STEP = re.compile(r"checkpoint_(\d+)")


def steps_on_disk(folder: pathlib.Path) -> list[int]:
  """Returns the steps of the checkpoints under their final names, ascending."""
  return sorted(int(match[1]) for path in folder.glob("*") if (match := _STEP.fullmatch(path.name)))


def half_written(folder: pathlib.Path) -> list[str]:
  """Returns the names of checkpoints that a process was writing when it ended."""
  return sorted(path.name for path in folder.glob(WRITING))


def half_deleted(folder: pathlib.Path) -> list[int]:
  """Returns the steps that lack one of their two parts: a process was deleting them when it ended."""
  return [
    step
    for step in steps_on_disk(folder)
    if not (folder / f"checkpoint_{step}" / "state" / "_METADATA").exists()
    or not (folder / f"checkpoint_{step}" / "manifest" / "metadata").exists()
  ]


def stopped_at(folder: pathlib.Path) -> int | None:
  """Returns the step that MODEL_DIR/STOPPED names, or None where there is no such file."""
  try:
    return json.loads((folder / exit_codes.STOPPED).read_text(encoding="utf-8"))["step"]
  except FileNotFoundError:
    return None


def losses(folder: pathlib.Path) -> dict[int, float]:
  """Returns the last logged loss of every step; a line that a killed process had half written does not count."""
  file = folder / "train" / "log.jsonl"
  text = file.read_text(encoding="utf-8") if file.exists() else ""
  records = map(json.loads, text.split("\n")[:-1])
  return {record["step"]: record["loss"] for record in records if "loss" in record}


def last_logged(folder: pathlib.Path) -> int:
  """Returns the highest step of the log, 0 without one."""
  return max(losses(folder), default=0)


def wait_for(folder: pathlib.Path, pattern: str, started: subprocess.Popen, timeout: float = 900) -> None:
  """Returns as soon as a path of this pattern is in the folder.

  Raises: AssertionError if the process ends before, or the time is over.
  """
  end = time.monotonic() + timeout
  while not any(folder.glob(pattern)):
    assert started.poll() is None, f"exit code {started.returncode} before {pattern} came: {said(started)}"
    assert time.monotonic() < end, f"{pattern} did not appear in {folder}"
    time.sleep(0.002)


def said(started: subprocess.Popen) -> str:
  """Returns what a process that has ended wrote to its stderr, where that is a pipe."""
  return started.communicate()[1] if started.stderr is not None else "see its output's file"


def state_of(model_dir: pathlib.Path, step: int) -> dict[str, np.ndarray]:
  """Returns every array of a checkpoint by path, as numpy."""
  import jax
  import orbax.checkpoint as ocp

  logging.getLogger("absl").setLevel(logging.ERROR)  # Orbax warns of files that this needs none of
  folder = pathlib.Path(model_dir).absolute() / f"checkpoint_{step}" / "state"
  handler = ocp.PyTreeCheckpointHandler()
  with ocp.Checkpointer(handler) as reader:
    metadata = reader.metadata(folder).item_metadata.tree
    arguments = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), metadata)
    tree = reader.restore(folder, ocp.args.PyTreeRestore(restore_args=arguments))
  leaves = jax.tree_util.tree_leaves_with_path(tree)
  return {jax.tree_util.keystr(path, simple=True, separator="/"): np.asarray(leaf) for path, leaf in leaves}


def differences(folder: pathlib.Path, reference: pathlib.Path, step: int) -> list[str]:
  """Returns what differs between two trainings that are at this step, bit for bit: the state, the losses of all steps, and
  the files of the batches that both have."""
  a, b = state_of(folder, step), state_of(reference, step)
  found = [
    name
    for name in sorted(a.keys() | b.keys())
    if name not in a or name not in b or not _same(a[name], b[name])
  ]
  first, second = losses(folder), losses(reference)
  found += [
    f"loss of step {n}" for n in sorted(first.keys() | second.keys()) if first.get(n) != second.get(n)
  ]
  for path in sorted((reference / "batches").glob("*_*.np[yz]")):
    other = folder / "batches" / path.name
    if other.exists() and not _same_files(path, other):
      found.append(f"batches/{path.name}")
  return found


def _same(a: np.ndarray, b: np.ndarray) -> bool:
  return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def _same_files(path: pathlib.Path, other: pathlib.Path) -> bool:
  if path.suffix == ".npy":
    return _same(np.load(path), np.load(other))
  with np.load(path) as a, np.load(other) as b:
    return a.files == b.files and all(_same(a[name], b[name]) for name in a.files)
