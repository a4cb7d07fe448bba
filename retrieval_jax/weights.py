"""Where a program's parameters come from: a checkpoint, somebody's files, random numbers."""

import pathlib
import sys
from typing import Any, Final

import jax
import numpy as np
from jaxtyping import Array, PyTree

from retrieval_jax import portable
from retrieval_jax.checkpoint_tables import parameter_table
from retrieval_jax.errors import UserError
from retrieval_jax.interop import reading, sources, vocabulary_rows
from retrieval_jax.interop.foreign import ForeignModel, ForeignTower
from retrieval_jax.model_section import read_model_section
from retrieval_jax.partitioning import Partitioner, partitioner
from retrieval_jax.pretrained import Pretrained
from retrieval_jax.retriever import Retriever, check_inputs, checkpoint_params, vocabulary_fingerprint

# Plain words that every tokenizer cuts by its vocabulary alone.
PROBES: Final = (
  "the quick brown fox jumps over the lazy dog",
  "a b c d e f g h i j k l m n o p q r s t u v w x y z",
  "0 1 2",
)


def initial_params(retriever: Retriever, mesh: Partitioner, *, seed: int) -> PyTree[Array]:
  """Returns the parameters before training, on the mesh: the weights to start from, the rest initialised from `seed`.

  Each device receives its own piece of every array; only parts that the weights lack are initialised.

  Raises: UserError for weights that do not fit.

  Example: `initial_params(Retriever(model, inputs), partitioner(), seed=0)`.
  """
  check_inputs(retriever)
  model = retriever.model
  rng = jax.random.key(seed)
  abstract = jax.eval_shape(model.init, rng)
  shardings = mesh.shardings(abstract, model.logical_axes())
  start = retriever.start
  if start is None:
    return jax.jit(model.init, out_shardings=shardings)(rng)

  direct = _direct(retriever, start, abstract, mesh)
  if direct is not None:
    return direct

  def read(source: str, vocab_size: int | None) -> ForeignModel:
    found = read_model(source, vocab_size=vocab_size, reader=retriever)
    _check_ids(source, found, retriever)
    return found

  filled = start.overlay(model, abstract, read)
  fresh = [name for name in filled if filled[name] is abstract[name]]
  params = portable.placed(
    {name: part for name, part in filled.items() if name not in fresh},
    {name: part for name, part in shardings.items() if name not in fresh},
  )
  if fresh:
    init = jax.jit(
      lambda rng: {name: model.init(rng)[name] for name in fresh},
      out_shardings={name: shardings[name] for name in fresh},
    )
    params.update(init(rng))
  return {name: params[name] for name in abstract}


def _direct(
  retriever: Retriever, start: Pretrained, abstract: PyTree[jax.ShapeDtypeStruct], mesh: Partitioner
) -> PyTree[Array] | None:
  """Returns the parameters of a MODEL_DIR of the same model straight from disk to the mesh; None if it is another one."""
  folder = start.folder()
  if start.passage_path is not None or sources.detect(folder) != "retrieval_jax":
    return None
  own = read_model_section(folder)
  theirs = jax.eval_shape(own.model.init, jax.random.key(0))
  same_tree = parameter_table(theirs) == parameter_table(abstract)
  same_text = vocabulary_fingerprint(own.inputs) == vocabulary_fingerprint(retriever.inputs)
  if not (same_tree and same_text and own.model.computation() == retriever.model.computation()):
    return None
  params, step = checkpoint_params(retriever, mesh, folder)
  if jax.process_index() == 0:
    print(f"pretrained: {start.path}, checkpoint {step}", file=sys.stderr)
  return params


def read_model(
  source: str, *, vocab_size: int | None = None, step: int | None = None, reader: Retriever | None = None
) -> ForeignModel:
  """Returns the towers of any folder there is a reader for, a MODEL_DIR included, on the host.

  vocab_size: rows of the token tables; None: as they are. step: of a MODEL_DIR's checkpoint; None: the newest.
  reader: what will read text with these parameters: a MODEL_DIR of another vocabulary is refused.

  Raises: UserError if there is nothing to read or it does not fit.

  Example: `read_model("/tmp/run").query.spec.pooling`.
  """
  folder = sources.locate(source)
  if sources.detect(folder) != "retrieval_jax":
    if step is not None:
      raise UserError(
        f"{source} is no MODEL_DIR of retrieval_jax: a step has no meaning there. Leave it out."
      )
    return reading.read(source, vocab_size=vocab_size)
  own = read_model_section(folder)
  if reader is not None and vocabulary_fingerprint(own.inputs) != vocabulary_fingerprint(reader.inputs):
    raise UserError(
      f"{source} was trained with another vocabulary than the configured one: its token ids would mean other words. "
      f"Set VOCABULARY_PATH to its own ({own.inputs.vocabulary!r}), or take the model file {folder / 'model.gin'}."
    )
  params, _ = checkpoint_params(own, host_partitioner(), folder, step=step)
  foreign = portable.foreign_of(own.model, params, own.inputs)
  if vocab_size is None:
    return foreign
  return foreign.each(lambda tower: _resized(tower, vocab_size))


def _check_ids(source: str, found: ForeignModel, retriever: Retriever) -> None:
  """Raises UserError if the files bring a vocabulary that gives plain words other ids than the one configured."""
  inputs = retriever.inputs
  sides = (inputs.query_side.vocabulary, inputs.passage_side.vocabulary)
  for tower in found:
    if tower is None or tower.text.vocabulary_path is None:
      continue
    theirs = portable.vocabulary_of(tower.text, tower.spec.encoder.family, None).encode_ragged(
      PROBES, length=64
    )
    for vocabulary in sides:
      ours = vocabulary.encode_ragged(PROBES, length=64)
      if all(np.array_equal(one, other) for one, other in zip(ours, theirs, strict=True)):
        break
    else:
      raise UserError(
        f"{source}: its vocabulary ({tower.text.vocabulary_path}) gives words other ids than the configured one "
        f"({sides[0]!r}): set VOCABULARY_PATH to the one that belongs to the weights."
      )


def host_partitioner() -> Partitioner:
  """Returns the partitioner of this process's host memory alone: for models that are read to be written elsewhere."""
  return partitioner(devices=jax.local_devices(backend="cpu")[:1])


def _resized(tower: ForeignTower, rows: int) -> ForeignTower:
  table = np.asarray(tower.params["token_embedder"]["embedding"])
  embedder: dict[str, Any] = {"embedding": vocabulary_rows.resized(table, rows)}
  return tower._replace(
    spec=tower.spec._replace(vocab_size=rows), params={**tower.params, "token_embedder": embedder}
  )


def evaluation_params(
  retriever: Retriever, mesh: Partitioner, folder: pathlib.Path, *, step: int | None = None
) -> tuple[PyTree[Array], int, str]:
  """Returns (parameters, step, where they come from) for programs that read a model.

  The folder's checkpoints come first; a folder without any stands for the pretrained weights, step 0 ("zero-shot").

  Raises: UserError when there is neither.

  Example: `evaluation_params(retriever, partitioner(), pathlib.Path("/tmp/run"))`.
  """
  trained = folder.is_dir() and any(folder.glob("checkpoint_*"))
  if trained or step is not None or retriever.start is None:
    params, found = checkpoint_params(retriever, mesh, folder, step=step)
    return params, found, str(folder / f"checkpoint_{found}")
  where = "has no checkpoint" if folder.is_dir() else "does not exist"
  print(f"MODEL_DIR={folder} {where}: taking the pretrained weights as they are", file=sys.stderr)
  return initial_params(retriever, mesh, seed=0), 0, "pretrained"
