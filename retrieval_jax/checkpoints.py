"""Checkpoints through Orbax: saved asynchronously, kept by rule, restored with fall-back past a damaged newest step."""

import contextlib
import json
import pathlib
import re
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree

from retrieval_jax import processes
from retrieval_jax.checkpoint_tables import (
  Table,
  difference,
  other_number_of_rows,
  parameter_table,
  structure_table,
)
from retrieval_jax.errors import UserError
from retrieval_jax.refused_writes import free_space, refusal

PREFIX = "checkpoint"
_STEP = re.compile(rf"{PREFIX}_(\d+)")
FORMAT = 1
ARCHITECTURE = "architecture than the configured model"
OPTIMIZER = "optimizer than the configured one, or of other optimizer options"
LOSS = "loss than the configured one"


class CheckpointPolicy(NamedTuple):
  """When to save and what to keep.

  period: steps between saves (the last step is always saved). keep_latest: newest steps kept. best_metric: the
  evaluation metric (e.g. "mrr@10", higher is better) by which one more step, the best, is kept; None keeps none.
  """

  period: int = 1000
  keep_latest: int = 2
  best_metric: str | None = None


class Checkpoints:
  """The checkpoints of one MODEL_DIR: MODEL_DIR/checkpoint_<step>/{state,manifest}.

  Orbax writes a step beside its final name and renames it, so a step that is listed was complete once; a half-deleted
  or damaged one is noticed at restore, named on stderr, and the next older one is taken.

  Example:
    with Checkpoints(folder, CheckpointPolicy(period=100)) as checkpoints:
      checkpoints.save(100, state, metrics={"mrr@10": 0.5})
  """

  def __init__(
    self, folder: pathlib.Path, policy: CheckpointPolicy | None = None, *, read_only: bool = False
  ):
    _quiet_orbax()
    import orbax.checkpoint as ocp

    self.folder = pathlib.Path(folder).absolute()
    self._ocp = ocp
    self._saving: int | None = None
    self._drop_unreadable_scores(read_only)
    self._manager = ocp.CheckpointManager(
      self.folder,
      options=_options(policy or CheckpointPolicy(), read_only=read_only),
      item_names=("state", "manifest"),
      item_handlers={
        "state": ocp.PyTreeCheckpointHandler() if read_only else ocp.StandardCheckpointHandler(),
        "manifest": ocp.JsonCheckpointHandler(),
      },
    )

  def __enter__(self) -> "Checkpoints":
    return self

  def __exit__(self, *_: object) -> None:
    self.close()

  def steps(self) -> list[int]:
    """Returns the steps on disk, ascending; one that is being written is not among them."""
    if not self.folder.is_dir():
      return []
    # Not Orbax's list: reading that anew during a save makes it forget the step that is being written, and keep another.
    found = (_STEP.fullmatch(path.name) for path in self.folder.iterdir())
    return sorted(int(match[1]) for match in found if match)

  def save(
    self, step: int, state: PyTree, *, manifest: Mapping[str, Any], metrics: Mapping[str, float] | None = None
  ) -> None:
    """Starts to save (returns after the copy to host memory); wait() or close() blocks until it is on disk.

    Raises: UserError when the disk is full, or its folder may not be written to; also for the save before, and by wait()
      and close().
    """
    self.wait()
    args = self._ocp.args
    record = {
      **manifest,
      "format": FORMAT,
      "step": step,
      "parameters": parameter_table(state.params),
      "optimizer": parameter_table(state.opt_state),
      "loss_state": parameter_table(state.loss_state),
    }
    self._saving = step
    with self._refusals_named():
      if processes.is_first():  # Orbax itself waits for five minutes where it may not make a folder
        (self.folder / ".room").mkdir(exist_ok=True)
        (self.folder / ".room").rmdir()
      self._manager.save(
        step,
        args=args.Composite(state=args.StandardSave(state), manifest=args.JsonSave(record)),
        metrics=dict(metrics) if metrics is not None else None,
        force=True,
      )

  def manifest(self, step: int) -> dict[str, Any]:
    """Returns the manifest that was saved with a step."""
    args = self._ocp.args
    return self._manager.restore(step, args=args.Composite(manifest=args.JsonRestore()))["manifest"]

  def restore_newest(self, target: PyTree[jax.ShapeDtypeStruct]) -> tuple[PyTree, int] | None:
    """Returns (state, step) of the newest readable step, or None when there is no checkpoint.

    target: abstract state with shardings; the mesh may differ from the one that saved.
    Raises: UserError when the checkpoint is of another architecture, optimizer or loss, or when no listed step can be read.
    """
    failures, damaged = [], []
    for step in processes.agree(self.steps()[::-1]):
      try:
        saved = self.manifest(step)
        self._check_parameters(step, saved["parameters"], parameter_table(target.params))
        if not saved["optimizer"] and parameter_table(target.opt_state):
          raise UserError(
            f"{self.folder}: holds converted weights without a training's state, so none can be resumed here. Choose "
            f"another MODEL_DIR and start from these: --gin_file={self.folder / 'model.gin'}."
          )
        self._check_same(step, OPTIMIZER, saved["optimizer"], parameter_table(target.opt_state))
        if "loss_state" in saved:  # not written before losses had a state
          self._check_loss_state(step, saved["loss_state"], parameter_table(target.loss_state))
        restored = self._restored(step, target)
      except UserError:
        raise
      except Exception as error:  # Orbax raises many types on damaged files; each means: try an older step
        failures.append(f"  step {step}: {_first_line(error)}")
        restored = None
      # What one process cannot read is read by none: they would go on from different steps.
      if not processes.all_agree(restored is not None):
        print(
          f"warning: checkpoint {step} in {self.folder} cannot be read, trying an older one", file=sys.stderr
        )
        damaged.append(step)
        continue
      assert restored is not None
      self._set_aside(damaged)
      return restored["state"], step
    if damaged:
      raise UserError(
        f"{self.folder}: no checkpoint can be read. Move the folder away to start afresh.\n"
        + "\n".join(failures)
      )
    return None

  def restore_params(
    self, target: PyTree[jax.ShapeDtypeStruct], *, step: int | None = None
  ) -> tuple[PyTree, int]:
    """Returns (model parameters, step) of `step` or of the newest readable one, and nothing else of the state.

    Raises: UserError when there is none, the step is not there, or the architecture differs.
    """
    steps = self.steps()
    if not steps:
      raise UserError(f"{self.folder}: no checkpoint here. Train first, or give another MODEL_DIR.")
    if step is not None and step not in steps:
      raise UserError(f"{self.folder}: no checkpoint of step {step}; there are {steps}.")
    failures = []
    for candidate in [step] if step is not None else list(reversed(steps)):
      try:
        saved = self.manifest(candidate)
        prefix = "model/"
        table = {k.removeprefix(prefix): v for k, v in saved["parameters"].items() if k.startswith(prefix)}
        self._check_same(candidate, ARCHITECTURE, table, parameter_table(target))
        return self._read_model(candidate, target), candidate
      except UserError:
        raise
      except Exception as error:  # as above
        failures.append(f"  step {candidate}: {_first_line(error)}")
        print(f"warning: checkpoint {candidate} in {self.folder} cannot be read", file=sys.stderr)
    raise UserError(
      f"{self.folder}: no checkpoint can be read. Train anew, or copy the folder again.\n"
      + "\n".join(failures)
    )

  def _drop_unreadable_scores(self, read_only: bool) -> None:
    """Deletes scores that Orbax cannot read, which would end every start: their checkpoint is then one without any.

    Raises: UserError instead, where nothing may be deleted.
    """
    for path in self.folder.glob(f"{PREFIX}_*/metrics/metrics") if processes.is_first() else ():
      try:
        json.loads(path.read_bytes())
      except ValueError:
        if read_only:
          raise UserError(
            f"{path} is damaged. Delete it: it only says how good that checkpoint was."
          ) from None
        path.unlink()
        print(
          f"warning: {path} was damaged and is deleted: how good that checkpoint was is lost", file=sys.stderr
        )
    if not read_only:
      processes.wait_for_all("unreadable scores are gone")

  def _set_aside(self, steps: Sequence[int]) -> None:
    """Renames unreadable steps to damaged_checkpoint_<step>, so that training can save those steps anew."""
    for step in steps if processes.is_first() else ():
      name = f"{PREFIX}_{step}"
      target = self.folder / f"damaged_{name}"
      if target.exists():
        shutil.rmtree(target)
      (self.folder / name).rename(target)
      print(f"warning: {name} was moved to {target.name}", file=sys.stderr)
    if steps:
      processes.wait_for_all("damaged checkpoints are aside")
      self._manager.reload()

  def _read_model(self, step: int, target: PyTree) -> PyTree:
    ocp = self._ocp
    item = {"params": {"model": target}}
    restore_args = ocp.checkpoint_utils.construct_restore_args(item)
    args = ocp.args.PyTreeRestore(item=item, restore_args=restore_args, partial_restore=True)
    restored = self._manager.restore(step, args=ocp.args.Composite(state=args))
    return restored["state"]["params"]["model"]

  def _restored(self, step: int, target: PyTree) -> Any:
    """Returns what Orbax restores, which refuses a tree that differs only in parts without arrays; that is named here."""
    args = self._ocp.args
    try:
      return self._manager.restore(step, args=args.Composite(state=args.StandardRestore(target)))
    except Exception:
      found = self._manager.item_metadata(step)["state"]
      if found is not None:
        self._check_structure(step, found.tree, target)
      raise

  def _check_structure(self, step: int, saved: Mapping[str, Any], target: PyTree) -> None:
    """Raises UserError unless the tree on disk has the parts of the configured one, also those without arrays."""
    self._check_parameters(step, structure_table(saved["params"]), structure_table(target.params))
    self._check_same(step, OPTIMIZER, structure_table(saved["opt_state"]), structure_table(target.opt_state))
    self._check_loss_state(step, structure_table(saved["loss_state"]), structure_table(target.loss_state))

  def _check_parameters(self, step: int, saved: Table, expected: Table) -> None:
    """Raises UserError unless the model's parameters are the same, and then the loss's."""

    def of_loss(table: Table, is_loss: bool) -> dict[str, list]:
      return {path: row for path, row in table.items() if (path.split("/")[0] == "loss") == is_loss}

    self._check_same(step, ARCHITECTURE, of_loss(saved, False), of_loss(expected, False))
    self._check_same(step, LOSS, of_loss(saved, True), of_loss(expected, True))

  def _check_loss_state(self, step: int, saved: Table, expected: Table) -> None:
    """Raises UserError unless the states of the losses have the same arrays."""
    if other_number_of_rows(saved, expected):
      raise UserError(
        f"{self.folder}: checkpoint {step} has a loss with caches of another number of rows:\n"
        f"{difference(saved, expected)}\n"
        "They hold a row for each row of the data, so the data have more or fewer rows now. Go on with the same data, or "
        f"train in another MODEL_DIR from these weights: INITIAL_CHECKPOINT_PATH={self.folder}."
      )
    self._check_same(step, LOSS, saved, expected)

  def _check_same(self, step: int, kind: str, saved: Table, expected: Table) -> None:
    """Raises UserError with the difference unless the checkpoint's arrays are those of the configured part."""
    different = difference(saved, expected)
    if different:
      raise UserError(
        f"{self.folder}: checkpoint {step} is of another {kind}:\n{different}\n"
        "Use what this folder was trained with (its config.gin), or another MODEL_DIR."
      )

  def wait(self) -> None:
    """Blocks until every started save is on disk."""
    with self._refusals_named():
      self._manager.wait_until_finished()

  def close(self) -> None:
    with self._refusals_named():
      self._manager.close()

  @contextlib.contextmanager
  def _refusals_named(self) -> Iterator[None]:
    """Turns what Orbax raises when the system refuses to write into what there is to do."""
    try:
      yield
    except Exception as error:  # of many types: a full disk is a ValueError
      said = refusal(error)
      if said is None or self._saving is None:
        raise
      # The run ends by this, and Orbax's own pieces of the save with it: none of them is a fault of its own.
      warnings.filterwarnings("ignore", message=".* was never awaited", category=RuntimeWarning)
      steps = self.steps()
      kept = (
        f"the checkpoints before it are whole: it goes on from step {steps[-1]}"
        if steps
        else "there is no checkpoint before it"
      )
      raise UserError(
        f"{self.folder}: checkpoint {self._saving} could not be written: {said} ({free_space(self.folder)}). Make room there or "
        f"correct the rights, and start the same command again; {kept}."
      ) from error


def _options(policy: CheckpointPolicy, *, read_only: bool) -> Any:
  """Retention: best_fn together with a preservation policy, since either alone deletes the wrong steps (both tried)."""
  import orbax.checkpoint as ocp
  from orbax.checkpoint import checkpoint_managers as rules

  common = {"step_prefix": PREFIX, "create": not read_only, "read_only": read_only}
  if read_only:
    return ocp.CheckpointManagerOptions(**common)
  metric = policy.best_metric
  latest = rules.LatestN(policy.keep_latest)
  if metric is None:
    return ocp.CheckpointManagerOptions(
      **common, preservation_policy=latest, cleanup_tmp_directories=True, enable_async_checkpointing=True
    )

  def value(metrics: Mapping[str, float]) -> float:
    return float(metrics.get(metric, -np.inf))

  return ocp.CheckpointManagerOptions(
    **common,
    best_fn=value,
    best_mode="max",
    preservation_policy=rules.AnyPreservationPolicy([latest, rules.BestN(get_metric_fn=value, n=1)]),
    cleanup_tmp_directories=True,
    enable_async_checkpointing=True,
  )


def _first_line(error: Exception) -> str:
  return (
    f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else 'no message'}"[
      :300
    ]
  )


def _quiet_orbax() -> None:
  """Orbax logs dozens of warnings a restore through absl, and each error that it raises besides, with all its threads."""
  import logging

  logging.getLogger("absl").setLevel(logging.CRITICAL)
  logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # a damaged file: a dozen "Event loop is closed"
  if not isinstance(sys.unraisablehook, _WithoutClosedLoops):
    sys.unraisablehook = _WithoutClosedLoops(sys.unraisablehook)


class _WithoutClosedLoops:
  """Passes over what TensorStore prints for each array of a save that a full disk has ended: dozens of stack traces."""

  def __init__(self, hook: "Callable[[sys.UnraisableHookArgs], object]"):
    self._hook = hook

  def __call__(self, unraisable: "sys.UnraisableHookArgs") -> None:
    if unraisable.exc_type is not RuntimeError or str(unraisable.exc_value) != "Event loop is closed":
      self._hook(unraisable)
