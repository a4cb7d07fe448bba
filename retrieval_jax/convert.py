"""The conversion program: anybody's encoder checkpoint in, anybody's folder out. `python -m retrieval_jax.convert --from=... --to=...`."""

import argparse
import pathlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from retrieval_jax import paths, portable
from retrieval_jax.checkpoints import Checkpoints
from retrieval_jax.data.text_inputs import TEMPLATE
from retrieval_jax.errors import UserError, nearest
from retrieval_jax.interop import sources
from retrieval_jax.interop.foreign import ForeignModel, ForeignTower
from retrieval_jax.interop.new_folder import new_folder
from retrieval_jax.interop.report import ParameterReport
from retrieval_jax.model_section import FILE, keep_vocabularies, read_model_section, scheme_of, section_of
from retrieval_jax.portable import DEFAULT_LENGTH
from retrieval_jax.retriever import Retriever, check_inputs, checkpoint_params, model_manifest
from retrieval_jax.train_state import TrainState
from retrieval_jax.weights import host_partitioner, read_model

OWN: Final = "retrieval_jax"
FORMATS: Final = (OWN, "sentence_transformers", "huggingface", "t5x")


class Overrides(NamedTuple):
  """What the command says of a model and its files do not, or say otherwise; None leaves it as it is."""

  vocabulary: str | None = None
  vocab_size: int | None = None
  pooling: str | None = None
  normalize: bool | None = None
  cased: bool | None = None
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

  Cost: two to three times the model's float32 parameters in host memory; nothing on an accelerator.

  Example: `convert("/tmp/run", "/tmp/exported", target_format="sentence_transformers")`.
  """
  if target_format not in FORMATS:
    raise UserError(
      f"--format={target_format}: expected one of {', '.join(FORMATS)}{nearest(target_format, FORMATS) or '.'}"
    )
  source_model = _read(source, overrides, step)
  model = source_model.towers
  twice = model.passage is not None and model.passage.params is not model.query.params
  report = ParameterReport([*model.query.report, *(model.passage.report if model.passage and twice else ())])
  print(f"{source} ({source_model.kind})")
  print(report if dry_run else report.summary)
  sides = (
    {"model": model.query} if model.passage is None else {"queries": model.query, "passages": model.passage}
  )
  for side, tower in sides.items():
    print(f"{side}: {_described(tower)}")
  _check(target, target_format, source_model)
  folder = paths.output_dir(target, "--to")
  for note in _notes(model, target_format):
    print(f"note: {note}")
  if dry_run:
    print(f"dry run: nothing was written; without it {target} would be a {target_format} folder")
    return report
  _WRITERS[target_format](folder, source_model)
  print(f"{target} is written ({target_format}){_NEXT[target_format].format(target=target)}")
  return report


class Source(NamedTuple):
  """What was read. sharing: the scheme that the source names (a MODEL_DIR does), None to go by what is shared."""

  name: str
  kind: str
  towers: ForeignModel
  sharing: str | None = None
  step: int = 0


def _read(source: str, overrides: Overrides, step: int | None) -> Source:
  """Returns the model as interop's writers take it, with the command's settings."""
  folder = sources.locate(source)
  kind = sources.detect(folder)
  if kind != OWN:
    foreign = read_model(source, vocab_size=overrides.vocab_size, step=step)
    foreign = portable.with_head(foreign, pooling=overrides.pooling, normalize=overrides.normalize)
    return Source(source, kind, _with_text(foreign, overrides))
  for name in ("vocabulary", "vocab_size", "pooling", "normalize", "cased"):
    if getattr(overrides, name) is not None:
      raise UserError(f"{source} was trained here and says itself what --{name} would: leave the flag out.")
  retriever = read_model_section(folder)
  params, found = checkpoint_params(retriever, host_partitioner(), folder, step=step)
  foreign = portable.foreign_of(retriever.model, params, retriever.inputs)
  sharing = scheme_of(retriever.model)
  return Source(source, f"{kind}, checkpoint {found}", _with_text(foreign, overrides), sharing, found)


def _check(target: str, target_format: str, source: Source) -> None:
  """Raises UserError for what the writer would refuse: a dry run says so too."""
  model = source.towers
  if "://" in target or target.startswith((paths.PACKAGE_PREFIX, paths.HERE_PREFIX)):
    raise UserError(
      f"--to={target}: expected a local folder. Write there, and copy the folder with your own tools."
    )
  folder = paths.output_dir(target, "--to")
  from retrieval_jax.interop import t5x

  free = t5x.is_free(folder) if target_format == "t5x" else not folder.exists() or not any(folder.iterdir())
  if not free:
    raise UserError(
      f"{folder}: is there already; expected a new or an empty folder. Choose another, or remove it."
    )
  if target_format == OWN or all(tower is None or tower.text.vocabulary_path for tower in model):
    check_inputs(_retriever(source))
  if target_format == "t5x":
    from retrieval_jax.interop import t5x_target

    t5x_target.target(_one_text(model))
  if target_format == "huggingface" and _one_text(model).passage is not None:
    raise UserError(
      "a Hugging Face encoder folder holds one tower, and queries and passages have one each here: use "
      "--format=sentence_transformers."
    )
  if target_format == "huggingface" and model.query.text.vocabulary_path is None:
    raise UserError(
      "the source brings no vocabulary, and transformers would make one up: name the file with --vocabulary."
    )
  if target_format == "huggingface" and model.query.spec.projection_dim is not None:
    raise UserError(
      f"the model projects to {model.query.spec.projection_dim} dimensions, which a Hugging Face encoder folder has no "
      "place for: use --format=sentence_transformers."
    )
  attention = [tower for tower in model if tower is not None and tower.spec.pooling == "attention"]
  if target_format != OWN and attention:
    raise UserError(
      f"attention pooling has no place in a {target_format} folder: encode with retrieval_jax, or train with mean pooling."
    )


def _notes(model: ForeignModel, target_format: str) -> list[str]:
  """Returns what of the model the format has no place for: whoever uses the folder must know it."""
  if target_format == OWN:
    return []
  notes = []
  query, passage = model.query, model.passage or model.query
  if passage.text.template not in (None, TEMPLATE):
    notes.append(
      f"a {target_format} folder has no place for PASSAGE_TEMPLATE: whoever encodes passages with it must join title and "
      f"text as {passage.text.template!r}"
    )
  lengths = (query.text.max_length, passage.text.max_length)
  if model.passage is not None and passage.params is query.params and lengths[0] != lengths[1]:
    notes.append(
      f"one tower serves both sides, so the folder has one length: {max(filter(None, lengths), default=None)} tokens, where "
      f"queries are cut at {lengths[0]} and passages at {lengths[1]} here"
    )
  if target_format in ("huggingface", "t5x"):
    prefixes = {"queries": query.text.prefix, "passages": passage.text.prefix}
    for side, prefix in prefixes.items():
      if prefix:
        notes.append(f"a {target_format} folder has no place for a prefix: put {prefix!r} before {side}")
  if target_format == "huggingface":
    after = f"{query.spec.pooling} pooling{' and L2 normalisation' if query.spec.normalize else ''}"
    notes.append(f"a huggingface folder holds the encoder alone: {after} come after it")
  return notes


def _retriever(source: Source) -> Retriever:
  return Retriever(portable.pair_of(source.towers, sharing=source.sharing), portable.inputs_of(source.towers))


def _described(tower: ForeignTower) -> str:
  spec, text = tower.spec, tower.text
  head = "no projection" if spec.projection_dim is None else f"projection to {spec.projection_dim}"
  vocabulary = "no vocabulary" if text.vocabulary_path is None else f"vocabulary {text.vocabulary_path.name}"
  return (
    f"{spec.encoder.family} encoder {dict(spec.encoder.fields)}, {spec.vocab_size:,} rows of tokens, {spec.pooling} "
    f"pooling, {head}, {'L2-normalised' if spec.normalize else 'not normalised'}; {vocabulary}, max_length "
    f"{text.max_length}, prefix {text.prefix!r}"
  )


def _write_own(folder: pathlib.Path, source: Source) -> None:
  retriever = _retriever(source)
  params = portable.params_of(retriever.model, source.towers, host_partitioner())
  # A state of no optimizer and no loss: the model can be read from it, a training cannot be resumed.
  state = TrainState(source.step, {"model": params, "loss": {}}, {}, {})  # pyright: ignore[reportArgumentType]  (Orbax takes a number)
  with new_folder(folder) as building:
    names = keep_vocabularies(retriever.inputs, building)
    title, file = f"Converted from {source.name!r}.", folder.absolute() / FILE
    with paths.atomic_write(building / FILE) as section:
      section.write(section_of(retriever.model, retriever.inputs, title=title, file=file, vocabularies=names))
    with Checkpoints(building) as checkpoints:
      checkpoints.save(source.step, state, manifest=model_manifest(retriever))


def _write_t5x(folder: pathlib.Path, source: Source) -> None:
  from retrieval_jax.interop import t5x

  t5x.write(folder, _one_text(source.towers), step=source.step)


def _write_huggingface(folder: pathlib.Path, source: Source) -> None:
  from retrieval_jax.interop import huggingface

  huggingface.write(folder, _one_text(source.towers).query)


def _write_sentence_transformers(folder: pathlib.Path, source: Source) -> None:
  from retrieval_jax.interop import sentence_transformers

  sentence_transformers.write(folder, source.towers)


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
      text = text._replace(vocabulary=kind, vocabulary_path=paths.resolve(overrides.vocabulary), options={})
    if overrides.cased and text.vocabulary != "word_piece":
      raise UserError(
        f"--cased is for the vocab.txt of a BERT; the {side} tower reads {text.vocabulary}. Leave it out."
      )
    if overrides.cased:
      text = text._replace(options={**text.options, "lowercase": False})
    known = DEFAULT_LENGTH if text.max_length is None else text.max_length
    text = text._replace(max_length=known if length is None else length)
    sides.append(tower._replace(text=text._replace(prefix=text.prefix if prefix is None else prefix)))
  return ForeignModel(*sides)


_WRITERS: Final[Mapping[str, Callable[[pathlib.Path, Source], None]]] = {
  OWN: _write_own,
  "sentence_transformers": _write_sentence_transformers,
  "huggingface": _write_huggingface,
  "t5x": _write_t5x,
}
_NEXT: Final = {
  OWN: "; search or evaluate it with --gin.MODEL_DIR={target}, train from it with --gin_file={target}/model.gin",
  "sentence_transformers": '; load it with SentenceTransformer("{target}") and call encode_query and encode_document',
  "huggingface": '; load it with the class that its config.json names under "architectures"',
  "t5x": "; name the checkpoint folder in it as T5X's INITIAL_CHECKPOINT_PATH",
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
  add(
    "--cased", action="store_true", default=None, help="whether the vocab.txt of --vocabulary is a cased one"
  )
  add("--query_length", type=int, help="tokens, special ones included")
  add("--passage_length", type=int)
  add("--query_prefix", help='put before every query, such as "query: "')
  add("--passage_prefix")
  return parser.parse_args(argv)


if __name__ == "__main__":
  main()
