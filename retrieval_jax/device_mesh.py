"""The mesh: which device stands where on the axes 'replica', 'data' and 'model'."""

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from jax.sharding import AxisType, Mesh

from retrieval_jax.errors import UserError

REPLICA_AXIS: Final = "replica"
DATA_AXIS: Final = "data"
MODEL_AXIS: Final = "model"
AXES: Final = (REPLICA_AXIS, DATA_AXIS, MODEL_AXIS)

Shape = tuple[int, int, int]


def device_mesh(
  devices: Sequence[Any],
  *,
  num_partitions: int = 1,
  ici_mesh_shape: Sequence[int] | None = None,
  dcn_mesh_shape: Sequence[int] | None = None,
) -> Mesh:
  """Returns the mesh of the axes ('replica', 'data', 'model') over all these devices.

  ici_mesh_shape: devices along each axis inside a slice (what the fast links join); dcn_mesh_shape: slices along each axis
  (joined by the data centre's network). The mesh has their product along each axis; one entry may be -1: what is left over.
  Without them each slice is a replica and its devices are num_partitions along 'model' and the rest along 'data'. Devices
  that know no slices, such as CPUs and GPUs, are one slice unless dcn_mesh_shape cuts them, in their order: by process.
  On TPUs jax's mesh_utils lays the axes along the torus, whatever the generation. Elsewhere neighbours in the list are
  neighbours along 'model', so that the GPUs of a machine share a model before those of several.

  Raises: UserError for shapes that do not make up the number of devices, with the ones that do.

  Example: of 8 devices, `device_mesh(jax.devices(), num_partitions=2).shape` is {'replica': 1, 'data': 4, 'model': 2}.
  """
  # How many slices the hardware says there are.
  slices = len({getattr(device, "slice_index", 0) for device in devices})
  dcn = _shape("DCN_MESH_SHAPE", dcn_mesh_shape, slices if slices > 1 else None) or (slices, 1, 1)
  per_slice = len(devices) // math.prod(dcn)
  if math.prod(dcn) * per_slice != len(devices):
    raise UserError(
      f"DCN_MESH_SHAPE={tuple(dcn)} makes {math.prod(dcn)} slices, which do not divide the {len(devices)} devices. "
      f"Its product must be among {_divisors(len(devices))}."
    )
  ici = _shape("ICI_MESH_SHAPE", ici_mesh_shape, per_slice)
  if ici is None:
    _check_partitions(num_partitions, per_slice)
    ici = (1, per_slice // num_partitions, num_partitions)
  elif num_partitions not in (1, ici[2] * dcn[2]):
    raise UserError(
      f"NUM_PARTITIONS={num_partitions} and ICI_MESH_SHAPE={ici}, which has {ici[2] * dcn[2]} partitions along 'model': "
      "leave NUM_PARTITIONS out."
    )
  # jax.make_mesh defaults to Explicit axes, under which q @ p.T with both sides sharded raises.
  return Mesh(_grid(devices, ici, dcn, slices), AXES, axis_types=(AxisType.Auto,) * len(AXES))


def _grid(devices: Sequence[Any], ici: Shape, dcn: Shape, slices: int) -> np.ndarray:
  shape = tuple(np.multiply(dcn, ici).tolist())
  if devices[0].platform == "tpu":
    from jax.experimental import mesh_utils

    if slices > 1:
      return mesh_utils.create_hybrid_device_mesh(ici, dcn, devices, allow_split_physical_axes=True)
    return mesh_utils.create_device_mesh(shape, devices, allow_split_physical_axes=True)
  by_slice = np.asarray(devices, dtype=object).reshape(*dcn, *ici)
  return by_slice.transpose(0, 3, 1, 4, 2, 5).reshape(shape)


def _shape(macro: str, given: Sequence[int] | None, total: int | None) -> Shape | None:
  """Returns the three sizes, -1 replaced by what makes their product `total`; None for none.

  Raises: UserError for anything but three whole numbers of at least 1, one of them perhaps -1, or another product.
  """
  if given is None:
    return None
  sizes = list(given) if isinstance(given, tuple | list) else []
  if len(sizes) != len(AXES) or any(type(n) is not int or (n < 1 and n != -1) for n in sizes):
    raise UserError(
      f"{macro}={given!r}: expected three whole numbers, the devices along {', '.join(AXES)}, such as (1, 4, 2); one of them may "
      "be -1: as many as are left."
    )
  if sizes.count(-1) > 1 or (-1 in sizes and total is None):
    raise UserError(f"{macro}={given!r}: only one number may be -1, and only where the total is known.")
  known = math.prod(n for n in sizes if n != -1)
  if total is not None and -1 in sizes and total % known == 0:
    sizes[sizes.index(-1)] = total // known
  if total is not None and math.prod(sizes) != total:
    what = "slices" if macro.startswith("DCN") else "devices of a slice"
    raise UserError(
      f"{macro}={given!r}: its product is not the number of {what}, {total}. Nearest valid values: {_nearest(sizes, total)}."
    )
  return sizes[0], sizes[1], sizes[2]


def _nearest(sizes: Sequence[int], total: int) -> str:
  """Returns the shapes of this product that are nearest to `sizes`, in words."""

  def distance(shape: Shape) -> float:
    return sum(abs(math.log(max(a, 1)) - math.log(b)) for a, b in zip(sizes, shape, strict=True))

  shapes = [(a, b, total // a // b) for a in _divisors(total) for b in _divisors(total // a)]
  return " or ".join(map(str, sorted(shapes, key=distance)[:2]))


def _check_partitions(num_partitions: int, per_slice: int) -> None:
  if type(num_partitions) is not int or num_partitions < 1 or per_slice % num_partitions:
    raise UserError(
      f"NUM_PARTITIONS={num_partitions!r} does not divide the {per_slice} devices. Valid values: {_divisors(per_slice)}."
    )


def _divisors(number: int) -> list[int]:
  return [n for n in range(1, number + 1) if number % n == 0]
