"""scripts/scale_extreme.py: terms of a training on paper, by hand."""

import importlib.util
import pathlib

import pytest

SCRIPT = pathlib.Path(__file__).parents[2] / "scripts" / "scale_extreme.py"


@pytest.fixture(scope="module")
def scale():
  spec = importlib.util.spec_from_file_location("scale_extreme", SCRIPT)
  assert spec is not None
  assert spec.loader is not None
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


@pytest.fixture
def small(scale):
  """1,000 points with 2 labels of 100, 4 numbers an embedding, on 2 chips of 1 host that do 10^12 operations a second."""
  return scale.Setting(
    points=1000,
    labels=100,
    labels_a_point=2.0,
    tokens=8,
    layers=1,
    width=16,
    dim=4,
    batch=100,
    cluster_size=10,
    epochs=3,
    classifier_batch=10,
    chips=2,
    hosts=1,
    peak_tflops=1.0,
    utilisation=0.5,
  )


def amounts(terms) -> dict[tuple[str, str], float]:
  return {(term.place, term.what): term.amount for term in terms}


def test_a_text_costs_two_operations_for_each_weight_and_token_and_those_of_attention(scale, small):
  weights, tokens = 12 * 16 * 16, 8
  attention = 2 * tokens * 16 + 2 * tokens * 16  # scores, and the sum of values, of a token
  assert small.text_flops == tokens * (2 * weights + attention)
  assert small.params == weights + (30_522 + 512) * 16
  assert small.flops_a_second == 2 * 0.5e12


def test_distilbert_has_66_million_parameters(scale):
  assert scale.Setting().params / 1e6 == pytest.approx(66.3, abs=0.1)


def test_terms_of_preparation(scale, small):
  found = amounts(scale.prepare_terms(small))
  assert found[scale.DISK, "who has which label"] == 1000 * (8 + 4) + 2000 * (4 + 4)
  assert found[scale.DISK, "tokens, lengths, identities"] == 1100 * (8 * 2 + 4 + 4)
  assert found[scale.FIRST, "reading pairs"] == 100 * 2000 + 48 * 100


def test_an_epoch_takes_as_long_as_the_slower_of_chips_and_host(scale, small):
  step = scale.step_seconds(small)
  encoders = 100 * 2 * 3 * small.text_flops / 1e12  # two texts a point, thrice the forward pass
  assert step["encoders"] == pytest.approx(encoders)
  host = 100 * 0.8e-6 + 100 * 4 * 4.6e-9
  chips = encoders + step["network of chips"]
  assert scale.epoch_seconds(small)["chips"] == pytest.approx(10 * chips)
  assert scale.epoch_seconds(small)["epoch"] == pytest.approx(10 * max(chips, host))
  slow = small._replace(peak_tflops=1e-6)
  assert scale.epoch_seconds(slow)["epoch"] == scale.epoch_seconds(slow)["chips"]


def test_one_chip_needs_no_network(scale, small):
  assert scale.step_seconds(small._replace(chips=1))["network of chips"] == 0


def test_terms_of_training(scale, small):
  found = amounts(scale.train_terms(small))
  assert found[scale.DISK, "bank and its copies"] == 4 * (1000 * 4 * 2)
  assert found[scale.FIRST, "clustering"] == 1000 * (4 + 36) + 2 * 100 * 4  # rows, and twice 100 centroids
  assert found[scale.HOST, "clusters in force"] == 1000 * 4 + 100 * 8
  assert found[scale.CHIP, "clustering on the mesh"] == 1000 * 4 / 2 + 100 * 4 * (4 + 1)
  seconds = scale.epoch_seconds(small)
  assert seconds["refresh"] == pytest.approx(1000 * (3e-6 + 4 * 0.05e-6 + 4 * 1.8e-9 + 0.13e-6))
  assert found[scale.TIME, "all epochs"] == pytest.approx(3 * (seconds["epoch"] + seconds["refresh"] / 5))


def test_a_tree_has_64_children_a_node_and_leaves_of_at_most_two_clusters(scale, small):
  assert [scale.levels(small._replace(points=n)) for n in (64, 65, 64 * 64, 64 * 64 + 1)] == [0, 1, 1, 2]
  assert scale.levels(small._replace(points=200, cluster_size=100)) == 0
  assert scale.levels(scale.Setting()) == 4


def test_terms_of_classifiers(scale, small):
  found = amounts(scale.classifier_terms(small))
  assert found[scale.CHIP, "W and two moments"] == 3 * (100 * 4 * 4) / 2
  assert found[scale.CHIP, "scores and masks"] == 16 * 10 * 20 / 2
  assert found[scale.DISK, "checkpoints"] == 3 * 3 * (100 * 4 * 4)
  # A union cannot be larger than the label set.
  many = amounts(scale.classifier_terms(small._replace(labels_a_point=50.0)))
  assert many[scale.CHIP, "scores and masks"] == 16 * 10 * 100 / 2


def test_host_0_holds_what_every_host_holds(scale, small):
  terms = scale.train_terms(small)
  sums = {place: amount for _, place, amount, _ in scale.verdicts(terms, small)}
  every = (12 * 1000 + 8 * 2000) + 36 * 1000 + (4 * 1000 + 8 * 100)
  assert sums[scale.HOST] == every
  assert sums[scale.FIRST] == every + 1000 * 40 + 800  # the system's cache is not counted


@pytest.mark.parametrize(
  "place, amount, text",
  [("disk", 2e9, "2 GB"), ("disk", 1.5e12, "1.5 TB"), ("time", 7200, "2 h"), ("time", 0.25, "250 ms")],
)
def test_amounts_in_words(scale, place, amount, text):
  assert scale.shown(scale.Term("", place, "", "", amount)) == text


def run(scale, monkeypatch, capsys, *flags: str) -> str:
  monkeypatch.setattr("sys.argv", ["scale_extreme.py", *flags])
  scale.main()
  return capsys.readouterr().out


def test_240_million_points_fit_with_64_numbers_a_point_and_not_with_768(scale, monkeypatch, capsys):
  assert "host 0         234.4 GB of     192  DOES NOT FIT" in run(scale, monkeypatch, capsys)
  assert "host 0          44.3 GB of     192  fits" in run(scale, monkeypatch, capsys, "--dim", "64")


def test_a_number_that_cannot_be_is_refused(scale, monkeypatch, capsys):
  with pytest.raises(SystemExit):
    run(scale, monkeypatch, capsys, "--chips", "0")
  assert "--chips is 0; expected a number above 0" in capsys.readouterr().err
