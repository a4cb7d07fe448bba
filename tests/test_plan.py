"""The planning program on 8 CPU devices: what it prints, what it writes, and what it says of parts that do not fit."""

import json

import gin
import jax
import pytest

from retrieval_jax import launch
from retrieval_jax.abstract_batch import AssumedData, abstract_batch
from retrieval_jax.batching.ngame import ngame
from retrieval_jax.batching.shuffled import shuffled
from retrieval_jax.errors import UserError
from retrieval_jax.fitting import Search, find_changes
from retrieval_jax.losses.gramian import sagram
from retrieval_jax.losses.in_batch import samtone
from retrieval_jax.models.dual_encoder import dual_encoder
from retrieval_jax.models.feature_bag import FeatureBagTower
from retrieval_jax.models.t5 import T5Encoder
from retrieval_jax.models.tower import Tower
from retrieval_jax.negative_options import NegativeOptions
from retrieval_jax.optimizers import adamw
from retrieval_jax.partitioning import partitioner, standard_rules
from retrieval_jax.plan import plan
from retrieval_jax.planned_program import _refused
from retrieval_jax.planned_step import layout_of, shapes_of, traced_step
from retrieval_jax.recipe import Recipe
from retrieval_jax.retriever import Retriever
from retrieval_jax.step_costs import NOTHING
from retrieval_jax.topologies import topology
from retrieval_jax.train_state import initial_state

Q, D, ROWS = 16, 8, 40
DATA = AssumedData(queries=80, passages=160, positives=2)
BAGS = dual_encoder(FeatureBagTower((("id", ROWS),), embed_dim=D, hidden_dims=(16, D), columns=(3,)))


def recipe(model=BAGS, *, loss=None, **options) -> Recipe:
  loss = samtone(temperature=0.1) if loss is None else loss
  retriever = Retriever(model, None)  # pyright: ignore[reportArgumentType]  (nothing is tokenised)
  options = {"batcher": shuffled(Q), "optimizer": adamw(learning_rate=1e-3), **options}
  return Recipe(retriever, loss, data=None, **options)  # pyright: ignore[reportArgumentType]  (nothing is read)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
  """(values, the JSON that was written)."""
  path = tmp_path_factory.mktemp("plan") / "plan.json"
  values = plan(recipe(), make_partitioner=partitioner, topology="cpu:8", data=DATA, json_path=str(path))
  return values, json.loads(path.read_text())


def test_all_numbers_are_written_as_they_are_returned(found):
  values, written = found
  assert json.loads(json.dumps(values)) == written
  assert values["topology"]["mesh"] == {"replica": 1, "data": 8, "model": 1}
  assert values["parameters"] == ROWS * D + D * 16 + 16 + 16 * D + D
  assert values["fits"]
  assert values["seconds"] is None  # nobody publishes a CPU's rates


def test_arguments_are_parameters_optimizer_state_and_batch(found):
  held = found[0]["bytes_per_device"]
  parameters = 4 * found[0]["parameters"]
  assert held["parameters"] == parameters
  assert held["optimizer"] == pytest.approx(2 * parameters, abs=16)  # both moments, and counts
  # Of 2 queries a shard: tokens of 3 columns on both sides, rows of both, 2 positives, weight and target.
  assert held["batch"] == 2 * 4 * (3 + 3 + 1 + 1 + 2 + 1 + 1)
  assert held["arguments"] == pytest.approx(parameters + held["optimizer"] + held["batch"] + 4, abs=32)


def test_gradients_are_summed_over_the_devices(found):
  sent = found[0]["collectives"]["all-reduce"]["sent"]
  assert sent >= 2 * 4 * found[0]["parameters"] * 7 / 8


@pytest.mark.parametrize("fsdp", [False, True])
def test_bytes_are_those_of_the_real_arrays(fsdp):
  rules = standard_rules(parameter_partitioning_dims=2 if fsdp else 1)
  own = recipe(loss=sagram())
  mesh = partitioner(rules=rules)
  layout = layout_of(own, shapes_of(own, DATA), mesh)

  def create():
    return initial_state(jax.random.key(0), BAGS, own.loss, own.transform, data=DATA.sizes)

  state = jax.jit(create, out_shardings=layout.shardings)()
  for held, part in (
    (layout.held.parameters, state.params),
    (layout.held.optimizer, state.opt_state),
    (layout.held.loss_state, state.loss_state),
  ):
    assert held == sum(x.addressable_shards[0].data.nbytes for x in jax.tree.leaves(part))
  if fsdp:  # the tables' embedding is split, their biases are not
    assert layout.held.parameters < 4 * sum(x.size for x in jax.tree.leaves(state.params)) / 2


def test_the_batch_has_what_the_loss_reads_and_hard_negatives():
  own = recipe(loss=sagram(batches="two"), negatives=NegativeOptions(per_query=3))
  batch = abstract_batch(own, DATA)
  assert batch.passage_tokens.shape == (Q * 4, 3)
  assert batch.marginals.query_mass.shape == (Q,)
  assert batch.estimation.passage_tokens.shape == (Q, 3)
  assert batch.teacher_scores is None


def test_a_step_with_a_bank_hands_out_its_embeddings():
  clustered = recipe(batcher=ngame(Q, cluster_sizes=((0, 4),)))
  shapes = shapes_of(clustered, DATA)
  traced = traced_step(clustered, shapes, layout_of(clustered, shapes, partitioner()))
  _, (_, queries) = traced.out_info
  assert queries.shape == (Q, D)


TEXT = dual_encoder(Tower(T5Encoder(2, 2, 8, 16, 64, dtype="bfloat16"), vocab_size=64, projection_dim=8))
LENGTHS = DATA._replace(query_length=8, passage_length=16)


@pytest.fixture(scope="module")
def search() -> Search:
  """A step of text towers that is said not to fit: a device holds it all but for a byte."""
  own = recipe(TEXT, batcher=shuffled(64))
  found = topology("cpu:8")
  shapes = shapes_of(own, LENGTHS)
  layout = layout_of(own, shapes, partitioner())
  program = _refused(
    "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 300.0K of 299.0K hbm.",
    layout.held.total,
    NOTHING,
    1.0,
  )
  return Search(own, partitioner, LENGTHS, found, shapes, layout, program)


def test_every_change_has_an_estimate_or_a_reason_and_the_last_one_fits(search):
  changes = find_changes(search, compilations=1)
  names = [one.change.settings[0] for one in changes]
  assert "--gin.TRAIN_CHUNKS=2" in names
  assert "--gin.NUM_PARTITIONS=2" in names
  assert "--gin_file=partitioning/fsdp.gin" in names
  assert "--gin.REMAT_POLICY=full" in names
  assert all(one.estimate is not None or one.problem for one in changes)
  assert changes[-1].program is not None
  assert changes[-1].fits(search.limit)
  estimates = {one.change.settings[0]: one.estimate for one in changes}
  assert estimates["--gin.TRAIN_CHUNKS=4"] < estimates["--gin.TRAIN_CHUNKS=2"]
  assert estimates["--gin_file=partitioning/fsdp.gin"] < search.program.total


def test_a_change_that_cannot_be_has_its_reason(search):
  odd = dual_encoder(Tower(T5Encoder(1, 3, 8, 12, 36), vocab_size=63, projection_dim=8))
  own = recipe(odd, batcher=shuffled(64))
  shapes = shapes_of(own, LENGTHS)
  layout = layout_of(own, shapes, partitioner())
  changes = find_changes(search._replace(recipe=own, shapes=shapes, layout=layout), compilations=0)
  (fsdp,) = [one for one in changes if one.change.settings == ("--gin_file=partitioning/fsdp.gin",)]
  assert fsdp.problem is not None
  assert "12 entries, which 8 'data'" in fsdp.problem


@pytest.mark.parametrize(
  "message, total, temporaries",
  [
    ("Ran out of memory in memory space hbm. Used 20.50G of 15.75G hbm. Exceeded", 20.5, 18.5),
    (
      "Ran out of memory on HBM, the total memory required for HLO temporaries (107.37G) exceeds available HBM (15.75G).",
      109.37,
      107.37,
    ),
  ],
)
def test_what_the_compiler_says_of_too_large_a_program(message, total, temporaries):
  plan = _refused(f"RESOURCE_EXHAUSTED: {message}", 2 * 2**30, NOTHING, 1.0)
  assert not plan.fits
  assert plan.total / 2**30 == pytest.approx(total)
  assert plan.temporaries / 2**30 == pytest.approx(temporaries)
  assert plan.limit == 15.75 * 2**30


def test_another_error_of_the_compiler_is_passed_on():
  with pytest.raises(UserError, match="the compiler failed: INTERNAL: oops"):
    _refused("INTERNAL: oops", 1.0, NOTHING, 1.0)


@pytest.mark.parametrize(
  "changed, data, message",
  [
    ({"batcher": shuffled(12)}, DATA, r"BATCH_SIZE=12 is not divisible by the 8 data shards"),
    ({}, DATA._replace(queries=0), r"PLAN_QUERIES=0: expected a whole number of at least 1"),
    (
      {"model": TEXT},
      DATA,
      r"QUERY_LENGTH is not set, and the tower does not say it: add --gin.QUERY_LENGTH=",
    ),
  ],
)
def test_parts_that_do_not_fit(changed, data, message):
  with pytest.raises(UserError, match=message):
    plan(recipe(**changed), make_partitioner=partitioner, topology="cpu:8", data=data)


def test_the_number_of_tries():
  with pytest.raises(UserError, match=r"PLAN_TRIES=-1: expected a whole number of at least 0"):
    plan(recipe(), make_partitioner=partitioner, topology="cpu:8", data=DATA, compilations=-1)


@pytest.fixture
def _clean_gin():
  gin.clear_config()
  yield
  gin.clear_config()


@pytest.mark.usefixtures("_clean_gin")
def test_from_the_command_line_without_data_vocabulary_or_model_dir(capsys, tmp_path):
  launch.run(
    "plan",
    [
      "--topology=cpu:8",
      "--gin_file=models/t5_1_1_tiny.gin",
      "--gin_file=losses/samtone.gin",
      "--gin.BATCH_SIZE=16",
      "--gin.QUERY_LENGTH=8",
      "--gin.PASSAGE_LENGTH=16",
      "--gin.NUM_EMBEDDINGS=128",
      "--gin.TRAIN_CHUNKS=2",
      f"--json={tmp_path / 'plan.json'}",
    ],
  )
  lines = capsys.readouterr().out.splitlines()
  assert len(lines) <= 20
  assert lines[0] == "cpu:8: 8 CPU devices; mesh replica 1 x data 8 x model 1"
  assert "16 queries of 8 tokens (2 a shard), 16 passages of 16" in lines[1]
  assert "computed again" in "\n".join(lines)
  assert lines[-1].startswith("encode: ")
  values = json.loads((tmp_path / "plan.json").read_text())
  assert values["flops"]["step"] > values["flops"]["once"] > 3 * values["flops"]["forward"]
  assert values["encoding"]["tokens"] == 16


def test_the_topology_must_be_named(capsys):
  with pytest.raises(SystemExit):
    launch.run("plan", ["--gin_file=losses/samtone.gin"])
  assert "--topology" in capsys.readouterr().err
