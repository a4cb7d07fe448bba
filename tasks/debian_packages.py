"""The Task `debian_packages`: find the packages that a package names, in this machine's own package index.

About 60,000 packages and 300,000 links on Debian 12: 90% of the links are train, 10% are test, by a hash. A machine without a
package index gets an error that says what to give in its place: configs/data/debian_packages.gin reads a file or a folder.
"""

from retrieval_jax.data import features
from retrieval_jax.data.debian_packages import DebianPackages
from retrieval_jax.data.file_task import files_fingerprint

PACKAGES = DebianPackages()

features.register(
  features.TextTask(
    name="debian_packages",
    splits=("train", "test", features.CORPUS),
    read=lambda split: PACKAGES.task().read(split),
    fingerprint=lambda: files_fingerprint(PACKAGES.files()),
    info=features.TaskInfo(
      metrics=("map@10", "mrr@10", "recall@10", "recall@100"),
      drop_identical=True,
      source="the package index of this machine, as its distribution publishes it",
    ),
    files=PACKAGES.files,
    filter_pairs=lambda split: PACKAGES.task().filter_pairs_of(split),
  )
)
