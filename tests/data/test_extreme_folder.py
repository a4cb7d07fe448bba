"""ExtremeFolder: points and labels of folders in the LF layout, held-out points, filter pairs and label counts."""

import logging
import pathlib

import numpy as np
import pytest
from extreme_folders import POINTS, sparse, write, write_json, write_text
from test_reader_memory import peak

from retrieval_jax.data.dataset import load, make_batch
from retrieval_jax.data.extreme import ExtremeFolder, is_held_out, is_titles, usual_propensity
from retrieval_jax.data.label_counts import LabelCounts
from retrieval_jax.data.mixture import MixtureSource
from retrieval_jax.data.mixture import load as load_mixture
from retrieval_jax.data.pair_table import pair_table
from retrieval_jax.data.sampling import Sample, sampled
from retrieval_jax.data.text_inputs import TextInputs
from retrieval_jax.errors import UserError
from tests.data.toy_source import ListSource

FORMS = {
  "json.gz": lambda folder: write_json(folder),
  "json": lambda folder: write_json(folder, ending=""),
  "text": lambda folder: write_text(folder),
  "text.gz": lambda folder: write_text(folder, ending=".gz"),
  "raw text": lambda folder: write_text(folder, names=("{}.raw.txt", "lbl.raw.txt")),
  "raw text of X": lambda folder: write_text(folder, names=("{}_X.raw.txt", "Y.raw.txt")),
}


def everything(folder: pathlib.Path, **settings) -> dict[str, list]:
  source = ExtremeFolder(str(folder), **settings)
  return {split: list(source.examples(split)) for split in source.splits()}


@pytest.fixture
def toy(tmp_path: pathlib.Path) -> pathlib.Path:
  return write_json(tmp_path / "LF-ToyTitles")


@pytest.mark.parametrize("form", FORMS)
def test_every_form_has_the_same_examples(tmp_path: pathlib.Path, form: str):
  found = everything(FORMS[form](tmp_path / "x-titles"))
  assert found["corpus"] == [
    {"passage_id": "0", "targets": "red"},
    {"passage_id": "1", "targets": "green"},
    {"passage_id": "2", "targets": "blue"},
    {"passage_id": "3", "targets": "a b"},
  ]
  keys = ("query_id", "inputs", "passage_id", "targets", "relevance")
  assert [tuple(pair[key] for key in keys) for pair in found["train"]] == [
    ("0", "red ?", "0", "", 1),
    ("1", "c", "0", "", 0),  # no label: judged, and no positive
    ("2", "green a", "1", "", 1),
    ("2", "green a", "3", "", 1),
    ("3", "red green", "0", "", 1),
    ("3", "red green", "1", "", 1),
  ]
  assert [(pair["query_id"], pair["passage_id"]) for pair in found["test"]] == [
    ("0", "2"),
    ("1", "3"),
    ("1", "0"),
  ]
  assert list(found) == ["train", "test", "corpus"]


def test_a_point_without_labels_is_judged_and_not_trained_on(toy: pathlib.Path, inputs: TextInputs, tmp_path):
  data = load(ExtremeFolder(str(toy)), inputs, cache=tmp_path / "cache")
  assert data.queries.num_rows == 4
  assert data.judged.tolist() == [0, 1, 2, 3]
  assert data.examples.tolist() == [0, 2, 3]
  assert [rows.tolist() for rows in data.judgements(1)] == [[0], [0]]


@pytest.mark.parametrize("split", ["train", "held_out", "test"])
def test_label_counts_are_those_of_all_training_points(toy: pathlib.Path, inputs, tmp_path, split: str):
  # A share of 0.45 holds the points 2 and 3 out: the counts do not change by it.
  source = ExtremeFolder(str(toy), split, held_out=0.45)
  found = load(source, inputs, cache=tmp_path / "cache").label_counts
  assert isinstance(found, LabelCounts)
  assert found.counts.tolist() == [2, 2, 0, 1]
  assert found.num_points == 4


def test_counts_come_from_the_cache(toy: pathlib.Path, inputs: TextInputs, tmp_path, monkeypatch):
  cache = tmp_path / "cache"
  load(ExtremeFolder(str(toy), "test"), inputs, cache=cache)
  monkeypatch.setattr("retrieval_jax.data.extreme.read_points", None)  # whoever reads again, calls None
  assert load(ExtremeFolder(str(toy), "train"), inputs, cache=cache).label_counts.num_points == 4
  assert load(ExtremeFolder(str(toy), "test"), inputs, cache=cache).label_counts.num_points == 4


def test_propensities_need_training_points(tmp_path: pathlib.Path, inputs: TextInputs):
  folder = write_json(tmp_path / "x", {"tst": POINTS["tst"]})
  with pytest.raises(
    UserError, match=r"x declares propensities, which are counted in its split 'train' .* its splits: test"
  ):
    load(ExtremeFolder(str(folder), "test"), inputs, cache=tmp_path / "cache")


def test_held_out_points_are_taken_out_of_train(toy: pathlib.Path):
  out = [id for id in "0123" if is_held_out(id, 0.45)]
  assert out == ["2", "3"]
  found = everything(toy, held_out=0.45)
  assert list(found) == ["train", "held_out", "test", "corpus"]
  assert list(dict.fromkeys(pair["query_id"] for pair in found["held_out"])) == out
  ids = list(dict.fromkeys(pair["query_id"] for pair in found["train"]))
  assert ids == [id for id in "0123" if id not in out]
  assert found["test"] == everything(toy)["test"]


def test_a_larger_share_holds_the_same_points_out_and_more():
  points = [str(i) for i in range(2000)]
  small, large = ({id for id in points if is_held_out(id, share)} for share in (0.05, 0.1))
  assert small < large
  assert 70 <= len(small) <= 130  # 100 +- 3 standard deviations
  assert not any(is_held_out(id, 0.0) for id in points)


def test_holding_out_leaves_the_corpus_as_it_is(toy: pathlib.Path, inputs: TextInputs, tmp_path):
  loaded = [
    load(ExtremeFolder(str(toy), "test", held_out=share), inputs, cache=tmp_path / "cache")
    for share in (0.0, 0.45)
  ]
  assert loaded[0].passages.fingerprint == loaded[1].passages.fingerprint
  write(toy / "trn_X_Y.txt", sparse([[0], [], [1], [2]], 4))
  later = load(ExtremeFolder(str(toy), "test"), inputs, cache=tmp_path / "cache")
  assert later.passages.fingerprint == loaded[0].passages.fingerprint
  assert later.label_counts.counts.tolist() == [1, 1, 1, 0]


def test_held_out_points_without_a_share(toy: pathlib.Path, inputs: TextInputs, tmp_path):
  with pytest.raises(UserError) as found:
    load(ExtremeFolder(str(toy), "held_out"), inputs, cache=tmp_path / "cache")
  assert str(found.value) == (
    f"{toy}: the split 'held_out' is a share of the training points, and none is set. Set --gin.HELD_OUT=0.05, in the "
    "training too."
  )


def test_test_points_stay_as_they_are_whatever_is_held_out(toy: pathlib.Path, inputs: TextInputs, tmp_path):
  none, some = (
    {
      split: load(ExtremeFolder(str(toy), split, held_out=share), inputs, cache=tmp_path / "cache")
      for split in ("train", "test")
    }
    for share in (0.0, 0.45)
  )
  assert none["test"].fingerprint == some["test"].fingerprint
  assert none["test"].queries.fingerprint == some["test"].queries.fingerprint
  assert none["train"].queries.fingerprint != some["train"].queries.fingerprint
  write(toy / "tst.json", ['{"title": "other", "target_ind": [1]}'], ".gz")
  later = load(ExtremeFolder(str(toy), "test"), inputs, cache=tmp_path / "cache")
  assert later.queries.fingerprint != none["test"].queries.fingerprint


@pytest.mark.parametrize("share", [-0.1, 1, 1.5, "0.1", None])
def test_a_share_that_cannot_be(toy: pathlib.Path, share):
  with pytest.raises(
    UserError, match=f"held_out={share!r}: expected a share of the training points, from 0 to below 1"
  ):
    ExtremeFolder(str(toy), held_out=share).splits()


def test_filter_pairs_are_those_of_the_split(toy: pathlib.Path, inputs: TextInputs, tmp_path):
  write(toy / "filter_labels_train.txt", ["2 0", "3 2", "2 2", "2 2"])
  write(toy / "filter_labels_test.txt", ["1 1"])
  for share in (0.0, 0.45):
    parts = {}
    for split in ("train", "held_out", "test")[:: 1 if share else 2]:
      data = load(ExtremeFolder(str(toy), split, held_out=share), inputs, cache=tmp_path / "cache")
      if data.filtered is not None:
        parts |= {
          (split == "test", data.queries.ids[row]): data.filtered.row(row)[0].tolist()
          for row in range(data.queries.num_rows)
          if len(data.filtered.row(row)[0])
        }
    assert parts == {(False, "2"): [0, 2], (False, "3"): [2], (True, "1"): [1]}


@pytest.mark.parametrize(
  "make", [lambda folder: None, lambda folder: write(folder / "filter_labels_train.txt", [])]
)
def test_no_filter_and_an_empty_one(toy: pathlib.Path, inputs: TextInputs, tmp_path, make):
  make(toy)
  assert load(ExtremeFolder(str(toy)), inputs, cache=tmp_path / "cache").filtered is None


def test_filtered_labels_are_no_negatives_and_never_drawn(toy: pathlib.Path, inputs: TextInputs, tmp_path):
  write(toy / "filter_labels_train.txt", ["0 3", "2 2", "2 0"])
  data = load(ExtremeFolder(str(toy)), inputs, cache=tmp_path / "cache")
  drawn = set()
  for epoch in range(20):
    batch = make_batch(data, np.array([0, 1, 2, -1]), seed=0, epoch=epoch)
    drawn |= set(zip([0, 1, 2], batch.passage_rows[:3].tolist(), strict=True))
  assert batch.positives.tolist() == [[0, -1, 3, -1], [1, 3, 0, 2], [0, 1, -1, -1], [-1, -1, -1, -1]]
  assert drawn == {(0, 0), (1, 1), (1, 3), (2, 0), (2, 1)}


def test_a_sample_keeps_what_is_filtered_and_counted(toy: pathlib.Path, inputs: TextInputs, tmp_path):
  write(toy / "filter_labels_test.txt", ["0 0", "1 1", "1 2"])
  data = load(ExtremeFolder(str(toy), "test"), inputs, cache=tmp_path / "cache")
  part = sampled(data, Sample(passages=3))  # the judged labels 0, 2, 3; not 1
  assert list(part.passages.ids) == ["0", "2", "3"]
  assert [part.filtered.row(i)[0].tolist() for i in (0, 1)] == [[0], [1]]
  assert (part.label_counts.counts.tolist(), part.label_counts.num_points) == ([2, 0, 1], 4)
  alone = sampled(data, Sample(queries=1))
  assert alone.filtered.num_queries == 1


def test_a_mixture_keeps_what_is_filtered(toy: pathlib.Path, inputs: TextInputs, tmp_path):
  write(toy / "filter_labels_train.txt", ["2 0"])
  others = ListSource({"train": [{"query_id": "q", "inputs": "a", "passage_id": "p", "targets": "b"}]})
  sources = {"a": others, "b": ExtremeFolder(str(toy))}
  data = load_mixture(
    MixtureSource(dict.fromkeys(sources, 1.0), sources=sources), inputs, cache=tmp_path / "cache"
  )
  assert data.queries.num_rows == 5
  assert [data.filtered.row(row)[0].tolist() for row in range(5)] == [[], [], [], [1], []]
  assert data.label_counts is None


@pytest.mark.parametrize(
  "name, constants",
  [
    ("LF-AmazonTitles-131K", (0.6, 2.6)),
    ("LF-Amazon-131K", (0.6, 2.6)),
    ("lf_amazontitles_1_3m", (0.6, 2.6)),
    ("LF-Wikipedia-500K", (0.5, 0.4)),
    ("LF-WikiTitles-500K", (0.5, 0.4)),
    ("LF-WikiSeeAlso-320K", (0.55, 1.5)),
    ("xc_yso_titles_small", (0.55, 1.5)),
  ],
)
def test_usual_propensities(name: str, constants: tuple[float, float]):
  assert usual_propensity(name) == constants


def test_propensities_are_declared(toy: pathlib.Path):
  assert ExtremeFolder(str(toy)).info.propensity == (0.55, 1.5)
  assert ExtremeFolder(str(toy), propensity=(0.6, 2.6)).info.propensity == (0.6, 2.6)
  assert ExtremeFolder(str(toy)).info.metrics[:3] == ("p@1", "p@3", "p@5")
  assert ExtremeFolder(str(toy), propensity=(10, 0.001)).info.propensity == (10, 0.001)


@pytest.mark.parametrize(
  "wrong",
  [
    0.5,
    (0.5,),
    (0.5, -1),
    ("a", "b"),
    (0, 1.5),
    (True, 1),
    (1e300, 1),
    (float("inf"), 1),
    (0.5, float("nan")),
    (10.1, 1),
    (0.5, 1e-300),
    (0.5, 1001),
  ],
)
def test_propensities_whose_weights_could_not_be_counted(toy: pathlib.Path, wrong):
  with pytest.raises(UserError) as found:
    _ = ExtremeFolder(str(toy), propensity=wrong).info
  assert str(found.value) == (
    f"PROPENSITY={wrong!r}: expected the constants (A, B), A above 0 and at most 10, B from 0.001 to 1000, such as "
    "(0.55, 1.5)."
  )


@pytest.mark.parametrize(
  "name, titles", [("LF-AmazonTitles-131K", True), ("xc_yso_TITLES", True), ("LF-Amazon", False)]
)
def test_titles_alone_by_the_folders_name(tmp_path: pathlib.Path, name: str, titles: bool, caplog):
  assert is_titles(name) == titles
  folder = write_json(tmp_path / name, ending="")
  write(folder / "lbl.json", ['{"title": "Cats", "content": "They purr."}'] * 4)
  write(folder / "tst.json", ['{"title": " Dogs ", "content": "Bark. ", "target_ind": [1]}'])
  texts = ("Cats", "Dogs") if titles else ("Cats They purr.", "Dogs Bark.")
  for setting, expected in (
    (None, texts),
    (True, ("Cats", "Dogs")),
    (False, ("Cats They purr.", "Dogs Bark.")),
  ):
    with caplog.at_level(logging.INFO):
      found = everything(folder, titles_only=setting)
    assert (found["corpus"][0]["targets"], found["test"][0]["inputs"]) == expected
  assert "texts are titles and contents (titles_only=False)" in caplog.text
  assert caplog.text.count(f"{folder}/lbl.json: texts are titles alone, because") == 1 + titles
  assert "the contents of 4 rows are left out" in caplog.text


def test_entities_are_characters_unless_told_otherwise(tmp_path: pathlib.Path):
  folder = write_text(tmp_path / "x", {"trn": [("R&amp;B &#8217;n&nbsp;", [0])]}, ["a &lt; b"])
  assert everything(folder)["corpus"][0]["targets"] == "a < b"
  assert everything(folder)["train"][0]["inputs"] == "R&B \u2019n"
  assert everything(folder, unescape=False)["train"][0]["inputs"] == "R&amp;B &#8217;n&nbsp;"


def test_latin_1(tmp_path: pathlib.Path):
  folder = write_text(tmp_path / "x", {"trn": [("a", [0])]}, ["b"])
  (folder / "Y.txt").write_bytes("caf\xe9\n".encode("latin-1"))
  with pytest.raises(
    UserError, match=r"Y\.txt:1: not UTF-8 .*Older releases are latin-1: encoding='latin-1'"
  ):
    everything(folder)
  assert everything(folder, encoding="latin-1")["corpus"][0]["targets"] == "caf\xe9"
  for wrong in ("utf-16", "none-such", 8):
    with pytest.raises(UserError, match=f"encoding={wrong!r}: expected 'utf-8', 'latin-1' or another"):
      everything(folder, encoding=wrong)


def test_yso_titles_through_both_layouts(data_dir: pathlib.Path, tmp_path: pathlib.Path):
  found = everything(data_dir / "xc_yso_titles_small")
  assert {split: len(examples) for split, examples in found.items()} == {
    "train": 26_436,
    "test": 5_930,
    "corpus": 8_712,
  }
  points = {}
  for split, prefix in (("train", "trn"), ("test", "tst")):
    rows: dict[str, tuple[str, list[int]]] = {}
    for pair in found[split]:
      rows.setdefault(pair["query_id"], (pair["inputs"], []))[1].append(int(pair["passage_id"]))
    points[prefix] = list(rows.values())
  assert (len(points["trn"]), len(points["tst"])) == (12_000, 2_875)
  folder = write_text(
    tmp_path / "titles", points, [passage["targets"] for passage in found["corpus"]], ending=".gz"
  )
  assert everything(folder) == found
  (folder / "Y.txt.gz").unlink()
  json_layout = write_json(
    tmp_path / "json_titles", points, [passage["targets"] for passage in found["corpus"]]
  )
  assert everything(json_layout) == found


def test_yso_titles_40k_has_filter_pairs_in_train_alone(data_dir: pathlib.Path, inputs: TextInputs, tmp_path):
  folder = str(data_dir / "xc_yso_titles_40k")
  train = load(ExtremeFolder(folder), inputs, cache=tmp_path / "cache")
  assert train.filtered.counts.sum() == 6
  assert train.filtered.row(2149)[0].tolist() == [405]
  assert train.queries.ids[2149] == "2149"
  test = load(ExtremeFolder(folder, "test"), inputs, cache=tmp_path / "cache")
  assert test.filtered is None
  assert (test.label_counts.num_points, test.label_counts.counts.sum()) == (40_000, 94_547)
  assert np.array_equal(test.label_counts.counts, train.label_counts.counts)


def test_preparing_takes_about_100_bytes_a_pair(tmp_path: pathlib.Path):
  labels, peaks = [f"label {label}" for label in range(100)], []
  for number, count in enumerate((100, 1000, 4000)):  # the first brings what is imported and registered once
    points = {"trn": [(f"title {point}", list(range(point % 5, 100, 5))) for point in range(count)]}
    source = ExtremeFolder(str(write_text(tmp_path / str(number), points, labels)))
    peaks.append(peak(lambda source=source: pair_table(source, tmp_path / "cache")))
  assert peaks[2] - peaks[1] < 130 * 20 * 3000
