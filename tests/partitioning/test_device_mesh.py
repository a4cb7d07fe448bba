"""Which device stands where."""

import dataclasses

import jax
import numpy as np
import pytest

from retrieval_jax.device_mesh import device_mesh
from retrieval_jax.errors import UserError


@dataclasses.dataclass(frozen=True)
class Device:
  """What the mesh looks at in a device of several slices, none of which is here."""

  id: int
  slice_index: int
  process_index: int = 0
  platform: str = "gpu"


def ids(mesh) -> list:
  return np.vectorize(lambda device: device.id)(mesh.devices).tolist()


def test_default_is_data_parallel():
  assert dict(device_mesh(jax.devices()).shape) == {"replica": 1, "data": 8, "model": 1}
  assert dict(device_mesh(jax.devices()[:1]).shape) == {"replica": 1, "data": 1, "model": 1}


def test_neighbours_share_a_model():
  mesh = device_mesh(jax.devices(), num_partitions=4)
  assert dict(mesh.shape) == {"replica": 1, "data": 2, "model": 4}
  assert ids(mesh) == [[[0, 1, 2, 3], [4, 5, 6, 7]]]


def test_one_number_may_be_left_open():
  assert dict(device_mesh(jax.devices(), ici_mesh_shape=(2, -1, 2)).shape) == {
    "replica": 2,
    "data": 2,
    "model": 2,
  }


def test_slices_cut_the_devices_in_their_order():
  mesh = device_mesh(jax.devices(), dcn_mesh_shape=(2, 1, 1), num_partitions=2)
  assert ids(mesh) == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]
  along_data = device_mesh(jax.devices(), dcn_mesh_shape=(1, 2, 1), ici_mesh_shape=(1, 2, 2))
  assert ids(along_data) == [[[0, 1], [2, 3], [4, 5], [6, 7]]]
  along_model = device_mesh(jax.devices(), dcn_mesh_shape=(1, 1, 2), ici_mesh_shape=(1, 4, 1))
  assert ids(along_model) == [[[0, 4], [1, 5], [2, 6], [3, 7]]]


def test_each_slice_of_the_hardware_is_a_replica():
  devices = [Device(i, i // 4) for i in range(8)]
  assert dict(device_mesh(devices, num_partitions=2).shape) == {"replica": 2, "data": 2, "model": 2}


@pytest.mark.parametrize(
  ("given", "message"),
  [
    ({"num_partitions": 3}, r"NUM_PARTITIONS=3 does not divide the 8 devices. Valid values: \[1, 2, 4, 8\]"),
    ({"num_partitions": 0}, "NUM_PARTITIONS=0 does not divide"),
    ({"ici_mesh_shape": (1, 4)}, r"ICI_MESH_SHAPE=\(1, 4\): expected three whole numbers"),
    (
      {"ici_mesh_shape": (1, 3, 2)},
      r"the number of devices of a slice, 8. Nearest valid values: \(1, 4, 2\)",
    ),
    ({"ici_mesh_shape": (-1, -1, 2)}, "only one number may be -1"),
    (
      {"ici_mesh_shape": (1, 4, 2), "num_partitions": 4},
      "which has 2 partitions along 'model': leave NUM_PARTITIONS out",
    ),
    ({"dcn_mesh_shape": (3, 1, 1)}, "makes 3 slices, which do not divide the 8 devices"),
    ({"dcn_mesh_shape": (2, 1, 1), "num_partitions": 8}, "NUM_PARTITIONS=8 does not divide the 4 devices"),
  ],
)
def test_a_mesh_that_cannot_be(given, message):
  with pytest.raises(UserError, match=message):
    device_mesh(jax.devices(), **given)
