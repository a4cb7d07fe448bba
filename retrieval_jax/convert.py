"""The conversion program: anybody's encoder checkpoint in, anybody's folder out. `python -m retrieval_jax.convert --from=... --to=...`."""

import argparse
import pathlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from retrieval_jax import paths, portable
from retrieval_jax.checkpoints import Checkpoints
from retrieval_jax.errors import UserError, nearest
from retrieval_jax.interop import reading, sources
from retrieval_jax.interop.foreign import ForeignModel, ForeignTower
from retrieval_jax.interop.new_folder import new_folder
from retrieval_jax.interop.report import ParameterReport
from retrieval_jax.model_section import FILE, keep_vocabularies, read_model_section, section_of
from retrieval_jax.partitioning import partitioner
from retrieval_jax.retriever import Retriever, check_vocabulary, checkpoint_params, model_manifest
from retrieval_jax.train_state import TrainState

OWN: Final = "retrieval_jax"
FORMATS: Final = (OWN, "sentence_transformers", "huggingface", "t5x")


class Overrides(NamedTuple):
  """What the command says of a model and its files do not, or say otherwise; None leaves it as it is."""

  vocabulary: str | None = None
  vocab_size: int | None = None
  pooling: str | None = None
  normalize: bool | None = None
  query_length: int | None = None
  passage_length: int | None = None
  query_prefix: str | None = None
  passage_prefix: str | None = None


def convert(
  source: str,
  target: str,
  *,
  target_format: str,
  overrides: Overrides = Overrides(),  # noqa: B008  (an immutable record)
  step: int | None = None,
  dry_run: bool = False,
) -> ParameterReport:
  """Reads a model, prints what became of every parameter, writes it in another format, and returns the report.

  source: a MODEL_DIR, a sentence-transformers or Hugging Face folder, a T5X checkpoint; local, `package:`, gs:// or a hub
    name. step: of a MODEL_DIR's checkpoint; None is the newest.
  target: a new folder. target_format: "retrieval_jax" (a MODEL_DIR to train from, to evaluate and to search with),
    "sentence_transformers", "huggingface" (a bare encoder) or "t5x" (a native checkpoint of a T5 encoder).
  dry_run: read and report, write nothing.

  Raises: UserError if the source cannot be read or the target cannot hold the model; then nothing is written.

  Cost: the model's float32 parameters once in host memory, twice for a MODEL_DIR.

  Example: `convert("/tmp/run", "/tmp/exported", target_format="sentence_transformers")`.
  """
  if target_format not in FORMATS:
    raise UserError(
      f"--format={target_format}: expected one of {', '.join(FORMATS)}{nearest(target_format, FORMATS)}"
    )
  model, found_step, kind = _read(source, overrides, step)
  report = ParameterReport([*model.query.report, *(model.passage.report if model.passage else ())])
  print(f"{source} ({kind})")
  print(report if dry_run else report.summary)
  for side, tower in (
    (("model", model.query),)
    if model.passage is None
    else (("queries", model.query), ("passages", model.passage))
  ):
    print(f"{side}: {_described(tower)}")
  if dry_run:
    print(f"dry run: nothing was written; without it {target} would be a {target_format} folder")
    return report
  model = _with_text(model, overrides)
  if target_format == OWN or all(t is None or t.text.vocabulary_path for t in model):
    check_vocabulary(Retriever(portable.pair_of(model), portable.inputs_of(model)))
  _WRITERS[target_format](pathlib.Path(target).expanduser(), model, found_step, source)
  print(f"{target} is written ({target_format}){_NEXT[target_format].format(target=target)}")
  return report


def _read(source: str, overrides: Overrides, step: int | None) -> tuple[ForeignModel, int, str]:
  """Returns the model as interop's writers take it, its step, and what it was."""
  folder = sources.locate(source)
  kind = sources.detect(folder)
  if kind == OWN:
    for name in ("vocabulary", "vocab_size", "pooling", "normalize"):
      if getattr(overrides, name) is not None:
        raise UserError(f"{source} was trained here and says itself what --{name} would: leave the flag out.")
    retriever = read_model_section(folder)
    params, step = checkpoint_params(retriever, partitioner(), folder, step=step)
    foreign = portable.foreign_of(retriever.model, params, _inputs(retriever.inputs, overrides))
    return foreign, step, f"{kind}, checkpoint {step}"
  if step is not None:
    raise UserError(f"--step: {source} is no MODEL_DIR of retrieval_jax; leave it out.")
  foreign = reading.read(source, vocab_size=overrides.vocab_size)
  towers = [None if tower is None else _changed(tower, overrides) for tower in foreign]
  query, passage = towers
  assert query is not None
  return ForeignModel(query, passage), 0, kind


def _inputs(inputs: Any, overrides: Overrides) -> Any:
  names = ("query_length", "passage_length", "query_prefix", "passage_prefix")
  given = {name: getattr(overrides, name) for name in names if getattr(overrides, name) is not None}
  return inputs._replace(**given)


def _changed(tower: ForeignTower, overrides: Overrides) -> ForeignTower:
  spec = tower.spec
  if overrides.pooling is not None:
    spec = spec._replace(pooling=overrides.pooling)
  if overrides.normalize is not None:
    spec = spec._replace(normalize=overrides.normalize)
  return tower._replace(spec=spec)


def _described(tower: ForeignTower) -> str:
  spec, text = tower.spec, tower.text
  head = "no projection" if spec.projection_dim is None else f"projection to {spec.projection_dim}"
  vocabulary = "no vocabulary" if text.vocabulary_path is None else f"vocabulary {text.vocabulary_path.name}"
  return (
    f"{spec.encoder.family} encoder {dict(spec.encoder.fields)}, {spec.vocab_size:,} rows of tokens, {spec.pooling} "
    f"pooling, {head}, {'L2-normalised' if spec.normalize else 'not normalised'}; {vocabulary}, max_length "
    f"{text.max_length}, prefix {text.prefix!r}"
  )


def _write_own(folder: pathlib.Path, model: ForeignModel, step: int, source: str) -> None:
  retriever = Retriever(portable.pair_of(model), portable.inputs_of(model))
  params = portable.params_of(retriever.model, model, partitioner())
  # A state of no optimizer and no loss: the model can be read from it, a training cannot be resumed.
  state = TrainState(step, {"model": params, "loss": {}}, {}, {})  # pyright: ignore[reportArgumentType]
  with new_folder(folder) as building:
    section = section_of(
      retriever.model, retriever.inputs, title=f"Converted from {source}.", file=folder.absolute() / FILE
    )
    with paths.atomic_write(building / FILE) as file:
      file.write(keep_vocabularies(section, building))
    with Checkpoints(building) as checkpoints:
      checkpoints.save(step, state, manifest=model_manifest(retriever))


def _write_foreign(kind: str) -> Callable[..., None]:
  def write(folder: pathlib.Path, model: ForeignModel, step: int, source: str) -> None:
    del source
    if kind != "sentence_transformers":
      model = _one_text(model)
    if kind == "t5x":
      from retrieval_jax.interop import t5x

      t5x.write(folder, model, step=step)
    elif kind == "huggingface":
      from retrieval_jax.interop import huggingface

      if model.passage is not None:
        raise UserError(
          "a Hugging Face encoder folder holds one tower, and queries and passages have one each here: use "
          "--format=sentence_transformers."
        )
      huggingface.write(folder, model.query)
    else:
      from retrieval_jax.interop import sentence_transformers

      sentence_transformers.write(folder, model)

  return write


def _one_text(model: ForeignModel) -> ForeignModel:
  """Returns a model of one tower as that tower alone, at the longer of its sides' lengths: for folders without sides."""
  if model.passage is None or model.passage.params is not model.query.params:
    return model
  length = max(tower.text.max_length or 0 for tower in (model.query, model.passage)) or None
  return ForeignModel(model.query._replace(text=model.query.text._replace(max_length=length)))


def _with_text(model: ForeignModel, overrides: Overrides) -> ForeignModel:
  """Returns the model with the command's vocabulary, lengths and prefixes in its towers' text."""
  passage = model.passage
  if passage is None and any(
    getattr(overrides, name) is not None
    for name in ("query_length", "passage_length", "query_prefix", "passage_prefix")
  ):
    passage = model.query
  sides = []
  for side, tower in (("query", model.query), ("passage", passage)):
    if tower is None:
      sides.append(None)
      continue
    text = tower.text
    length, prefix = getattr(overrides, f"{side}_length"), getattr(overrides, f"{side}_prefix")
    if overrides.vocabulary is not None:
      kind = "word_piece" if tower.spec.encoder.family == "bert" else "sentence_piece"
      text = text._replace(vocabulary=kind, vocabulary_path=paths.resolve(overrides.vocabulary))
    text = text._replace(max_length=text.max_length if length is None else length)
    sides.append(tower._replace(text=text._replace(prefix=text.prefix if prefix is None else prefix)))
  return ForeignModel(*sides)


_WRITERS: Final[Mapping[str, Callable[..., None]]] = {
  OWN: _write_own,
  **{kind: _write_foreign(kind) for kind in FORMATS if kind != OWN},
}
_NEXT: Final = {
  OWN: "; search or evaluate it with --gin.MODEL_DIR={target}, train from it with --gin_file={target}/model.gin",
  "sentence_transformers": '; load it with SentenceTransformer("{target}")',
  "huggingface": '; load it with AutoModel.from_pretrained("{target}")',
  "t5x": "; name checkpoint_<step> in it as T5X's INITIAL_CHECKPOINT_PATH",
}


def main(argv: Sequence[str] | None = None) -> None:
  """The command: parses flags; a UserError becomes one message and exit code 2."""
  flags = _flags(sys.argv[1:] if argv is None else argv)
  try:
    own = sources.detect(sources.locate(flags.source)) == OWN
    target_format = flags.format or ("sentence_transformers" if own else OWN)
    overrides = Overrides(**{name: getattr(flags, name) for name in Overrides._fields})
    convert(
      flags.source,
      flags.target,
      target_format=target_format,
      overrides=overrides,
      step=flags.step,
      dry_run=flags.dry_run,
    )
  except KeyboardInterrupt:
    print("interrupted", file=sys.stderr)
    sys.exit(130)
  except UserError as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(2)


def _flags(argv: Sequence[str]) -> argparse.Namespace:
  parser = argparse.ArgumentParser(
    prog="python -m retrieval_jax.convert",
    description=(__doc__ or "").split("`")[0].strip(),
    epilog="examples:\n"
    "  python -m retrieval_jax.convert --from=/tmp/run --to=/tmp/exported\n"
    "  python -m retrieval_jax.convert --from=path/of/e5-base-v2 --to=/tmp/e5 --dry_run\n"
    "  python -m retrieval_jax.convert --from=gtr_base/checkpoint_1000000 --to=/tmp/gtr --vocabulary=spiece.model",
    allow_abbrev=False,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  add = parser.add_argument
  add(
    "--from",
    dest="source",
    required=True,
    metavar="SOURCE",
    help="MODEL_DIR, sentence-transformers or Hugging Face folder, T5X checkpoint: local, package:, gs:// or a hub name",
  )
  add("--to", dest="target", required=True, metavar="FOLDER", help="a new folder")
  add(
    "--format",
    choices=FORMATS,
    help="what to write (default: sentence_transformers from a MODEL_DIR, else retrieval_jax)",
  )
  add("--dry_run", action="store_true", help="print what would become of every parameter and write nothing")
  add("--step", type=int, help="of a MODEL_DIR's checkpoint (default: the newest)")
  add(
    "--vocabulary",
    metavar="FILE",
    help="tokenizer.json, vocab.txt or SentencePiece model, where the source brings none (T5X)",
  )
  add(
    "--vocab_size",
    type=int,
    help="rows of the token table, if others than the source's: zeros added, or the last cut",
  )
  add(
    "--pooling",
    choices=("mean", "max", "first", "last"),
    help="of a bare encoder, which does not say (default: mean)",
  )
  add(
    "--normalize",
    action=argparse.BooleanOptionalAction,
    default=None,
    help="whether embeddings have length 1, for a bare encoder",
  )
  add("--query_length", type=int, help="tokens, special ones included")
  add("--passage_length", type=int)
  add("--query_prefix", help='put before every query, such as "query: "')
  add("--passage_prefix")
  return parser.parse_args(argv)


if __name__ == "__main__":
  main()
