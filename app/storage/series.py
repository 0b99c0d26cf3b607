"""One metric of one run as a blob: float64, byte-shuffled, zstd.

Shuffling puts the like bytes of neighbouring values together, so that exponents and high mantissa bytes compress.
10 metrics x 1,000 iterations are read in 0.2 ms this way and take 58 kB; as SQL rows it is 43 ms.
"""

from collections.abc import Iterable, Iterator

import numpy as np
import zstandard

from app.domain.run import FloatArray

_LEVEL = 3


def pack(values: FloatArray) -> bytes:
    """The blob of a column; NaN is kept as it is."""
    shuffled = np.ascontiguousarray(np.asarray(values, dtype="<f8")).view(np.uint8).reshape(-1, 8).T
    return zstandard.ZstdCompressor(level=_LEVEL).compress(np.ascontiguousarray(shuffled).tobytes())


def unpack(blob: bytes) -> FloatArray:
    """The column of a blob that `pack` made."""
    return next(unpack_all([blob]))


def unpack_all(blobs: Iterable[bytes]) -> Iterator[FloatArray]:
    """Of many: to make what decompresses them takes longer than to use it."""
    decompressor = zstandard.ZstdDecompressor()
    return (_unshuffled(decompressor.decompress(blob)) for blob in blobs)


def _unshuffled(text: bytes) -> FloatArray:
    shuffled = np.frombuffer(text, dtype=np.uint8)
    return np.ascontiguousarray(shuffled.reshape(8, -1).T).view("<f8").reshape(-1).astype(np.float64)
