"""ZstdFile: the bytes inside a zstd file as a stream that tells when it was cut short."""

import io
from typing import IO

# One read of this many compressed bytes is decompressed whole: 4 bytes make 128 KiB at most, so 1 KiB makes 32 MiB.
CHUNK = 2**10


class ZstdFile(io.RawIOBase):
  """Reads all frames of a zstd file, one after the other.

  The package's own reader takes the end of a file for the end of its data, also in the middle of a frame.

  Raises: EOFError if the file ends within a frame, and OSError if it is damaged or no zstd file.
  """

  def __init__(self, file: IO[bytes]):
    import zstandard

    self._file = file
    self._decompressor = zstandard.ZstdDecompressor()
    self._frame = self._decompressor.decompressobj()
    self._error = zstandard.ZstdError
    self._started = False  # the frame has got bytes
    self._waiting = memoryview(b"")

  def readable(self) -> bool:
    """Returns True."""
    return True

  def readinto(self, buffer) -> int:
    """Fills a buffer with decompressed bytes as far as there are some now; returns their number, 0 at the end."""
    while not self._waiting:
      data = self._file.read(CHUNK)
      if not data:
        if self._started:
          raise EOFError("the file ends within a zstd frame")
        return 0
      self._waiting = memoryview(self._decompressed(data))
    count = min(len(buffer), len(self._waiting))
    buffer[:count] = self._waiting[:count]
    self._waiting = self._waiting[count:]
    return count

  def _decompressed(self, data: bytes) -> bytes:
    parts = []
    while data:
      try:
        parts.append(self._frame.decompress(data))
      except self._error as error:
        raise OSError(str(error)) from error
      self._started, data = not self._frame.eof, self._frame.unused_data if self._frame.eof else b""
      if self._frame.eof:
        self._frame = self._decompressor.decompressobj()
    return b"".join(parts)
