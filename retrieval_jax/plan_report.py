"""What a plan says: twenty lines to read, or all its numbers as plain values."""

from typing import Any, NamedTuple

import jax

from retrieval_jax.fitting import Tried
from retrieval_jax.planned_program import PlannedProgram, Times, gib
from retrieval_jax.planned_step import EncodingPlan, Layout, StepShapes
from retrieval_jax.recipe import Recipe
from retrieval_jax.step_costs import Products
from retrieval_jax.topologies import Topology


class PlanReport(NamedTuple):
  """All that was found. once: the products of the same step if nothing were computed twice (no remat, no chunks).

  forward: of both encoders, one way. changes: tried where the step does not fit. encoding: None where it was not asked for.
  """

  topology: Topology
  recipe: Recipe
  shapes: StepShapes
  layout: Layout
  step: PlannedProgram
  once: Products
  forward: Products
  changes: list[Tried]
  encoding: EncodingPlan | None

  @property
  def times(self) -> Times | None:
    """The step's roofline times."""
    return self.step.times(self.topology)

  @property
  def mfu(self) -> float | None:
    """The largest share of the chips' published rate that the step's products, each counted once, can take."""
    times, chip = self.times, self.topology.chip
    if times is None or chip is None:
      return None
    return self.once.flops / (times.bound * chip.flops * self.topology.chips)

  def text(self) -> str:
    """Returns the report to print."""
    return "\n".join([*self._setting(), *self._memory(), *self._work(), *self._changes(), *self._encoding()])

  def _setting(self) -> list[str]:
    mesh = dict(self.layout.partitioner.mesh.shape)
    batch, passages = (jax.tree.leaves(tokens)[0].shape for tokens in self.shapes.batch[:2])
    shards = self.layout.partitioner.data_size
    return [
      f"{self.topology.describe()}; mesh {' x '.join(f'{name} {size}' for name, size in mesh.items())}",
      f"model: {self.shapes.num_parameters / 1e6:,.1f} M parameters; batch: {batch[0]:,} queries of {batch[1]} tokens "
      f"({batch[0] // shards:,} a shard), {passages[0]:,} passages of {passages[1]}",
    ]

  def _memory(self) -> list[str]:
    step, held = self.step, self.layout.held
    lines = []
    if step.limit is None:
      lines.append(f"holds {gib(step.total)} a device (CPU devices share the machine's memory)")
    elif step.fits:
      share = f"{100 * step.total / step.limit:.0f}%"
      lines.append(f"FITS: {gib(step.total)} of {gib(step.limit)} a device ({share})")
    else:
      lines.append(f"DOES NOT FIT: {gib(step.total)} are needed of {gib(step.limit)} a device")
    lines.append(
      f"  parameters {gib(held.parameters)}, optimizer {gib(held.optimizer)}, loss state {gib(held.loss_state)}, batch "
      f"{gib(held.batch)}"
    )
    output = f", output {gib(step.output)}" if step.fits else ""
    largest = "" if step.largest is None else f"; largest array {' x '.join(f'{n:,}' for n in step.largest)}"
    lines.append(f"  temporaries (activations, gradients) {gib(step.temporaries)}{output}{largest}")
    return lines

  def _work(self) -> list[str]:
    step = self.step
    twice = step.products.flops - self.once.flops
    loss = max(self.once.flops - 3 * self.forward.flops, 0)
    again = f", {twice / 1e12:,.2f} of them computed again" if twice > 0 else ""
    lines = [
      f"products a step: {step.products.flops / 1e12:,.2f} TFLOP (encoders {3 * self.forward.flops / 1e12:,.2f}, loss "
      f"{loss / 1e12:,.3f}{again})"
    ]
    if step.hbm_bytes is None:
      return lines
    lines.append(f"memory traffic: {step.hbm_bytes / 1e9:,.2f} GB a device")
    sent = [
      f"{kind} {one.sent / 1e6:,.1f} MB ({one.count}x)"
      for kind, one in sorted(step.collectives.items(), key=lambda item: -item[1].sent)
    ]
    lines.append(f"interconnect, sent by each device: {', '.join(sent) or 'nothing'}")
    if step.unknown_loops:
      lines.append(f"  {step.unknown_loops} loops of unknown length are counted once")
    times = self.times
    if times is not None:
      rate = self.shapes.batch.weights.shape[0]
      names = {"compute": "arithmetic", "hbm": "memory", "ici": "interconnect"}
      each = ", ".join(f"{names[name]} {1e3 * value:,.2f} ms" for name, value in times._asdict().items())
      lines.append(
        f"at best {1e3 * times.bound:,.2f} ms a step, bound by {names[times.bounded_by]} ({each}; one after the other "
        f"{1e3 * sum(times):,.2f} ms)"
      )
      lines.append(
        f"  {rate / sum(times):,.0f} to {rate / times.bound:,.0f} examples/s, MFU at most {100 * (self.mfu or 0):.0f}%"
      )
    lines.append(f"compiled in {step.seconds:.0f} s")
    return lines

  def _changes(self) -> list[str]:
    if self.step.fits:
      return []
    limit = self.step.limit or 0
    lines = ["what would change that:"]
    if not any(one.fits(limit) for one in self.changes):
      lines = [_hopeless(self), "what was tried:"]
    for one in self.changes:
      lines.append("  " + _line(one, limit))
    return lines

  def _encoding(self) -> list[str]:
    plan = self.encoding
    if plan is None:
      return []
    program = plan.program
    times = program.times(self.topology)
    rate = "" if times is None else f"; at best {plan.rows / times.bound:,.0f} passages/s"
    fits = "fits" if program.fits else "DOES NOT FIT (lower TOKENS_PER_BATCH)"
    return [
      f"encode: {plan.rows:,} x {plan.tokens} tokens a batch {fits}, {gib(program.total)} a device{rate}; compiled in "
      f"{program.seconds:.0f} s"
    ]

  def values(self) -> dict[str, Any]:
    """Returns all numbers as plain values: what --json writes."""
    chip = self.topology.chip
    return {
      "topology": {
        "name": self.topology.name,
        "chips": self.topology.chips,
        "devices": len(self.topology.devices),
        "chip": None if chip is None else {**chip._asdict(), "shapes": None},
        "mesh": dict(self.layout.partitioner.mesh.shape),
      },
      "batch_size": self.shapes.batch.weights.shape[0],
      "parameters": self.shapes.num_parameters,
      "fits": self.step.fits,
      "bytes_per_device": {
        **self.layout.held._asdict(),
        "arguments": self.step.arguments,
        "temporaries": self.step.temporaries,
        "output": self.step.output,
        "total": self.step.total,
        "limit": self.step.limit,
      },
      "flops": {
        "step": self.step.products.flops,
        "once": self.once.flops,
        "forward": self.forward.flops,
        "passes": self.step.products.passes,
      },
      "hbm_bytes_per_device": self.step.hbm_bytes,
      "largest_array": None if self.step.largest is None else list(self.step.largest),
      "collectives": {kind: one._asdict() for kind, one in self.step.collectives.items()},
      "seconds": _seconds(self.times),
      "mfu_bound": self.mfu,
      "compile_seconds": self.step.seconds,
      "unknown_loops": self.step.unknown_loops,
      "changes": [_change_values(one, self.step.limit or 0) for one in self.changes],
      "encoding": None if self.encoding is None else _encoding_values(self.encoding, self.topology),
    }


def _seconds(times: Times | None) -> dict[str, Any] | None:
  return None if times is None else {**times._asdict(), "bound": times.bound, "bounded_by": times.bounded_by}


def _encoding_values(plan: EncodingPlan, topology: Topology) -> dict[str, Any]:
  program = plan.program
  return {
    "rows": plan.rows,
    "tokens": plan.tokens,
    "fits": program.fits,
    "bytes_per_device": program.total,
    "flops": program.products.flops,
    "hbm_bytes_per_device": program.hbm_bytes,
    "seconds": _seconds(program.times(topology)),
    "compile_seconds": program.seconds,
  }


def _change_values(one: Tried, limit: float) -> dict[str, Any]:
  return {
    "settings": list(one.change.settings),
    "estimated_bytes": one.estimate,
    "compiled_bytes": None if one.program is None else one.program.total,
    "fits": one.fits(limit),
    "problem": one.problem,
  }


def _line(one: Tried, limit: float) -> str:
  settings = " ".join(one.change.settings)
  if one.problem is not None:
    return f"{settings}: cannot be: {one.problem.splitlines()[0]:.160}"
  about = f"about {gib(one.estimate or 0)}"
  if one.program is not None:
    verdict = "FITS" if one.program.fits else "does not fit"
    return f"{settings}: {about}; compiled: {gib(one.program.total)}, {verdict}"
  return f"{settings}: {about}, {'should fit' if one.fits(limit) else 'too much'}"


def _hopeless(report: PlanReport) -> str:
  held, limit = report.layout.held, report.step.limit or 0
  largest = max(held._asdict().items(), key=lambda item: item[1])
  if held.total > limit:
    return (
      f"nothing that was tried fits, by estimate or compiled: {largest[0].replace('_', ' ')} alone take {gib(largest[1])} a device. Take a larger slice, a "
      "generation with more memory, or a smaller model."
    )
  return "nothing that was tried fits, by estimate or compiled: lower BATCH_SIZE or PASSAGE_LENGTH, or take a larger slice."
