"""The training log after faults: half a line that a killed run left, and files that can grow no more."""

import json
import pathlib
import struct
import subprocess
import sys

from tensorboardX.proto import event_pb2

from retrieval_jax.training_log import TrainingLog

# A file may have so many bytes, which is refused as a full disk is. The log's line goes first and is the shorter one.
LIMITED = """
import pathlib, resource, sys
from retrieval_jax.errors import UserError
from retrieval_jax.training_log import TrainingLog
log = TrainingLog(pathlib.Path(sys.argv[1]))
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
try:
  for step in range(100_000):
    log.write(step, {f"a/number/of/a/long/name/{n}": 0.5 for n in range(16)})
except UserError as error:
  sys.exit(f"{step} {error}")
"""


def records(folder: pathlib.Path) -> list[dict]:
  return [json.loads(line) for line in (folder / "train" / "log.jsonl").read_text("utf-8").splitlines()]


def events(content: bytes) -> list[event_pb2.Event]:
  """The records of a file for TensorBoard: length, checksum, message, checksum."""
  found = []
  while content:
    (length,) = struct.unpack("<Q", content[:8])
    found.append(event_pb2.Event.FromString(content[12 : 12 + length]))
    content = content[16 + length :]
  return found


def test_what_is_written_is_in_both_files(tmp_path):
  log = TrainingLog(tmp_path)
  log.write(10, {"loss": 2.5, "hard/negatives": 3.0, "bad": float("nan")})
  log.write(20, {"loss": 1.5})
  log.close()
  first, second = records(tmp_path)
  assert {name: first[name] for name in ("step", "loss", "bad")} == {"step": 10, "loss": 2.5, "bad": None}
  assert (second["step"], second["loss"]) == (20, 1.5)
  (file,) = (tmp_path / "train").glob("events.out.tfevents.*")
  found = [(e.step, {v.tag: v.simple_value for v in e.summary.value}) for e in events(file.read_bytes())]
  assert found == [(0, {}), (10, {"loss": 2.5, "hard/negatives": 3.0}), (20, {"loss": 1.5})]


def test_half_a_line_that_a_killed_run_left_is_cut_off(tmp_path):
  (tmp_path / "train").mkdir()
  (tmp_path / "train" / "log.jsonl").write_text('{"step": 1}\n{"step": 2, "lo', encoding="utf-8")
  log = TrainingLog(tmp_path)
  log.write(2, {})
  log.close()
  assert [record["step"] for record in records(tmp_path)] == [1, 2]


def test_files_that_cannot_grow_end_the_run_with_a_message(tmp_path):
  for limit in (0, 50_000):
    done = subprocess.run(
      [sys.executable, "-c", LIMITED, str(tmp_path / str(limit)), str(limit)],
      capture_output=True,
      text=True,
      timeout=120,
      check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "cannot be written: File too large" in done.stderr
    assert "goes on from the last checkpoint" in done.stderr
    assert "Traceback" not in done.stderr
    assert (int(done.stderr.split()[0]) > 10) == (limit > 0)
