"""Faults of the disk and of hands: a full disk, a damaged checkpoint, a deleted cache, two trainings in one folder."""

import random
import shutil
import signal
import time

from scripts.soak.damage import WAYS
from scripts.soak.deaths import Reference, reach
from scripts.soak.line import Line
from scripts.soak.model_dir import half_written, steps_on_disk, wait_for
from scripts.soak.small_disk import SmallDisk, why_not
from scripts.soak.tally import Row
from scripts.soak.trainings import Workshop

PATIENCE = 900.0  # seconds


def full_disk(workshop: Workshop, references: list[Reference], rng: random.Random) -> Row:
  """The disk runs full in the middle of a training; later there is room again."""
  line = Line("disk full")
  if reason := why_not():
    return Row(line.fault, 0, skipped=reason)
  for number, reference in enumerate(references):
    with SmallDisk(workshop.folder / "disk" / str(number), 40) as disk:
      folder, seen = disk.folder / "run", disk.outside / "run"
      command = disk.inside(workshop.command(reference.training, folder))
      life = workshop.start(command, f"full_{number}")
      wait_for(seen, f"checkpoint_{4 * reference.training.period}", life.process)
      time.sleep(rng.uniform(0, 0.2))
      # Kept full: a checkpoint that is deleted would make room for the next. A few pages leave it to the save to fail, not the log.
      disk.keep_full(life.process, left=rng.choice((0, 100_000)))
      code = life.wait(PATIENCE)
      steps = steps_on_disk(seen)
      line.tried += 1
      message = life.last_words().splitlines()[-1] if life.last_words() else ""
      line.check(code == 2, f"ended with {code}: {life.last_words()}")
      line.check("No space left on device" in message, f"its last line was: {message}")
      line.check("Traceback" not in life.err, f"it printed a stack trace: {life.last_words()}")
      line.check(bool(steps), "no checkpoint is left")
      half = half_written(seen)
      disk.free()
      again = workshop.run(command, f"full_{number}_again")
      line.check(again.begun_at() == max(steps, default=0), f"went on from {again.begun_at()}, had {steps}")
      line.check(not half_written(seen), f"left {half_written(seen)}")
      if again.process.returncode == 0:
        shutil.copytree(seen, workshop.folder / "runs" / f"full_{number}")
      line.check_end(reference, workshop.folder / "runs" / f"full_{number}", again)
      line.notes.append(
        f"went on from step {max(steps, default=0)}{', half a checkpoint removed' if half else ''}"
      )
  return line.row()


def damaged(workshop: Workshop, references: list[Reference], *, quick: bool) -> Row:
  """The newest checkpoint is damaged in each of several ways; of the last training the two newest are."""
  line = Line("newest checkpoint damaged")
  ways = [*WAYS.items(), ("two damaged", WAYS["state cut"])]
  for number, (way, harm) in enumerate(ways[::3] if quick else ways):
    reference = references[number % len(references)]
    folder = workshop.folder / "runs" / f"damaged_{number}"
    shutil.copytree(reference.folder, folder)
    steps = steps_on_disk(folder)
    gone = steps[-2:] if way == "two damaged" else steps[-1:]
    for step in gone:
      harm(folder / f"checkpoint_{step}")
    life = workshop.run(workshop.command(reference.training, folder), f"damaged_{number}")
    line.tried += 1
    before = steps[-len(gone) - 1]
    line.check(
      life.begun_at() == before, f"{way}: went on from {life.begun_at()}, not {before}: {life.last_words()}"
    )
    for step in gone:
      line.check(
        f"checkpoint {step} in {folder} cannot be read" in life.err, f"{way}: nothing said of {step}"
      )
      line.check((folder / f"damaged_checkpoint_{step}").is_dir(), f"{way}: the damaged {step} is gone")
    line.check_end(reference, folder, life)
    line.notes.append(way)
  return line.row()


def no_cache(workshop: Workshop, references: list[Reference], rng: random.Random) -> Row:
  """The cache of derived data is deleted between two runs."""
  line = Line("dataset cache deleted")
  for number, reference in enumerate(references):
    folder, name = workshop.folder / "runs" / f"no_cache_{number}", f"no_cache_{number}"
    command = workshop.command(reference.training, folder)
    life = workshop.start(command, name, cache=name)
    if reach("in training", folder, life, reference, rng):
      life.process.send_signal(signal.SIGTERM)
    life.wait(PATIENCE)
    steps = steps_on_disk(folder)
    shutil.rmtree(workshop.folder / name)
    again = workshop.run(command, f"{name}_again", cache=name)
    line.tried += 1
    over = reference.training.steps in steps  # it was faster than the signal: there is nothing to go on with
    at = max(steps, default=0)
    line.check(over or again.begun_at() == at, f"went on from {again.begun_at()}, had {steps}")
    line.check("tokenise" in again.err, "the cache was not made again")
    line.check_end(reference, folder, again)
  line.notes = ["made again"]
  return line.row()


def two_trainings(workshop: Workshop, references: list[Reference]) -> Row:
  """A second training is started in the folder of one that runs, which stands still meanwhile."""
  line = Line("two trainings in one MODEL_DIR")
  for number, reference in enumerate(references):
    folder = workshop.folder / "runs" / f"two_{number}"
    command = workshop.command(reference.training, folder)
    first = workshop.start(command, f"two_{number}_first")
    wait_for(folder, "train/log.jsonl", first.process)
    first.process.send_signal(signal.SIGSTOP)
    second = workshop.run(command, f"two_{number}_second")
    first.process.send_signal(signal.SIGCONT)
    line.tried += 1
    line.check(second.process.returncode == 2, f"the second ended with {second.process.returncode}")
    line.check("another training is writing to this folder" in second.err, f"it said: {second.last_words()}")
    first.wait(PATIENCE)
    line.check_end(reference, folder, first)
  line.notes = ["the second refused"]
  return line.row()
