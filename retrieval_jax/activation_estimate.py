"""How much memory a step would need under other settings: an estimate from what one compilation found."""

from typing import Final

from retrieval_jax.models.bert import BertEncoder
from retrieval_jax.models.dual_encoder import TowerPair
from retrieval_jax.models.t5 import T5Encoder
from retrieval_jax.models.tower import Tower
from retrieval_jax.planned_step import Layout
from retrieval_jax.recipe import Recipe

COPIES: Final = 3  # updates, parameters in the activations' dtype, second sums of gradients


def activation_bytes(recipe: Recipe, layout: Layout, lengths: tuple[int, int]) -> float:
  """Returns the bytes of one device that a forward pass leaves for the backward pass, by counting what a layer keeps.

  Of the encoders alone, in their dtype; chunks keep one piece's, and the larger side's. Feature bags keep next to nothing.

  Example: of T5 1.1 base with 32 passages of 256 tokens a device and REMAT_POLICY="full" it is about 0.2 GB.
  """
  mesh = layout.partitioner.mesh.shape
  pieces = max(1, recipe.step.chunks) * recipe.step.microbatches
  q = recipe.batcher.batch_size / layout.partitioner.data_size / pieces
  rows = (q, q * (1 + recipe.negatives.per_query))
  model = recipe.retriever.model
  sides = [
    number * _text_bytes(tower, length, mesh["model"])
    for number, tower, length in zip(rows, (model.query_tower, model.passage_tower), lengths, strict=True)
  ]
  return max(sides) if recipe.step.chunks > 1 else sum(sides)


def estimated_bytes(
  recipe: Recipe, layout: Layout, lengths: tuple[int, int], *, known: tuple[Recipe, Layout, float]
) -> float:
  """Returns about how many bytes a device would hold at its fullest.

  known: a recipe with its layout and the temporaries that its compilation found. Activations and gradients are exchanged for those
  of the new settings; what is left of the temporaries is taken for more copies of the parameters, up to COPIES of them, which
  are split as these are, and the rest stays.
  """
  other, measured, temporaries = known
  before = activation_bytes(other, measured, lengths) + measured.held.parameters
  after = activation_bytes(recipe, layout, lengths) + layout.held.parameters
  # Where the compiler kept less than was counted, it will do so again.
  scale = min(1.0, temporaries / before) if before else 1.0
  rest = max(temporaries - before, 0.0)
  copies = min(rest, COPIES * measured.held.parameters)
  split = layout.held.parameters / measured.held.parameters if measured.held.parameters else 1.0
  return layout.held.total + scale * after + (rest - copies) + split * copies


def with_remat(model: TowerPair, policy: str) -> TowerPair | None:
  """Returns the model with another REMAT_POLICY; None where no tower has one.

  Example: `with_remat(model, "full")`.
  """
  towers = {}
  for name in ("query_tower", "passage_tower"):
    tower = getattr(model, name)
    if isinstance(tower, Tower):
      towers[name] = tower.clone(encoder=tower.encoder.clone(remat_policy=policy))
  return None if not towers else TowerPair(**{**_fields(model), **towers})


def _fields(model: TowerPair) -> dict:
  return {
    "query_tower": model.query_tower,
    "passage_tower": model.passage_tower,
    "shared": model.shared,
    "frozen": model.frozen,
  }


def _text_bytes(tower: object, length: int, partitions: int) -> float:
  """Returns what one text of this many tokens leaves behind."""
  if not isinstance(tower, Tower):
    return 0.0
  encoder = tower.encoder
  if isinstance(encoder, T5Encoder):
    width, heads, hidden = encoder.num_heads * encoder.head_dim, encoder.num_heads, encoder.mlp_dim
    up = 2 if encoder.gated else 1
  elif isinstance(encoder, BertEncoder):
    width, heads, hidden, up = encoder.embed_dim, encoder.num_heads, encoder.mlp_dim, 1
  else:
    return 0.0
  size = 2 if encoder.dtype == "bfloat16" else 4
  embed, width, hidden = encoder.embed_dim, width / partitions, hidden / partitions
  scores = heads / partitions * length * (size + 4)
  whole = size * (6 * embed + 4 * width + (2 * up + 1) * hidden) + scores
  kept = {
    "none": whole,
    "minimal": size * (3 * embed + 3 * width + up * hidden),
    "full": size * embed,
  }.get(encoder.remat_policy, whole)
  # The backward pass of one layer has all of it, whatever is kept of the others.
  return length * (encoder.num_layers * kept + whole)
