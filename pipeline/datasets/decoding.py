"""Many image files on all cores, in a bounded amount of memory."""

import hashlib
import os
import warnings
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from pipeline.datasets.image_set import DecodedImage, UnreadableImage
from pipeline.datasets.images import UnreadableError, decode_image

# Each thread may hold one decoded image of `max_megapixels`.
_MAX_THREADS = 8


def decode_files(
    files: Iterable[tuple[str, bytes | UnreadableError]], image_size: int, *, max_megapixels: float
) -> Iterator[DecodedImage | UnreadableImage]:
    """Decode (path, content) pairs in their order; Pillow works outside Python's global lock.

    At most twice as many files as threads are in memory at a time.
    """

    def decode(path: str, content: bytes | UnreadableError) -> DecodedImage | UnreadableImage:
        try:
            if isinstance(content, UnreadableError):
                raise content
            pixels = decode_image(content, image_size, max_megapixels=max_megapixels)
        except UnreadableError as error:
            return UnreadableImage(path=path, reason=str(error))
        return DecodedImage(path=path, pixels=pixels, sha256=hashlib.sha256(content).hexdigest())

    threads = min(len(os.sched_getaffinity(0)), _MAX_THREADS)
    waiting: deque[Future[DecodedImage | UnreadableImage]] = deque()
    # Set here for all threads at once: the list of warning filters is not safe to change in them.
    with warnings.catch_warnings(), ThreadPoolExecutor(threads) as pool:
        warnings.filterwarnings("ignore", module=r"PIL\.")
        for path, content in files:
            waiting.append(pool.submit(decode, path, content))
            if len(waiting) >= 2 * threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
