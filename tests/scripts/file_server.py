"""A web server on loopback for the tests of downloads: it takes ranges, and fails as it is told to."""

import contextlib
import http.server
import pathlib
import re
import threading
from collections.abc import Iterator
from typing import Any


class FileServer(http.server.ThreadingHTTPServer):
  """Serves `files`, path -> bytes.

  ranges: whether it takes the Range header. etag: of all files. sized: whether it tells Content-Length.
  faults: what it does to the next requests, one each: a status to answer with, or ("cut", n): the body ends after n bytes,
    or ("stall", n): it stops after n bytes until the client is gone.
  seen: (path, Range, If-Range) of every request.
  """

  daemon_threads = True

  def __init__(self) -> None:
    super().__init__(("127.0.0.1", 0), Handler)
    self.files: dict[str, bytes] = {}
    self.ranges, self.sized = True, True
    self.etag: str | None = '"v1"'
    self.faults: list[Any] = []
    self.seen: list[tuple[str, str | None, str | None]] = []

  @property
  def url(self) -> str:
    return f"http://127.0.0.1:{self.server_address[1]}"

  def handle_error(self, request: Any, client_address: Any) -> None:
    del request, client_address  # a client that went away


class Handler(http.server.BaseHTTPRequestHandler):
  server: FileServer  # pyright: ignore[reportIncompatibleVariableOverride]

  def do_GET(self) -> None:
    server = self.server
    server.seen.append((self.path, self.headers["Range"], self.headers["If-Range"]))
    fault = server.faults.pop(0) if server.faults else None
    body = server.files.get(self.path)
    if body is None:
      self.send_error(404)
      return
    if isinstance(fault, int):
      self.send_error(fault)
      return
    start = self._start()
    if start >= len(body) and start:
      self.send_response(416)
      self.send_header("Content-Range", f"bytes */{len(body)}")
      self.send_header("Content-Length", "0")
      self.end_headers()
      return
    self.send_response(206 if start else 200)
    if start:
      self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
    if server.sized:
      self.send_header("Content-Length", str(len(body) - start))
    if server.etag:
      self.send_header("ETag", server.etag)
    self.end_headers()
    sent = body[start:]
    self.wfile.write(sent[: fault[1]] if fault else sent)
    if fault and fault[0] == "stall":
      self.connection.recv(1)  # returns when the client has gone

  def _start(self) -> int:
    found = re.fullmatch(r"bytes=(\d+)-", self.headers["Range"] or "")
    same = self.headers["If-Range"] in (None, self.server.etag)
    return int(found[1]) if found and self.server.ranges and same else 0

  def log_message(self, *_: Any) -> None:
    pass


@contextlib.contextmanager
def serving() -> Iterator[FileServer]:
  """Runs a server until the block ends."""
  with FileServer() as server:
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
      yield server
    finally:
      server.shutdown()
      thread.join()


def leftovers(folder: pathlib.Path) -> list[str]:
  """Returns the names of all files below a folder."""
  return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
