"""Files from the web: resumed where they broke off, checked against their published sums, and whole or not there."""

import errno
import gzip
import hashlib
import http.client
import logging
import os
import pathlib
import re
import shutil
import time
import urllib.error
import urllib.parse
import urllib.request
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from tqdm import tqdm

from retrieval_jax import progress
from retrieval_jax.data.partial_file import PartialFile
from retrieval_jax.errors import UserError

LOG = logging.getLogger(__name__)
BLOCK = 2**18
AGAIN = frozenset((408, 425, 429, 500, 502, 503, 504))  # answers that may be others a moment later
LONGEST_PAUSE = 30.0  # seconds
RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")
BROKEN = (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError)


class Retry(NamedTuple):
  """How often a download that gets no further is tried, and how long is waited: `pause` seconds, doubled each time."""

  attempts: int = 6
  pause: float = 1.0
  timeout: float = 60.0


class _Broken(Exception):
  """The connection ended early; the message says how."""


def fetch(
  url: str,
  target: pathlib.Path,
  *,
  md5: str = "",
  sha256: str = "",
  size: int | None = None,
  headers: Mapping[str, str] | None = None,
  retry: Retry | None = None,
) -> pathlib.Path:
  """Returns `target`, downloaded unless it is there with the right checksum.

  Bytes go to `<target>.part`, which a later call goes on with if the server still has the same file (ETag or
  Last-Modified) and takes ranges; else it begins anew. `target` appears when all is there and the checksum is right. A
  file with another checksum is kept as `<target>.wrong` and not used. Without a checksum a .gz file is read to its end,
  which checks its own.

  Args:
    url: http or https.
    target: the file.
    md5, sha256: hexadecimal; the second is used if both are given.
    size: bytes, as far as known: decides only if there is no checksum.
    headers: sent with the request.
    retry: of connections that end early, time out or answer with one of AGAIN.

  Raises: UserError if the server cannot be reached or refuses, if the file is not what was expected, or if there is no
  room for it.

  Example: `fetch("http://127.0.0.1:8000/a.zip", pathlib.Path("a.zip"), md5="d41d8cd98f00b204e9800998ecf8427e")`.
  """
  if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
    raise UserError(f"{url}: expected an address that begins with http:// or https://.")
  kind, expected = ("sha256", sha256) if sha256 else ("md5", md5)
  if target.exists():
    if not expected or _digest(target, kind) == expected:
      return target
    _set_aside(target, target)
    LOG.warning("%s had another %s than %s: it is now %s.wrong.", target, kind, expected, target.name)
  target.parent.mkdir(parents=True, exist_ok=True)
  # With a checksum, pieces that do not fit together are found: then any server's bytes may be gone on with.
  with PartialFile(target, url, resumable=bool(expected)) as part:
    _receive_all(part, size=size, headers=headers or {}, retry=retry or Retry())
    got = _digest(part.path, kind) if expected else ""
    if got != expected:
      _set_aside(part.path, target)
      raise UserError(
        f"{url}: the file has the {kind} {got}, expected {expected}. It is kept as {target}.wrong and not used: "
        "something on the way changed it, or another version was published. Try again, or another --base_url."
      )
    if not expected and target.suffix == ".gz":
      _check_gzip(part.path, target, url)
    part.publish()
  return target


def _receive_all(part: PartialFile, *, size: int | None, headers: Mapping[str, str], retry: Retry) -> None:
  """Receives until all is there; every attempt that gets further sets the count of failures back."""
  failures, furthest = 0, part.size
  with tqdm(
    desc=part.target.name, unit="B", unit_scale=True, delay=1.0, mininterval=progress.interval()
  ) as bar:
    while True:
      try:
        _receive(part, bar, size=size, headers=headers, timeout=retry.timeout)
        part.flush()
        return
      except (_Broken, *BROKEN) as error:
        reason = str(getattr(error, "reason", "") or error)
      part.flush()
      failures = 1 if part.size > furthest else failures + 1
      furthest = max(furthest, part.size)
      if failures >= retry.attempts:
        raise UserError(
          f"{part.url}: {reason}; given up after {failures} attempts with {part.size:,} bytes. Check the network; the "
          "same command goes on from there. Behind a proxy set https_proxy; a mirror goes with --base_url."
        )
      pause = min(retry.pause * 2 ** (failures - 1), LONGEST_PAUSE)
      LOG.warning("%s: %s; trying again in %.0f s.", part.url, reason, pause)
      time.sleep(pause)


def _receive(
  part: PartialFile, bar: Any, *, size: int | None, headers: Mapping[str, str], timeout: float
) -> None:
  """Receives what is missing.

  Raises: _Broken or one of BROKEN if the connection ended early, UserError if the server refuses.
  """
  wanted = {"Accept-Encoding": "identity", "User-Agent": "retrieval-jax"} | dict(headers)
  if part.size:
    wanted["Range"] = f"bytes={part.size}-"
    if part.validator:
      wanted["If-Range"] = part.validator
  try:
    with urllib.request.urlopen(urllib.request.Request(part.url, headers=wanted), timeout=timeout) as answer:
      total = _total(answer, part)
      _check_room(part, total)
      bar.total, bar.n = total, part.size
      for block in _blocks(answer):
        part.add(block)
        bar.update(len(block))
  except urllib.error.HTTPError as error:
    with error:
      _explain(error, part)
    return
  expected = total if total is not None else size
  if expected is not None and part.size < expected:
    raise _Broken(f"the connection ended after {part.size:,} of {expected:,} bytes")


def _total(answer: Any, part: PartialFile) -> int | None:
  """Returns how many bytes the file has; the part is cleared if the server sends all of it again."""
  if answer.status == 206:
    found = RANGE.fullmatch(answer.headers.get("Content-Range") or "")
    if found is None or int(found[1]) != part.size:
      part.clear()
      raise _Broken(f"the server sent another range than asked for ({answer.headers.get('Content-Range')})")
    return None if found[2] == "*" else int(found[2])
  part.clear()
  part.note(answer.headers)
  length = answer.headers.get("Content-Length")
  return int(length) if length and length.isdecimal() else None


def _blocks(answer: Any) -> Iterator[bytes]:
  while block := answer.read(BLOCK):
    yield block


def _explain(error: urllib.error.HTTPError, part: PartialFile) -> None:
  """Returns if the answer says that nothing is missing.

  Raises: _Broken if it may be another one soon, else UserError.
  """
  if error.code == 416:  # nothing lies behind what we have
    total = (error.headers.get("Content-Range") or "").rpartition("/")[2]
    if part.size and total == str(part.size):
      return
    part.clear()
    raise _Broken("the server's file is shorter than what is here") from error
  if error.code in AGAIN:
    raise _Broken(f"the server answers {error.code} {error.reason}") from error
  raise UserError(
    f"{part.url}: the server answers {error.code} {error.reason}. The file has moved or is not public; a copy of it can "
    f"be put at {part.target} by hand, or a mirror named with --base_url."
  ) from error


def _check_room(part: PartialFile, total: int | None) -> None:
  free = shutil.disk_usage(part.path.parent).free
  if total is not None and total - part.size > free:
    raise part.no_room(f"{total - part.size:,} bytes are missing and {free:,} are free")


def _check_gzip(path: pathlib.Path, target: pathlib.Path, url: str) -> None:
  try:
    with gzip.open(path) as file:
      while file.read(2**20):
        pass
  except (EOFError, OSError, zlib.error) as error:
    if isinstance(error, OSError) and error.errno == errno.EIO:
      raise
    _set_aside(path, target)
    raise UserError(
      f"{url}: not a whole gzip file ({error}). It is kept as {target}.wrong and not used. Try again, or another "
      "--base_url."
    ) from error


def _set_aside(path: pathlib.Path, target: pathlib.Path) -> None:
  os.replace(path, target.with_name(f"{target.name}.wrong"))


def _digest(path: pathlib.Path, kind: str) -> str:
  with open(path, "rb") as file:
    return hashlib.file_digest(file, kind).hexdigest()
