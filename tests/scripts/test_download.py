"""Downloads from a server on loopback: whole, resumed, restarted, and every way in which they fail."""

import gzip
import hashlib
import pathlib
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator

import pytest
from file_server import FileServer, leftovers, serving

from retrieval_jax.data.download import Retry, fetch
from retrieval_jax.errors import UserError

BODY = bytes(range(256)) * 4000  # 1,024,000 bytes: several blocks
MD5 = hashlib.md5(BODY).hexdigest()
SHA256 = hashlib.sha256(BODY).hexdigest()
QUICK = Retry(attempts=3, pause=0.001, timeout=5.0)


@pytest.fixture
def server() -> Iterator[FileServer]:
  with serving() as running:
    running.files["/a.bin"] = BODY
    yield running


def half(target: pathlib.Path, server: FileServer) -> None:
  """Leaves the first half of the file and stops, as a killed process does."""
  server.faults = [("cut", len(BODY) // 2)]
  with pytest.raises(UserError, match=r"ended after 512,000 of 1,024,000 bytes; given up after 1 attempts"):
    fetch(f"{server.url}/a.bin", target, retry=QUICK._replace(attempts=1))
  assert leftovers(target.parent) == ["a.bin.part", "a.bin.part.json"]
  server.seen.clear()


@pytest.mark.parametrize("md5, sha256", [(MD5, ""), ("", SHA256), ("0" * 32, SHA256), ("", "")])
def test_a_whole_file(server: FileServer, tmp_path: pathlib.Path, md5: str, sha256: str):
  target = tmp_path / "deep" / "a.bin"
  assert fetch(f"{server.url}/a.bin", target, md5=md5, sha256=sha256, retry=QUICK) == target
  assert target.read_bytes() == BODY
  assert leftovers(tmp_path) == ["deep/a.bin"]
  fetch(f"{server.url}/a.bin", target, md5=md5, sha256=sha256, retry=QUICK)
  assert len(server.seen) == 1  # what is there is not downloaded again


def test_goes_on_from_half(server: FileServer, tmp_path: pathlib.Path):
  target = tmp_path / "a.bin"
  half(target, server)
  fetch(f"{server.url}/a.bin", target, md5=MD5, retry=QUICK)
  assert server.seen == [("/a.bin", "bytes=512000-", '"v1"')]
  assert target.read_bytes() == BODY
  assert leftovers(tmp_path) == ["a.bin"]


def test_a_dropped_connection_is_gone_on_with_at_once(server: FileServer, tmp_path: pathlib.Path):
  server.faults = [("cut", 300_000), ("cut", 1), 503, None]
  fetch(f"{server.url}/a.bin", tmp_path / "a.bin", md5=MD5, retry=QUICK)
  assert [asked for _, asked, _ in server.seen] == [
    None,
    "bytes=300000-",
    "bytes=300001-",
    "bytes=300001-",
  ]


def test_begins_anew_if_the_servers_file_changed(server: FileServer, tmp_path: pathlib.Path):
  target = tmp_path / "a.bin"
  half(target, server)
  server.files["/a.bin"], server.etag = BODY[::-1], '"v2"'
  fetch(f"{server.url}/a.bin", target, retry=QUICK)
  assert target.read_bytes() == BODY[::-1]


def test_begins_anew_if_the_server_takes_no_ranges(server: FileServer, tmp_path: pathlib.Path):
  target = tmp_path / "a.bin"
  half(target, server)
  server.ranges = False
  fetch(f"{server.url}/a.bin", target, md5=MD5, retry=QUICK)
  assert target.read_bytes() == BODY


@pytest.mark.parametrize("etag", [None, 'W/"v1"'])
def test_without_a_name_for_the_version_only_a_checksum_lets_it_go_on(
  server: FileServer, tmp_path: pathlib.Path, etag: str | None
):
  server.etag = etag
  target = tmp_path / "a.bin"
  half(target, server)
  fetch(f"{server.url}/a.bin", target, retry=QUICK)
  assert server.seen[-1] == ("/a.bin", None, None)
  target.unlink()
  half(target, server)
  fetch(f"{server.url}/a.bin", target, md5=MD5, retry=QUICK)
  assert server.seen[-1] == ("/a.bin", "bytes=512000-", None)


def test_a_part_that_is_whole_already(server: FileServer, tmp_path: pathlib.Path):
  target = tmp_path / "a.bin"
  half(target, server)
  (tmp_path / "a.bin.part").write_bytes(BODY)
  fetch(f"{server.url}/a.bin", target, md5=MD5, retry=QUICK)
  assert target.read_bytes() == BODY


def test_a_part_that_is_longer_than_the_file(server: FileServer, tmp_path: pathlib.Path):
  target = tmp_path / "a.bin"
  half(target, server)
  (tmp_path / "a.bin.part").write_bytes(BODY + b"x")
  fetch(f"{server.url}/a.bin", target, md5=MD5, retry=QUICK)
  assert target.read_bytes() == BODY


def test_a_part_of_another_address_is_not_gone_on_with(server: FileServer, tmp_path: pathlib.Path):
  half(tmp_path / "a.bin", server)
  server.files["/b.bin"] = BODY[::-1]
  fetch(f"{server.url}/b.bin", tmp_path / "a.bin", retry=QUICK)
  assert (tmp_path / "a.bin").read_bytes() == BODY[::-1]


def test_a_wrong_checksum_is_told_and_the_file_not_used(server: FileServer, tmp_path: pathlib.Path):
  target = tmp_path / "a.bin"
  with pytest.raises(UserError, match=f"has the md5 {MD5}, expected {'0' * 32}.*kept as .*a.bin.wrong"):
    fetch(f"{server.url}/a.bin", target, md5="0" * 32, retry=QUICK)
  assert leftovers(tmp_path) == ["a.bin.wrong"]
  fetch(f"{server.url}/a.bin", target, md5=MD5, retry=QUICK)  # and it does not stand in the way
  assert target.read_bytes() == BODY


def test_a_file_that_is_there_with_another_checksum(
  server: FileServer, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
):
  target = tmp_path / "a.bin"
  target.write_bytes(b"mine")
  fetch(f"{server.url}/a.bin", target, md5=MD5, retry=QUICK)
  assert (target.read_bytes(), (tmp_path / "a.bin.wrong").read_bytes()) == (BODY, b"mine")
  assert "a.bin had another md5" in caplog.text


def test_a_body_that_is_always_cut(server: FileServer, tmp_path: pathlib.Path):
  server.ranges = False
  server.faults = [("cut", 1000)] * 9
  with pytest.raises(UserError, match="ended after 1,000 of 1,024,000 bytes; given up after 3 attempts"):
    fetch(f"{server.url}/a.bin", tmp_path / "a.bin", md5=MD5, retry=QUICK)
  assert not (tmp_path / "a.bin").exists()
  assert len(server.seen) == 3


def test_a_cut_body_without_a_length_is_found_by_size_or_checksum(server: FileServer, tmp_path: pathlib.Path):
  server.sized = False
  server.faults = [("cut", 1000)]
  with pytest.raises(UserError, match="expected"):
    fetch(f"{server.url}/a.bin", tmp_path / "a.bin", md5=MD5, retry=QUICK)
  server.faults = [("cut", 1000)]
  fetch(f"{server.url}/a.bin", tmp_path / "b.bin", size=len(BODY), retry=QUICK)
  assert (tmp_path / "b.bin").read_bytes() == BODY


def test_a_gzip_file_without_a_checksum_is_checked_by_its_own(server: FileServer, tmp_path: pathlib.Path):
  server.files |= {
    "/good.gz": gzip.compress(BODY),
    "/bad.gz": gzip.compress(BODY)[:-9],
    "/page.gz": b"<html>",
  }
  fetch(f"{server.url}/good.gz", tmp_path / "good.gz", retry=QUICK)
  for name in ("bad.gz", "page.gz"):
    with pytest.raises(UserError, match=f"{name}: not a whole gzip file"):
      fetch(f"{server.url}/{name}", tmp_path / name, retry=QUICK)
  assert leftovers(tmp_path) == ["bad.gz.wrong", "good.gz", "page.gz.wrong"]


def test_errors_of_the_server_pass(server: FileServer, tmp_path: pathlib.Path):
  server.faults = [503, 500]
  fetch(f"{server.url}/a.bin", tmp_path / "a.bin", md5=MD5, retry=QUICK)
  assert len(server.seen) == 3


def test_a_file_that_is_not_there_is_not_asked_for_again(server: FileServer, tmp_path: pathlib.Path):
  with pytest.raises(
    UserError, match=r"/none: the server answers 404 Not Found.*can be put at .*none by hand"
  ):
    fetch(f"{server.url}/none", tmp_path / "none", md5=MD5, retry=QUICK)
  assert len(server.seen) == 1
  assert leftovers(tmp_path) == []


def test_no_network(tmp_path: pathlib.Path):
  with socket.socket() as closed:
    closed.bind(("127.0.0.1", 0))  # and does not listen
    port = closed.getsockname()[1]
    with pytest.raises(
      UserError, match=r"refused.*given up after 3 attempts with 0 bytes\. Check the network"
    ):
      fetch(f"http://127.0.0.1:{port}/a.bin", tmp_path / "a.bin", retry=QUICK)
  assert leftovers(tmp_path) == []


@pytest.mark.parametrize("url", ["file:///etc/hostname", "/etc/hostname", "ftp://a/b"])
def test_other_addresses(url: str, tmp_path: pathlib.Path):
  with pytest.raises(UserError, match="expected an address that begins with http"):
    fetch(url, tmp_path / "a")


def test_a_disk_without_room(server: FileServer, tmp_path: pathlib.Path):
  """The system refuses to let the file grow beyond 100,000 bytes."""
  script = f"""
    import pathlib, resource, signal
    from retrieval_jax.data.download import fetch
    from retrieval_jax.errors import UserError
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    try:
      fetch({server.url + "/a.bin"!r}, pathlib.Path({str(tmp_path / "a.bin")!r}))
    except UserError as error:
      print(error)
  """
  run = subprocess.run(
    [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=False
  )
  assert "a.bin.part: cannot be written ([Errno 27] File too large). Make room" in run.stdout, run.stderr
  assert (tmp_path / "a.bin.part").stat().st_size == 100_000
  server.seen.clear()
  fetch(f"{server.url}/a.bin", tmp_path / "a.bin", md5=MD5, retry=QUICK)
  assert server.seen == [("/a.bin", "bytes=100000-", '"v1"')]


def test_a_killed_process_is_gone_on_with(server: FileServer, tmp_path: pathlib.Path):
  server.faults = [("stall", 600_000)]
  target = tmp_path / "a.bin"
  script = f"""
    import pathlib
    from retrieval_jax.data.download import fetch
    fetch({server.url + "/a.bin"!r}, pathlib.Path({str(target)!r}))
  """
  process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)])
  part = tmp_path / "a.bin.part"
  while not (part.exists() and part.stat().st_size >= 2**18):
    assert process.poll() is None
    time.sleep(0.01)
  process.kill()
  process.wait()
  assert not target.exists()
  size = part.stat().st_size
  fetch(f"{server.url}/a.bin", target, md5=MD5, retry=QUICK)
  assert server.seen[-1] == ("/a.bin", f"bytes={size}-", '"v1"')
  assert leftovers(tmp_path) == ["a.bin"]


def test_two_processes_do_not_write_to_one_file(server: FileServer, tmp_path: pathlib.Path):
  import fcntl

  with open(tmp_path / "a.bin.part", "ab") as other:
    fcntl.flock(other, fcntl.LOCK_EX)
    with pytest.raises(UserError, match="another process is downloading this file"):
      fetch(f"{server.url}/a.bin", tmp_path / "a.bin", retry=QUICK)
