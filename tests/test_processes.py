"""How processes find each other and what they say; tests/end_to_end/test_processes.py runs several for real."""

import socket

import jax
import pytest

from retrieval_jax import processes
from retrieval_jax.errors import UserError
from retrieval_jax.processes import ProcessOptions


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> list[tuple]:
  """What jax.distributed is asked for, which would wait for other processes here."""
  calls: list[tuple] = []

  def initialize(*arguments, **options):
    calls.append((*arguments, options))

  monkeypatch.setattr("jax.distributed.initialize", initialize)
  return calls


def test_one_process_joins_nobody(joined):
  processes.start(ProcessOptions(), environment={})
  processes.start(ProcessOptions("here:1", 1, 0), environment={})
  assert joined == []


def test_flags_win_over_everything(joined):
  environment = {"JAX_COORDINATOR_ADDRESS": "there:2", "JAX_NUM_PROCESSES": "9", "JAX_PROCESS_ID": "8"}
  processes.start(ProcessOptions("here:1", 4, 3), environment=environment)
  ((address, count, own, options),) = joined
  assert (address, count, own) == ("here:1", 4, 3)
  assert options["cluster_detection_method"] == "deactivate"  # or SLURM would give the process one GPU


def test_jax_s_own_variables(joined):
  environment = {"JAX_COORDINATOR_ADDRESS": "there:2", "JAX_NUM_PROCESSES": "9", "JAX_PROCESS_ID": "8"}
  processes.start(ProcessOptions(), environment=environment)
  assert joined[0][:3] == ("there:2", 9, 8)
  with pytest.raises(UserError, match="JAX_PROCESS_ID not set, which several processes need beside"):
    processes.start(
      ProcessOptions(), environment={k: v for k, v in environment.items() if k != "JAX_PROCESS_ID"}
    )
  with pytest.raises(UserError, match="JAX_NUM_PROCESSES='nine': expected a whole number"):
    processes.start(ProcessOptions(), environment={**environment, "JAX_NUM_PROCESSES": "nine"})


SLURM = {
  "SLURM_JOB_ID": "1",
  "SLURM_STEP_NODELIST": "n1,n2",
  "SLURM_NTASKS": "2",
  "SLURM_PROCID": "1",
  "SLURM_LOCALID": "0",
}


@pytest.mark.parametrize(
  ("more", "devices"),
  [
    ({"SLURM_STEP_TASKS_PER_NODE": "1(x2)", "SLURM_GPUS_ON_NODE": "8"}, [0, 1, 2, 3, 4, 5, 6, 7]),
    ({"SLURM_STEP_TASKS_PER_NODE": "1", "SLURM_GPUS_ON_NODE": "2"}, [0, 1]),
    ({"SLURM_STEP_TASKS_PER_NODE": "8(x2)", "SLURM_GPUS_ON_NODE": "8"}, None),
    ({"SLURM_STEP_TASKS_PER_NODE": "1(x2)"}, None),
  ],
)
def test_slurm_gives_a_task_the_gpus_of_its_node_where_it_is_alone_there(joined, more, devices):
  processes.start(ProcessOptions(), environment={**SLURM, **more})
  assert joined[0][3] == {
    "initialization_timeout": 330,
    "cluster_detection_method": "slurm",
    "local_device_ids": devices,
  }


def test_slurm_with_one_task_or_outside_of_srun_is_one_process(joined):
  processes.start(ProcessOptions(), environment={**SLURM, "SLURM_NTASKS": "1"})
  processes.start(ProcessOptions(), environment={"SLURM_JOB_ID": "1", "SLURM_NTASKS": "2"})
  assert joined == []


@pytest.mark.parametrize(
  ("options", "message"),
  [
    (ProcessOptions("here:1"), "--num_processes and --process_id missing"),
    (ProcessOptions(num_processes=2, process_id=0), "--coordinator_address missing"),
    (
      ProcessOptions("here:1", 2, 2),
      "--num_processes=2, --process_id=2: expected at least one process, and an id from 0 to 1",
    ),
    (ProcessOptions("here:1", 0, 0), "--num_processes=0"),
    (ProcessOptions("here", 2, 0), "--coordinator_address=here: expected HOST:PORT"),
    (ProcessOptions("http://here:1", 2, 1), "--coordinator_address=http://here:1: expected HOST:PORT"),
    (ProcessOptions("here:99999", 2, 1), "a port from 1 to 65535"),
    (ProcessOptions("here:1", 2, 1, 0), "--initialization_timeout=0"),
  ],
)
def test_flags_that_do_not_go_together(joined, options, message):
  with pytest.raises(UserError, match=message):
    processes.start(options, environment={})
  assert joined == []


def test_a_port_that_is_taken(joined):
  with socket.socket() as taken:
    taken.bind(("", 0))
    taken.listen()
    port = taken.getsockname()[1]
    with pytest.raises(UserError, match=f"port {port} of this machine cannot be taken"):
      processes.start(ProcessOptions(f"localhost:{port}", 2, 0), environment={})
  assert joined == []


@pytest.mark.parametrize(
  ("text", "gone"),
  [
    ("Gloo AllGather failed: [..] Connection closed by peer [127.0.0.1]:3", True),
    ("INTERNAL: NCCL operation ncclAllReduce failed: remote process exited", True),
    ("UNAVAILABLE: The following tasks are unhealthy (stopped sending heartbeats): 1", True),
    ("RESOURCE_EXHAUSTED: Out of memory allocating 17 bytes", False),
    ("INVALID_ARGUMENT: shapes do not match", False),
  ],
)
def test_a_lost_peer_is_told_from_other_errors(text, gone):
  assert processes.is_peer_gone(jax.errors.JaxRuntimeError(text)) is gone
  assert not processes.is_peer_gone(ValueError(text))


def test_one_process_agrees_with_itself():
  assert processes.agree({"a": (1, 2)}) == {"a": [1, 2]}
  assert processes.all_agree(True)
  assert not processes.all_agree(False)
  processes.check_same("data", {"rows": (1, 2)})
  processes.wait_for_all("nobody")
  assert processes.described() == "process 0 of 1"
  assert processes.is_first()
  assert not processes.are_several()
