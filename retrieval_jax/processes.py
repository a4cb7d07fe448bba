"""Several processes that are one run: how they find each other, agree, and part when one of them is gone."""

import contextlib
import glob
import importlib.util
import itertools
import json
import os
import re
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple, NoReturn

import jax
import numpy as np

from retrieval_jax import exit_codes
from retrieval_jax.errors import UserError

SLURM: Final = ("SLURM_JOB_ID", "SLURM_STEP_NODELIST", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID")
# What collectives say when the process at the other end is gone: gloo on CPUs, NCCL on GPUs, jax's coordination service.
_GONE: Final = re.compile(
  r"gloo|connection (closed|reset)|broken pipe|nccl|remote process|heartbeat|coordination service|task.*(died|unavailable)",
  re.IGNORECASE,
)
_MEETINGS = itertools.count()  # a barrier's name serves once
# Seconds in which the others may say what they saw before process 0 ends, and the coordination service with it.
_GRACE: Final = 3.0


class ProcessOptions(NamedTuple):
  """Who this process is among the processes of a run; all None: what the environment says.

  coordinator_address: "host:port" of process 0, where the port is free. num_processes, process_id: how many there are, and
  which of them this is. initialization_timeout: seconds to wait for the others at the start.
  """

  coordinator_address: str | None = None
  num_processes: int | None = None
  process_id: int | None = None
  initialization_timeout: int = 300


def start(
  options: ProcessOptions, *, takes_notice: bool = False, environment: Mapping[str, str] | None = None
) -> None:
  """Joins the processes of the run, before anything asks jax for its devices; nothing to do for one process.

  Looked at in this order: the options; JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID; SLURM's variables
  under srun with more than one task; TPU chips of this machine, whose metadata (TPU VM, GKE) name the workers.
  Under SLURM with one task a node the task has all GPUs of its node, with several each has its own.
  takes_notice: SIGTERM is a notice of preemption, for StopRequest (interruption.py); else it ends the process as usual.

  Raises: UserError for options that do not go together, and when the processes do not find each other in time.

  Example: `start(ProcessOptions("10.0.0.1:8476", num_processes=2, process_id=0))`.
  """
  environ = os.environ if environment is None else environment
  options = _with_environment(options, environ)
  jax.config.update("jax_enable_preemption_service", takes_notice)
  if any(value is not None for value in options[:3]):
    _check(options)
    if options.num_processes == 1:
      return
    _initialize(options, cluster_detection_method="deactivate")
  elif all(name in environ for name in SLURM) and int(environ["SLURM_NTASKS"]) > 1:
    _initialize(options, cluster_detection_method="slurm", local_device_ids=_slurm_devices(environ))
  elif _has_tpu(environ):
    _initialize(options)


def is_first() -> bool:
  """Returns whether this is process 0: the one that writes and speaks."""
  return jax.process_index() == 0


def agree(value: Any) -> Any:
  """Returns process 0's value, as it comes out of JSON, on all processes; collective, every process must call it.

  Example: `agree([path.name for path in folder.iterdir()])`: what the others see of a shared folder may lag.
  """
  if jax.process_count() == 1:
    return json.loads(json.dumps(value))
  from jax.experimental import multihost_utils

  text = np.frombuffer(json.dumps(value).encode(), np.uint8) if is_first() else np.zeros(0, np.uint8)
  length = int(multihost_utils.broadcast_one_to_all(np.int32(len(text))))
  buffer = np.zeros(length, np.uint8)
  buffer[: len(text)] = text
  return json.loads(bytes(np.asarray(multihost_utils.broadcast_one_to_all(buffer)).astype(np.uint8)))


def all_agree(flag: bool) -> bool:
  """Returns whether the flag is True on all processes; collective, every process must call it.

  Example: `all_agree(restored)`: a checkpoint that one process cannot read is read by none.
  """
  if jax.process_count() == 1:
    return flag
  from jax.experimental import multihost_utils

  return bool(np.all(multihost_utils.process_allgather(np.array(flag))))


def wait_for_all(name: str) -> None:
  """Blocks until every process is here; collective. name: the same on all."""
  if jax.process_count() > 1:
    from jax.experimental import multihost_utils

    multihost_utils.sync_global_devices(name)


def meet(name: str, *, timeout: float) -> None:
  """Blocks until every process is here, however long one of them takes, up to `timeout` seconds; no device takes part.

  Before the first collective of a kind: gloo gives the others 30 s to come to it, and one may compile longer than that.

  Raises: JaxRuntimeError when the time is over.
  """
  if jax.process_count() > 1:
    import orbax.checkpoint as ocp

    together = ocp.multihost.get_barrier_sync_fn(processes=set(range(jax.process_count())))
    together(key=f"{name} {next(_MEETINGS)}", timeout_ms=int(1000 * timeout))


def described() -> str:
  """Returns what to call this process in a message, such as "process 1 of 4"."""
  return f"process {jax.process_index()} of {jax.process_count()}"


def check_same(name: str, value: Mapping[str, Any]) -> None:
  """Raises UserError, on every process, unless all have process 0's value; collective. value: a dict that JSON can hold.

  Example: `check_same("data", {"fingerprint": data.fingerprint})`.
  """
  first, own = agree(value), json.loads(json.dumps(value))
  if not all_agree(first == own):
    different = [
      f"  {key}: here {own.get(key)!r:.80}, on process 0 {first.get(key)!r:.80}"
      for key in sorted(first.keys() | own.keys())
      if first.get(key) != own.get(key)
    ]
    said = "\n".join(different) or "  not here: see the other processes' messages"
    raise UserError(
      f"{described()}: the {name} of this run are not the same on all processes:\n{said}\n"
      "Start all with the same command, and give all the same files."
    )


@contextlib.contextmanager
def leaving_on_failure() -> Iterator[None]:
  """Ends this process of several at once by whatever but a UserError is raised inside the block.

  The others wait in a collective for it, and what closes the block's surroundings, such as checkpoints, would wait for them.
  """
  try:
    yield
  except UserError:
    raise
  except Exception as error:
    if jax.process_count() > 1:
      leave_for(error)
    raise


def are_several() -> bool:
  """Returns whether this run has several processes; asks for no devices that nobody has asked for yet."""
  return "jax" in sys.modules and jax.distributed.is_initialized() and jax.process_count() > 1


def is_peer_gone(error: BaseException) -> bool:
  """Returns whether an error is what a collective says when a process at its other end is gone."""
  return isinstance(error, jax.errors.JaxRuntimeError) and bool(_GONE.search(str(error)))


def leave(code: int) -> NoReturn:
  """Ends this process of several at once: jax's own end waits for the others, who may wait for this one.

  Process 0 waits a moment, so that the others, which see the coordination service go with it, can say what they have to.
  """
  sys.stdout.flush()
  sys.stderr.flush()
  if is_first():
    time.sleep(_GRACE)
  os._exit(code)


def leave_for(error: BaseException) -> NoReturn:
  """Says what an error is, and ends this process of several: with PEER_DIED if another one is gone, else with FAILED."""
  if not is_peer_gone(error):
    traceback.print_exception(error)
    leave(exit_codes.FAILED)
  first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
  print(
    f"error: {described()}: another process of this run is gone ({first[:200]}). Nothing is lost beyond the last checkpoint: "
    f"start all processes again with the same command. Exit code {exit_codes.PEER_DIED}.",
    file=sys.stderr,
    flush=True,
  )
  leave(exit_codes.PEER_DIED)


def _initialize(options: ProcessOptions, **detection: Any) -> None:
  where = options.coordinator_address or "the coordinator that the environment names"
  seconds = options.initialization_timeout
  count = "the" if options.num_processes is None else str(options.num_processes)
  print(f"waiting for {count} processes at {where}, up to {seconds} s", file=sys.stderr, flush=True)
  message = (
    f"the processes of this run did not find each other at {where} within {seconds} s. Start all of them with the same "
    "--coordinator_address (a free port of process 0's machine, which the others can reach) and --num_processes, each with "
    "its own --process_id."
  )

  def give_up() -> None:  # by itself jax ends the process with a stack trace of C++
    print(f"error: {message} Exit code {exit_codes.PEER_DIED}.", file=sys.stderr, flush=True)
    os._exit(exit_codes.PEER_DIED)

  timer = threading.Timer(seconds, give_up)
  timer.daemon = True
  timer.start()
  try:
    jax.distributed.initialize(
      options.coordinator_address,
      options.num_processes,
      options.process_id,
      initialization_timeout=seconds + 30,
      **detection,
    )
  except (RuntimeError, ValueError) as error:
    raise UserError(f"{message}\n{error}") from error
  finally:
    timer.cancel()


def _with_environment(options: ProcessOptions, environ: Mapping[str, str]) -> ProcessOptions:
  """Returns the options, filled up by jax's variables where none of the three is given."""
  if any(value is not None for value in options[:3]):
    return options
  numbers = [environ.get(name) for name in ("JAX_NUM_PROCESSES", "JAX_PROCESS_ID")]
  if numbers == [None, None]:
    return options
  names = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
  if missing := [name for name in names if name not in environ]:
    raise UserError(
      f"{' and '.join(missing)} not set, which several processes need beside {', '.join(n for n in names if n in environ)}. Set all "
      "three, or none."
    )
  count, own = (
    _number(name, str(n)) for name, n in zip(("JAX_NUM_PROCESSES", "JAX_PROCESS_ID"), numbers, strict=True)
  )
  return options._replace(
    coordinator_address=environ["JAX_COORDINATOR_ADDRESS"], num_processes=count, process_id=own
  )


def _number(name: str, text: str) -> int:
  if not text.isdigit():
    raise UserError(f"{name}={text!r}: expected a whole number.")
  return int(text)


def _check(options: ProcessOptions) -> None:
  address, count, own, _ = options
  missing = [
    flag
    for flag, value in (("--coordinator_address", address), ("--num_processes", count), ("--process_id", own))
    if value is None
  ]
  if missing:
    raise UserError(
      f"{' and '.join(missing)} missing: several processes need --coordinator_address=HOST:PORT, --num_processes and --process_id."
    )
  assert count is not None
  assert own is not None
  if count < 1 or not 0 <= own < count:
    raise UserError(
      f"--num_processes={count}, --process_id={own}: expected at least one process, and an id from 0 to {max(count, 1) - 1}."
    )
  host, _, port = str(address).rpartition(":")
  if not host or "/" in host or not port.isdigit() or not 0 < int(port) < 2**16:
    raise UserError(
      f"--coordinator_address={address}: expected HOST:PORT with a port from 1 to 65535, such as 10.0.0.1:8476."
    )
  if type(options.initialization_timeout) is not int or options.initialization_timeout < 1:
    raise UserError(
      f"--initialization_timeout={options.initialization_timeout}: expected a whole number of seconds of at least 1."
    )
  if own == 0:
    _check_port(int(port))


def _check_port(port: int) -> None:
  """Raises UserError if something else has the coordinator's port, which jax would answer with a segmentation fault."""
  with socket.socket(socket.AF_INET6 if socket.has_ipv6 else socket.AF_INET) as probe:
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
      probe.bind(("", port))
    except OSError as error:
      raise UserError(
        f"--coordinator_address: port {port} of this machine cannot be taken ({error.strerror}). Choose another one, the same for "
        "all processes; or is --process_id=0 given twice?"
      ) from error


def _slurm_devices(environ: Mapping[str, str]) -> list[int] | None:
  """Returns the GPUs of this task where a node has one task: all of them; None leaves jax its rule, one GPU a task."""
  if not re.fullmatch(r"1(\(x\d+\))?", environ.get("SLURM_STEP_TASKS_PER_NODE", "")):
    return None
  gpus = environ.get("SLURM_GPUS_ON_NODE", "")
  return list(range(int(gpus))) if gpus.isdigit() and int(gpus) else None


def _has_tpu(environ: Mapping[str, str]) -> bool:
  if environ.get("JAX_PLATFORMS", "tpu").split(",")[0] != "tpu" or importlib.util.find_spec("libtpu") is None:
    return False
  return bool(glob.glob("/dev/accel[0-9]*") or glob.glob("/dev/vfio/[0-9]*"))
