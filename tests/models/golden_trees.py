"""The parameter trees of the shipped models as text. `python -m tests.models.golden_trees` writes the golden file anew."""

import json
import pathlib
import re

import gin
import jax

from retrieval_jax import configuration, launch

GOLDEN = pathlib.Path(__file__).parents[1] / "oracles" / "parameter_trees.json"
CONFIGS = launch.configs_dir()
FILES = sorted(path.name for path in (CONFIGS / "models").glob("*.gin"))
# What a file leaves open, with a value to build it with.
OPEN = {
  "VOCABULARY_PATH": "'package:seqio/test_data/sentencepiece/sentencepiece.model'",
  "INITIAL_CHECKPOINT_PATH": "None",
}
# A file of bags brings its vocabulary, and is not fitted on data.
BAGS = (f"BAG_VOCABULARY_PATH = {str(pathlib.Path(__file__).with_name('bags.json'))!r}", "TRAIN_DATA = None")


@gin.configurable(module="golden_trees")
def value(of=gin.REQUIRED):
  return of


def build(*files: str, macro: str = "MODEL", bindings: tuple[str, ...] = ()):
  """Returns the value of a macro of gin files."""
  gin.clear_config()
  found = configuration.collect(files, [str(CONFIGS)])
  assigned = configuration.macros_set(found, bindings)
  own = [name for name in OPEN if name in assigned and assigned[name].value == "%gin.REQUIRED"]
  bags = BAGS if "BAG_VOCABULARY_PATH" in assigned else ()
  texts = [*(f"{name} = {OPEN[name]}" for name in own), *bags, *bindings, f"golden_trees.value.of = %{macro}"]
  configuration.parse(found, texts, [str(CONFIGS)])
  return value()


def tree(model) -> dict[str, str]:
  """Returns path -> "dtype axis=size axis=size"; equal layers in one line, layers_{0..5}."""
  abstract = jax.tree_util.tree_leaves_with_path(jax.eval_shape(model.init, jax.random.key(0)))
  axes = jax.tree.leaves(model.logical_axes(), is_leaf=lambda x: isinstance(x, tuple))
  layers: dict[tuple[str, str], list[int]] = {}
  for (path, leaf), names in zip(abstract, axes, strict=True):
    name = jax.tree_util.keystr(path, simple=True, separator="/")
    sizes = " ".join(f"{axis}={size}" for axis, size in zip(names, leaf.shape, strict=True))
    number = re.search(r"layers_(\d+)", name)
    layers.setdefault((re.sub(r"layers_\d+", "layers_{}", name), f"{leaf.dtype} {sizes}"), []).append(
      int(number.group(1)) if number else 0
    )
  result = {}
  for (name, text), numbers in layers.items():
    assert sorted(numbers) == list(range(min(numbers), max(numbers) + 1))
    span = f"{{{min(numbers)}..{max(numbers)}}}" if len(numbers) > 1 else str(numbers[0])
    result[name.replace("{}", span)] = text
  return result


def count(model) -> int:
  """Returns the number of parameters; nothing is allocated."""
  return sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(model.init, jax.random.key(0))))


def main() -> None:
  trees = {name: tree(build(f"models/{name}")) for name in FILES}
  GOLDEN.write_text(json.dumps(trees, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
  main()
