"""Planted graphs: the same links everywhere, drawn as the recipe says, and the two rankings that learn nothing."""

import json
import pathlib

import numpy as np
import pytest

from retrieval_jax.data.link_graph import read_edges, read_nodes
from retrieval_jax.data.planted_baselines import Baselines
from retrieval_jax.data.planted_graph import PlantedGraph, write_planted
from retrieval_jax.data.planted_plan import GROUP, Plan, Recipe, related
from retrieval_jax.data.planted_texts import WORDS, word
from retrieval_jax.errors import UserError

TINY = Recipe(items=1000, topics=20, seed=3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
  out = tmp_path_factory.mktemp("planted")
  write_planted(TINY, out)
  return out


def test_files_and_their_record(folder: pathlib.Path):
  record = json.loads((folder / "planted.json").read_text())
  edges = {split: list(read_edges(folder / f"edges.{split}.tsv")) for split in ("train", "dev", "test")}
  assert {split: record[split] for split in edges} == {split: len(part) for split, part in edges.items()}
  everything = [edge for part in edges.values() for edge in part]
  assert len(set(everything)) == len(everything)
  assert all(source != target for source, target in everything)
  assert 7 < len(everything) / 1000 < 9.5  # in small topics more draws are of the same item
  assert len(edges["test"]) / len(everything) == pytest.approx(0.1, abs=0.015)
  nodes = list(read_nodes(folder / "nodes.tsv"))
  assert [node.id for node in nodes] == [str(item) for item in range(1000)]
  lengths = {len(node.title.split(" ")) for node in nodes}
  assert lengths == {3, 4, 5, 6}
  assert len({node.title for node in nodes}) > 990


def test_categories_tell_the_topic_seven_times_of_ten(folder: pathlib.Path):
  topics = Plan.of(TINY).topics_of(np.arange(1000)).tolist()
  own = [
    f"t{topic}" in node.features["categories"]
    for node, topic in zip(read_nodes(folder / "nodes.tsv"), topics, strict=True)
  ]
  assert np.mean(own) == pytest.approx(0.7 + 0.3 * 0.3 / 20, abs=0.05)


def test_draws_go_where_the_recipe_says():
  recipe = Recipe(items=20_000, topics=200, seed=1)
  plan = Plan.of(recipe)
  drawn = np.bincount(plan.targets(np.full(200_000, 57), np.arange(200_000)), minlength=20_000) / 200_000
  topics = plan.topics_of(np.arange(20_000))
  anywhere = 0.1 * plan.likelihoods(57)[topics == 0].sum()  # at most: all of it is drawn from anywhere
  assert drawn[topics == 57].sum() == pytest.approx(0.65, abs=0.01)
  assert drawn[np.isin(topics, (58, 59, 50))].sum() == pytest.approx(0.25, abs=0.01)
  assert anywhere < 0.01
  np.testing.assert_allclose(plan.likelihoods(57).sum(), 1)
  assert (
    np.abs(drawn - plan.likelihoods(57)).max() < 0.004
  )  # 3.5 standard deviations of the most frequent, 0.12
  first, second = plan.order[57], plan.order[257]
  assert drawn[first] / drawn[second] == pytest.approx(2**1.2, rel=0.05)


def test_links_are_the_same_in_any_block():
  plan = Plan.of(TINY)
  whole = plan.links(0, 1000)
  np.testing.assert_array_equal(np.concatenate([plan.links(0, 1), plan.links(1, 1000)]), whole)
  # On every machine, and with every version of numpy.
  assert (len(whole), int((whole[:, 0] * 31 + whole[:, 1]).sum() % 1_000_003)) == (8381, 991_646)
  assert plan.order[:5].tolist() == [550, 788, 41, 454, 647]
  other = Plan.of(TINY._replace(seed=4))
  assert not np.array_equal(other.order, plan.order)


@pytest.mark.parametrize("seed", [2**63 - 1, -(2**63)])
def test_the_largest_seeds(seed: int):
  recipe = Recipe(items=50, topics=10, seed=seed)
  recipe.check()
  assert len(Plan.of(recipe).links(0, 50)) > 50


def test_related_topics_and_sizes():
  assert related(np.array([18, 18, 18]), np.arange(3)).tolist() == [19, 10, 11]
  plan = Plan.of(Recipe(items=1013, topics=20))
  sizes = np.bincount(plan.topics_of(np.arange(1013)), minlength=20)
  assert plan.sizes(np.arange(20)).tolist() == sizes.tolist() == [51] * 13 + [50] * 7
  assert GROUP == 10


def test_words_differ():
  assert word(0) == "bababa"
  assert len({word(number) for number in range(0, WORDS, 7)}) == -(-WORDS // 7)


def test_baselines():
  """Two queries of a topic: the oracle's order is 4 items by their likelihood; links of other splits are taken out."""
  plan = Plan.of(Recipe(items=100, topics=20))
  baselines = Baselines(plan)  # so few items are all measured
  item = int(plan.order[20 + 5])  # of topic 5
  best = [target for target in np.argsort(-plan.likelihoods(5)).tolist() if target != item]
  links = np.array([(item, best[0]), (item, best[2]), (item, best[99 - 1]), (item, best[1])])
  baselines.add(links, np.array([0, 2, 2, 1]))  # train, test, test, dev
  found = baselines.measure()
  assert found["oracle_map@10"] == (1 / 1) / 2  # best[2] is the first result; the other one is not among 10
  assert found["queries"] == 1
  popular = Baselines(plan)
  other = int(plan.order[0])
  popular.add(np.array([(other, best[5]), (other, best[5 + 1]), (item, best[6])]), np.array([0, 0, 2]))
  rank = 1 + (best[5] < best[6])  # both have one training link: the first item is first
  assert popular.measure()["popularity_map@10"] == 1 / rank


def test_the_oracle_beats_popularity(folder: pathlib.Path):
  record = json.loads((folder / "planted.json").read_text())
  assert record["oracle_map@10"] > 2 * record["popularity_map@10"] > 0


def test_the_source(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, folder: pathlib.Path):
  monkeypatch.setenv("RETRIEVAL_JAX_CACHE", str(tmp_path))
  source = PlantedGraph("test", *TINY)
  assert (source.name, source.split) == ("planted_1000", "test")
  assert list(source.splits()) == ["dev", "test", "train", "corpus"]
  assert (source.folder() / "edges.test.tsv").read_bytes() == (folder / "edges.test.tsv").read_bytes()
  assert source.folder().is_relative_to(tmp_path)
  assert next(source.examples("test"))["query_id"] == next(read_edges(folder / "edges.test.tsv")).source


@pytest.mark.parametrize(
  "recipe, message",
  [
    ((1000, 15, 0), "1,000 items and 15 topics: expected a multiple of 10 topics"),
    ((90, 20, 0), "90 items and 20 topics: .* from 5 items a topic to 10,000,000 items"),
    (
      (1000, 20, 2**63),
      r"a planted graph of seed 9223372036854775808: expected one of 64 bits, from -2\*\*63 to 2\*\*63 - 1",
    ),
    ((1000, 20, -(2**63) - 1), r"a planted graph of seed -9223372036854775809: expected one of 64 bits"),
    ((1e6, 200, 0), r"1000000\.0 items and 200 topics, seed 0: expected whole numbers"),
  ],
)
def test_recipes_that_make_no_graph(recipe, message: str):
  with pytest.raises(UserError, match=message):
    PlantedGraph("train", *recipe).splits()
