"""Docstrings read from source text: which names count, which files are left out."""

import pathlib
import textwrap

import pytest

from retrieval_jax.data.docstrings import Docstring, read_docstrings, source_files
from retrieval_jax.errors import UserError


def read(source: str) -> list[Docstring]:
  return list(read_docstrings("pkg._private", textwrap.dedent(source).encode()))


def test_public_functions_classes_and_methods():
  found = read('''
    """The module's own docstring does not count."""
    def public():
      """Does it.

        More.
          Indented.
      """
      def inner():
        """Not reachable."""
    def _hidden():
      """Hidden."""
    async def waits():
      """Waits."""
    if True:
      class Thing:
        """A thing."""
        def method(self):
          """Acts."""
        def __init__(self):
          """Hidden."""
    class _Hidden:
      def method(self):
        """Hidden as well."""
  ''')
  assert found == [
    Docstring("pkg._private.public", "Does it.\n\nMore.\n  Indented."),
    Docstring("pkg._private.waits", "Waits."),
    Docstring("pkg._private.Thing", "A thing."),
    Docstring("pkg._private.Thing.method", "Acts."),
  ]


def test_docstrings_added_from_outside():
  found = read('''
    add_newdoc("numpy._core", "flatiter", """
      Iterate.
      """)
    add_newdoc("numpy._core", "flatiter", ("base", "The base."))
    add_newdoc("numpy._core", "flatiter", [("coords", "Coordinates."), ("_x", "hidden")])
    add_newdoc("airy", "Airy functions.")
    add_newdoc("_cosine_cdf", "hidden")
    add_newdoc("numpy._core", "computed", "a".upper())
    add_newdoc()
  ''')
  assert found == [
    Docstring("numpy._core.flatiter", "Iterate."),
    Docstring("numpy._core.flatiter.base", "The base."),
    Docstring("numpy._core.flatiter.coords", "Coordinates."),
    Docstring("pkg.airy", "Airy functions."),
  ]


def test_a_file_of_another_python_version_gives_nothing():
  assert read("print 'two'") == []
  assert list(read_docstrings("m", b"\0")) == []


def test_packages_are_found_without_being_run(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
  for name in (
    "__init__",
    "b",
    "_a",
    "tests/test_b",
    "sub/conftest",
    "sub/__init__",
    "_vendor/x",
    "distutils/y",
  ):
    path = tmp_path / "boobytrap" / f"{name}.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("raise RuntimeError('imported')")
  monkeypatch.syspath_prepend(tmp_path)
  modules = [module for module, _ in source_files("boobytrap")]
  assert modules == ["boobytrap", "boobytrap._a", "boobytrap.b", "boobytrap.sub"]


def test_the_standard_library_is_python():
  modules = [module for module, _ in source_files("python")]
  assert {"argparse", "json.decoder"} <= set(modules)
  assert not [module for module in modules if module.startswith(("test", "site-packages", "distutils"))]


def test_an_absent_package():
  with pytest.raises(
    UserError, match=r"'no_such_package' is not installed here\. Install it with `pip install"
  ):
    source_files("no_such_package")
