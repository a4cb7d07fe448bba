"""What lies in a MODEL_DIR, read for its report: configuration, log, evaluations. No checkpoint, no data, no model."""

import json
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from retrieval_jax.errors import UserError
from retrieval_jax.result_files import METRICS_FILE

_TOTAL = re.compile(r"^(?:mesh .*|[a-z ]+: [\d,]+ numbers, .*)$", re.MULTILINE)
_STEP = re.compile(r"(?:(.+)_)?step_(\d+)")
DENSE = "dense"


class Evaluation(NamedTuple):
  """One folder that an evaluation wrote. kind: "dense", or the name of another searcher."""

  task: str
  kind: str
  step: int
  folder: pathlib.Path
  record: Mapping[str, Any]

  @property
  def metrics(self) -> dict[str, float]:
    """The metrics by name, those of a group of tasks too, in the order of the task."""
    names = self.record.get("confidence_95")
    if names is None:  # the means of a group
      names = [name for name, value in self.record.items() if isinstance(value, float)]
    return {name: self.record[name] for name in names}

  @property
  def title(self) -> str:
    return self.task if self.kind == DENSE else f"{self.task}, {self.kind}"


class Run(NamedTuple):
  """A run as its folder has it; what is not there is None or empty.

  config: the text of config.gin. totals: the lines of model-info.txt that sum it up. log: the records of train/log.jsonl in the order
  of the file. notes: what was left out in reading.
  """

  name: str
  folder: pathlib.Path
  config: str | None
  versions: Mapping[str, Any]
  totals: Sequence[str]
  log: Sequence[Mapping[str, Any]]
  evaluations: Sequence[Evaluation]
  notes: Sequence[str] = ()

  @property
  def command(self) -> Sequence[str]:
    """The name of the program that wrote the folder and its flags."""
    return [str(word) for word in self.versions.get("command", ())]

  def newest(self) -> list[Evaluation]:
    """Returns the evaluation of the last step of each task and searcher."""
    last = {(e.task, e.kind): e for e in self.evaluations}  # they ascend
    return list(last.values())

  def newest_with(self, file: str) -> list[Evaluation]:
    """Returns one of `newest` for each task whose folder has the file: of the model's own search, else of the first that has."""
    first: dict[str, Evaluation] = {}
    for evaluation in self.newest():
      if (evaluation.folder / file).is_file():
        first.setdefault(evaluation.task, evaluation)
    return list(first.values())


def read_run(path: str, *, name: str | None = None) -> Run:
  """Returns what is there of a run.

  Raises: UserError if the folder is not there or holds nothing of a run, and, with file and line, for a file that is broken.
  """
  folder = pathlib.Path(path).expanduser()
  if not folder.is_dir():
    raise UserError(f"{path}: no such folder; expected the MODEL_DIR of a training or an evaluation.")
  log, notes = _read_log(folder / "train" / "log.jsonl")
  run = Run(
    name or folder.resolve().name,
    folder,
    _text(folder / "config.gin"),
    _json(folder / "versions.json") or {},
    _TOTAL.findall(_text(folder / "model-info.txt") or ""),
    log,
    _read_evaluations(folder / "eval"),
    notes,
  )
  if run.config is None and not run.log and not run.evaluations:
    raise UserError(
      f"{path}: there is no config.gin, no train/log.jsonl and no eval/<task>/step_<n>/{METRICS_FILE} in it; expected the "
      "MODEL_DIR of a training or an evaluation."
    )
  return run


def _read_log(path: pathlib.Path) -> tuple[list[Mapping[str, Any]], list[str]]:
  """Returns the records, and a note where the last line is cut off: a training writes at it, or was killed."""
  if not path.is_file():
    return [], []
  *lines, rest = path.read_bytes().split(b"\n")
  records = []
  for number, line in enumerate(lines, start=1):
    try:
      record = json.loads(line)
      if not isinstance(record, dict) or type(record.get("step")) is not int:
        raise ValueError("no object with a step")
    except ValueError as error:
      raise UserError(
        f"{path}:{number}: not a record of a training log: {error}. Remove the line, or copy the file again."
      ) from error
    records.append(record)
  notes = (
    [f"{path.name}: its last line is cut off and left out; a training may be writing it."] if rest else []
  )
  return records, notes


def _read_evaluations(folder: pathlib.Path) -> list[Evaluation]:
  """Returns every evaluation: tasks and searchers in the order of their names, the model's own first, steps ascending."""
  found = []
  for path in folder.glob(f"*/*/{METRICS_FILE}"):
    match = _STEP.fullmatch(path.parent.name)
    record = _json(path)
    if match is None or record is None:
      continue
    kind = match[1] or DENSE
    found.append(Evaluation(path.parent.parent.name, kind, int(match[2]), path.parent, record))
  return sorted(found, key=lambda e: (e.task, e.kind != DENSE, e.kind, e.step))


def _text(path: pathlib.Path) -> str | None:
  if not path.is_file():
    return None
  try:
    return path.read_text(encoding="utf-8")
  except UnicodeDecodeError as error:
    raise UserError(f"{path}: is not UTF-8 ({error}). Copy the file again.") from error


def _json(path: pathlib.Path) -> dict[str, Any] | None:
  text = _text(path)
  if text is None:
    return None
  try:
    found = json.loads(text)
  except ValueError as error:
    raise UserError(f"{path}:{getattr(error, 'lineno', 1)}: is broken: {error}. Write it anew.") from error
  if not isinstance(found, dict):
    raise UserError(f"{path}:1: expected an object of names and values. Write it anew.")
  return found
