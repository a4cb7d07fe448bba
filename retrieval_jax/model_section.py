"""The model section of a MODEL_DIR (model.gin): written for a model without gin files of its own, and read back."""

import pathlib
import re
from collections.abc import Mapping
from typing import Any, Final

from retrieval_jax import configuration, paths
from retrieval_jax.data.text_inputs import TextInputs
from retrieval_jax.data.vocabularies import FileVocabulary, SentencePiece, WordPiece
from retrieval_jax.errors import UserError
from retrieval_jax.models.dual_encoder import SHARING, TowerPair
from retrieval_jax.portable import spec_of
from retrieval_jax.retriever import Retriever

FILE: Final = "model.gin"
VOCABULARY_FOLDER: Final = "vocabulary"
ROOTS: Final = ("MODEL", "INPUTS")
# What makes a trained folder's model.gin a model file to train from in another MODEL_DIR.
START: Final = f"""
# To train on from these weights, in another MODEL_DIR: --gin_file=<this file>
from retrieval_jax import pretrained
INITIAL_CHECKPOINT_PATH = '{paths.HERE_PREFIX}.'
RESIZE_VOCABULARY = False
PRETRAINED = @pretrained.Pretrained()
pretrained.Pretrained.path = %INITIAL_CHECKPOINT_PATH
pretrained.Pretrained.resize_vocabulary = %RESIZE_VOCABULARY
"""
HEADER: Final = """# {title}
# Train from it: python -m retrieval_jax.train --gin_file={file!r} --gin_file=losses/samtone.gin --gin_file=data/... \\
#   --gin.MODEL_DIR=... --gin.TRAIN_STEPS=...
from __gin__ import dynamic_registration

from retrieval_jax.data import text_inputs
from retrieval_jax.data import vocabularies
from retrieval_jax.models import bert
from retrieval_jax.models import dual_encoder
from retrieval_jax.models import t5
from retrieval_jax.models import tower

"""


def section_of(
  model: TowerPair, inputs: TextInputs, *, title: str, file: pathlib.Path, vocabularies: Mapping[str, str]
) -> str:
  """Returns gin text that defines MODEL, INPUTS and PRETRAINED of a model, in the macros of towers/text_tower.gin.

  vocabularies: of `keep_vocabularies`.

  Raises: UserError for a tower that has no such text (a feature-bag tower).

  Example: `section_of(model, inputs, title="Mine.", file=folder / "model.gin", vocabularies=names)`.
  """
  towers = {"query": model.query_tower, "passage": model.passage_tower}
  if model.query_tower == model.passage_tower:
    del towers["passage"]
  lines = [f"SHARING = {scheme_of(model)!r}"]
  lines += _macros(model, inputs)
  lines += ["", "MODEL = @dual_encoder.dual_encoder()", "dual_encoder.dual_encoder.sharing = %SHARING"]
  names = {"query": "tower", "passage": "passage_tower"}
  lines += [f"dual_encoder.dual_encoder.{names[side]} = @{side}/tower.Tower()" for side in towers]
  for side, tower in towers.items():
    lines += ["", *_tower(side, tower, single=len(towers) == 1)]
  lines += ["", *_inputs(inputs, vocabularies), ""]
  return HEADER.format(title=title, file=str(file)) + "\n".join(lines) + START


def _macros(model: TowerPair, inputs: TextInputs) -> list[str]:
  return [
    f"ACTIVATION_DTYPE = {model.query_tower.dtype!r}",
    "DROPOUT_RATE = 0.1",
    "SCAN_LAYERS = False",
    "REMAT_POLICY = 'none'",
    f"QUERY_LENGTH = {inputs.query_length}",
    f"PASSAGE_LENGTH = {inputs.passage_length}",
    f"QUERY_PREFIX = {inputs.query_prefix!r}",
    f"PASSAGE_PREFIX = {inputs.passage_prefix!r}",
    f"PASSAGE_TEMPLATE = {inputs.passage_template!r}",
  ]


# Of one tower for both sides; two towers have values of their own.
TOWER_MACROS: Final = {
  "pooling": "POOLING",
  "projection_dim": "PROJECTION_DIM",
  "vocab_size": "NUM_EMBEDDINGS",
}


def _tower(side: str, tower: Any, *, single: bool) -> list[str]:
  spec = spec_of(tower)
  kind = {"bert": "bert.BertEncoder", "t5": "t5.T5Encoder"}[spec.encoder.family]
  own = spec._asdict()
  del own["encoder"]
  macros = {
    "dropout_rate": "DROPOUT_RATE",
    "dtype": "ACTIVATION_DTYPE",
    "scan_layers": "SCAN_LAYERS",
    "remat_policy": "REMAT_POLICY",
  }
  return [
    f"{side}/tower.Tower.encoder = @{side}/{kind}()",
    *(f"{macro} = {own[name]!r}" for name, macro in TOWER_MACROS.items() if single),
    *(
      f"{side}/tower.Tower.{name} = {f'%{TOWER_MACROS[name]}' if single and name in TOWER_MACROS else repr(value)}"
      for name, value in own.items()
    ),
    *(f"{side}/{kind}.{name} = {value!r}" for name, value in spec.encoder.fields.items()),
    *(f"{side}/{kind}.{name} = %{macro}" for name, macro in macros.items()),
  ]


def _inputs(inputs: TextInputs, vocabularies: Mapping[str, str]) -> list[str]:
  macros = ("query_length", "passage_length", "query_prefix", "passage_prefix", "passage_template")
  lines = ["INPUTS = @text_inputs.TextInputs()"]
  lines += [f"text_inputs.TextInputs.{name} = %{name.upper()}" for name in macros]
  for field in ("vocabulary", "passage_vocabulary"):
    vocabulary = getattr(inputs, field)
    if vocabulary is None:
      continue
    if not isinstance(vocabulary, WordPiece | SentencePiece):
      raise UserError(
        f"{vocabulary!r}: only WordPiece and SentencePiece vocabularies can be written to {FILE}."
      )
    kind = f"vocabularies.{type(vocabulary).__name__}"
    lines += [f"text_inputs.TextInputs.{field} = @{field}/{kind}()"]
    lines += [
      f"{field}/{kind}.{name} = {value!r}"
      for name, value in {"path": vocabularies[vocabulary.path], **vocabulary.options}.items()
    ]
  return lines


def scheme_of(model: TowerPair) -> str:
  """Returns the name of the model's sharing scheme.

  Example: `scheme_of(dual_encoder(tower, sharing="ade_spl"))` is "ade_spl".
  """
  for name, scheme in SHARING.items():
    if (scheme.shared, scheme.frozen) == (model.shared, model.frozen):
      return name
  raise AssertionError(model.shared)


def keep_vocabularies(inputs: TextInputs, folder: pathlib.Path) -> dict[str, str]:
  """Copies the vocabularies' files to folder/vocabulary; returns, by its path as given, the `here:` name of each copy.

  The folder then stands alone: it can be moved, and the package or file that a vocabulary came from may go. A vocabulary
  of a class of one's own stays where it is.

  Raises: UserError if a file cannot be read.

  Example: `keep_vocabularies(inputs, folder)` is `{"spiece.model": "here:vocabulary/spiece.model"}`.
  """
  names = {}
  for vocabulary in (inputs.vocabulary, inputs.passage_vocabulary):
    if not isinstance(vocabulary, FileVocabulary):
      continue
    source = vocabulary.file
    name = re.sub(r"[^\w.-]", "_", source.name)[-40:]  # whatever gin or another system might trip over
    target = folder / VOCABULARY_FOLDER / name
    number = 1
    while target.exists() and target.read_bytes() != source.read_bytes():  # two vocabularies of one file name
      number += 1
      target = target.with_name(f"{number}_{name}")
    if not target.exists():
      with paths.atomic_write(target, "wb") as file:
        file.write(source.read_bytes())
    names[vocabulary.path] = f"{paths.HERE_PREFIX}{VOCABULARY_FOLDER}/{target.name}"
  return names


def read_model_section(folder: pathlib.Path) -> Retriever:
  """Returns the model and inputs that MODEL_DIR/model.gin describes. The gin configuration in use stays as it is.

  Raises: UserError if the file is missing or does not define them.

  Example: `read_model_section(pathlib.Path("/tmp/run")).model.embed_dim`.
  """
  path = folder / FILE
  if not path.is_file():
    raise UserError(f"{folder}: no {FILE} here. Give a MODEL_DIR that retrieval_jax.train or convert wrote.")
  section = configuration.read(path)
  if not set(ROOTS) <= configuration.macros_set([section], ()).keys():
    raise UserError(
      f"{path} is damaged: it does not define MODEL and INPUTS. Write it anew by resuming the training."
    )
  model, inputs = configuration.evaluated(section, ROOTS)
  if not isinstance(model, TowerPair) or not isinstance(inputs, TextInputs):
    raise UserError(f"{path}: MODEL and INPUTS are not a dual encoder and text inputs.")
  return Retriever(model, inputs)
