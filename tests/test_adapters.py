"""BEIR and MTEB, the real packages, measure of an adapted model what this package measures itself."""

import json
import pathlib

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from retrieval_jax.adapters import BeirModel, MtebModel
from retrieval_jax.dual_encoder import DualEncoder
from retrieval_jax.errors import UserError
from tests.adapters_corpus import (
  CORPUS,
  QRELS,
  QUERIES,
  TEXTS,
  TITLES,
  Ranking,
  make_model,
  our_ranking,
  write_vocabulary,
)

SETTINGS = {"query_prefix": "query: ", "passage_prefix": "passage: ", "passage_template": "{title} | {text}"}
DOCUMENTS = {
  "text": ["fish they swim", "they bark"],
  "title": ["fish", ""],
  "body": ["they swim", "they bark"],
}


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory):
  return write_vocabulary(tmp_path_factory.mktemp("vocabulary") / "vocab.txt")


@pytest.fixture(scope="module")
def model(vocabulary) -> DualEncoder:
  """With prefixes and a template of its own: neither package knows them."""
  return make_model(vocabulary, **SETTINGS)


@pytest.fixture(scope="module")
def plain(vocabulary) -> DualEncoder:
  """The same parameters without prefixes, with the usual template."""
  return make_model(vocabulary)


@pytest.fixture(scope="module")
def raw(vocabulary) -> DualEncoder:
  """A model that does not normalise."""
  return make_model(vocabulary, normalize=False)


@pytest.fixture(scope="module")
def ours(model) -> Ranking:
  return our_ranking(model)


@pytest.fixture
def mteb(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
  """The package, cut off from the hub and the home folder."""
  for name, value in {"MTEB_CACHE": str(tmp_path / "mteb"), "HF_HUB_OFFLINE": "1"}.items():
    monkeypatch.setenv(name, value)
  package = pytest.importorskip("mteb")
  monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
  return package


@pytest.fixture
def evaluate(mteb, tmp_path: pathlib.Path):
  """evaluate(model, task): (scores, predictions), with one result cache for the test."""

  def run(adapted: MtebModel, task):
    predictions = tmp_path / "predictions"
    result = mteb.evaluate(
      adapted,
      task,
      cache=mteb.ResultCache(tmp_path / "cache"),
      co2_tracker=False,
      show_progress_bar=False,
      prediction_folder=predictions,
    )
    written = json.loads((predictions / task.prediction_file_name).read_text())
    return result.task_results[0].scores["test"][0], written["default"]["test"]

  return run


def check_ranking(found: dict[str, dict[str, float]], printed: float, ours: Ranking, qrels=QRELS) -> None:
  """Scores and unrounded nDCG@10 to 1e-6; the printed mean, which both packages round to 5 digits, too."""
  pytrec_eval = pytest.importorskip("pytrec_eval")
  scores = [[found[query][passage] for passage in CORPUS] for query in QUERIES]
  assert_allclose(scores, ours.scores, atol=1e-6, rtol=1e-6)
  measured = pytrec_eval.RelevanceEvaluator(qrels, {"ndcg_cut.10"}).evaluate(found)
  values = {query: measured[query]["ndcg_cut_10"] for query in QUERIES}
  assert values == pytest.approx(ours.per_query, abs=1e-6)
  assert np.mean(list(values.values())) == pytest.approx(ours.mean, abs=1e-6)
  assert printed == pytest.approx(ours.mean, abs=0.5e-5 + 1e-6)
  assert 0.3 < ours.mean < 0.95, "neither all right nor all wrong"


def write_beir(folder: pathlib.Path) -> None:
  corpus = [{"_id": name, **passage, "metadata": {}} for name, passage in CORPUS.items()]
  queries = [{"_id": name, "text": text} for name, text in QUERIES.items()]
  for name, lines in (("corpus", corpus), ("queries", queries)):
    (folder / f"{name}.jsonl").write_text(
      "".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8"
    )
  rows = [f"{query}\t{passage}\t{grade}\n" for query, ps in QRELS.items() for passage, grade in ps.items()]
  (folder / "qrels").mkdir()
  (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(rows), encoding="utf-8")


@pytest.mark.parametrize("normalized, score_function", [(True, "cos_sim"), (True, "dot"), (False, "dot")])
def test_beir_measures_what_we_measure(tmp_path, model, raw, normalized, score_function):
  pytest.importorskip("beir")
  from beir.datasets.data_loader import GenericDataLoader
  from beir.retrieval.evaluation import EvaluateRetrieval
  from beir.retrieval.search.dense import DenseRetrievalExactSearch

  write_beir(tmp_path)
  corpus, queries, qrels = GenericDataLoader(str(tmp_path)).load(split="test")
  chosen = model if normalized else raw
  # Chunks smaller than the corpus: encode_corpus is called three times.
  search = DenseRetrievalExactSearch(
    BeirModel(chosen), batch_size=2, corpus_chunk_size=4, show_progress_bar=False
  )
  retriever = EvaluateRetrieval(search, score_function=score_function)
  found = retriever.retrieve(corpus, queries)
  ndcg, *_ = retriever.evaluate(qrels, found, [10])
  check_ranking(found, ndcg["NDCG@10"], our_ranking(chosen), qrels)


def test_beir_reads_a_corpus_in_every_form_it_comes_in(model):
  expected = model.encode_passages(list(zip(TITLES, TEXTS, strict=True)))
  beir = BeirModel(model)
  assert_array_equal(beir.encode_corpus(list(CORPUS.values()), batch_size=3), expected)
  assert_array_equal(beir.encode_corpus({"title": TITLES, "text": TEXTS, "_id": list(CORPUS)}), expected)
  without = model.encode_passages(TEXTS)
  assert np.abs(expected - without)[0].max() > 1e-2, "titles take part"
  assert_array_equal(beir.encode_corpus({"text": TEXTS}), without)
  assert_array_equal(beir.encode_corpus([{"title": None, "text": text} for text in TEXTS]), without)
  assert_array_equal(beir.encode_corpus(TEXTS), without)


def test_beir_queries_get_prefix_and_query_tower(model, plain):
  texts = list(QUERIES.values())
  got = BeirModel(model).encode_queries(texts, batch_size=1, show_progress_bar=False)
  assert_array_equal(got, model.encode_queries(texts))
  assert_allclose(got, plain.encode_queries([f"query: {text}" for text in texts]), atol=1e-6)
  assert np.abs(got - plain.encode_queries(texts)).max() > 1e-2
  assert got.dtype == np.float32


def test_beir_gets_tensors_and_unit_lengths_where_it_asks(raw):
  expected = raw.encode_queries(["old house"])
  beir = BeirModel(raw)
  unit = beir.encode_queries(["old house"], normalize_embeddings=True)
  assert_allclose(unit, expected / np.linalg.norm(expected), rtol=1e-6)
  assert_allclose(np.linalg.norm(beir.encode_corpus(TEXTS, normalize_embeddings=True), axis=1), 1, rtol=1e-6)
  torch = pytest.importorskip("torch")
  tensor = beir.encode_queries(["old house"], convert_to_tensor=True)
  assert tensor.dtype == torch.float32
  assert_array_equal(tensor.numpy(), expected)
  assert_array_equal(
    beir.encode_corpus(TEXTS, convert_to_tensor=True, normalize_embeddings=True).numpy(),
    beir.encode_corpus(TEXTS, normalize_embeddings=True),
  )


@pytest.mark.parametrize(
  "corpus, message",
  [
    ({"title": ["a"], "text": ["a", "b"]}, "1 titles and 2 texts"),
    ({"title": ["a"]}, "expected 'text' in it"),
    ({"title": 5, "text": ["a"]}, "got int 5 as 'title'; expected a list of texts"),
    ({"title": "b", "text": ["a"]}, "got str 'b' as 'title'; expected a list of texts"),
    ({"text": "abc"}, "got str 'abc' as 'text'; expected a list of texts"),
    ({"text": None}, "got NoneType None as 'text'; expected a list of texts"),
    ("abc", "got one text, 'abc'; expected a list of them"),
    ([{"title": "a"}], 'expected a text, .title, text. or a dict with "text"'),
  ],
)
def test_beir_corpus_that_is_none(model, corpus, message):
  with pytest.raises(UserError, match=message):
    BeirModel(model).encode_corpus(corpus)


def test_mteb_measures_retrieval_as_we_do(evaluate, model, ours):
  from tests.adapters_tasks import TinyRetrieval

  scores, found = evaluate(MtebModel(model, name="me/tiny"), TinyRetrieval())
  check_ranking(found, scores["ndcg_at_10"], ours)


def test_mteb_measures_reranking_as_we_do(evaluate, model, ours):
  from tests.adapters_tasks import TinyReranking

  scores, found = evaluate(MtebModel(model, name="me/tiny"), TinyReranking())
  check_ranking(found, scores["ndcg_at_10"], ours)


def test_mteb_compares_texts_of_one_kind_by_the_query_tower(evaluate, raw):
  from tests.adapters_tasks import TinySimilarity

  _, found = evaluate(MtebModel(raw, name="me/tiny"), TinySimilarity())
  first, second = raw.encode_queries(TEXTS[:-1]), raw.encode_queries(TEXTS[1:])
  products = np.sum(first * second, axis=1)
  assert_allclose(found["similarity_scores"], products, rtol=1e-5)
  lengths = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
  assert_allclose(found["cosine_scores"], products / lengths, atol=1e-5)


def test_mteb_does_not_take_the_results_of_another_model_of_the_same_name(evaluate, vocabulary, model, ours):
  from tests.adapters_tasks import TinyRetrieval

  other = make_model(vocabulary, seed=1, **SETTINGS)
  first, _ = evaluate(MtebModel(other, name="me/tiny"), TinyRetrieval())
  second, _ = evaluate(MtebModel(model, name="me/tiny"), TinyRetrieval())
  assert second["ndcg_at_10"] == pytest.approx(ours.mean, abs=0.5e-5 + 1e-6)
  assert first["ndcg_at_10"] != second["ndcg_at_10"]


def test_mteb_model_meta_holds_what_is_known(mteb, vocabulary, model, plain):
  meta = MtebModel(model, name="me/tiny").mteb_model_meta
  assert (meta.name, meta.framework, meta.embed_dim, meta.max_tokens) == ("me/tiny", ["JAX"], 16, 16)
  assert meta.n_parameters == model.describe()["parameters"]
  assert meta.memory_usage_mb == pytest.approx(4 * meta.n_parameters / 2**20)
  assert meta.use_instructions
  assert not MtebModel(plain, name="me/tiny").mteb_model_meta.use_instructions
  revisions = [MtebModel(m, name="me/tiny").mteb_model_meta.revision for m in (model, plain)]
  assert revisions[0] != revisions[1], "another prefix is another model"
  again = make_model(vocabulary, **SETTINGS)
  assert MtebModel(again, name="me/tiny").mteb_model_meta.revision == revisions[0]
  assert MtebModel(model, name="me/tiny", revision="v2").mteb_model_meta.revision == "v2"
  assert isinstance(MtebModel(model, name="me/tiny"), mteb.models.EncoderProtocol)


def encode(model: DualEncoder, batches, **keywords) -> np.ndarray:
  adapted = MtebModel(model, name="me/tiny")
  return adapted.encode(batches, task_metadata=None, hf_split="test", hf_subset="default", **keywords)


@pytest.mark.parametrize("prompt_type", ["query", None])
def test_mteb_queries_and_texts_of_no_type_take_the_query_tower(model, prompt_type):
  got = encode(model, [{"text": TEXTS[:4]}, {"text": TEXTS[4:]}], prompt_type=prompt_type, batch_size=4)
  assert_array_equal(got, model.encode_queries(TEXTS))
  assert np.abs(got - model.encode_passages(TEXTS)).max() > 1e-2


@pytest.mark.parametrize("prompt_type", ["document", "passage"])
def test_mteb_documents_take_the_passage_tower_and_the_models_template(model, plain, prompt_type):
  got = encode(model, [DOCUMENTS, {"text": TEXTS}], prompt_type=prompt_type)
  assert_array_equal(got, model.encode_passages([("fish", "they swim"), "they bark", *TEXTS]))
  written = ["passage: fish | they swim", "passage: they bark"]
  assert_allclose(got[:2], plain.encode_passages(written), atol=1e-6)


@pytest.mark.parametrize(
  "batch, keywords, message",
  [
    ({"text": ["a"]}, {"prompt_type": "other"}, "prompt_type='other': expected 'query', 'document' or None"),
    ({"text": ["a"]}, {"precision": "int8"}, "precision='int8': the embeddings are float32"),
    ({"image": [1]}, {}, r"got a batch of \['image'\]; expected 'text' in it"),
    ({"image": [1]}, {"prompt_type": "document"}, "this model reads text alone"),
    ({"text": "abc"}, {}, "got str 'abc' as 'text'; expected a list of texts"),
    ({"text": None}, {"prompt_type": "document"}, "got NoneType None as 'text'; expected a list of texts"),
    ("text", {}, "got str 'text' in place of a batch; expected one such as"),
    (5, {"prompt_type": "document"}, "got int 5 in place of a batch; expected one such as"),
  ],
)
def test_mteb_requests_that_cannot_be_met(model, batch, keywords, message):
  with pytest.raises(UserError, match=message):
    encode(model, [batch], **keywords)


@pytest.mark.parametrize("batches", [{"text": ["a"]}, "abc", None, 5])
def test_mteb_batches_that_are_none(model, batches):
  with pytest.raises(UserError, match=r"in place of batches; expected a list of them, such as \[\{'text'"):
    encode(model, batches)


def test_mteb_similarities(model):
  adapted = MtebModel(model, name="me/tiny")
  a, b = np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[5.0, 6.0], [7.0, 8.0]])
  assert_array_equal(adapted.similarity(a, b), a @ b.T)
  assert_array_equal(adapted.similarity(a[0], b), a[:1] @ b.T)
  assert_array_equal(adapted.similarity_pairwise(a, b), [1 * 5 + 2 * 6, 3 * 7 + 4 * 8])
  with pytest.raises(UserError, match=r"got shapes \(2, 2\) and \(1, 2\)"):
    adapted.similarity_pairwise(a, b[:1])
  torch = pytest.importorskip("torch")
  assert_array_equal(adapted.similarity(torch.tensor(a), torch.tensor(b)), a @ b.T)


@pytest.mark.parametrize("name", ["tiny", "/tiny", "me/", "me/tiny/2", None, 3])
def test_mteb_name_needs_an_organisation(model, name):
  with pytest.raises(UserError, match="MTEB expects 'organisation/model'"):
    MtebModel(model, name=name)
