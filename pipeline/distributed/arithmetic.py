"""How a GPU rounds products and convolutions of float32."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def float32_arithmetic(*, tf32: bool) -> Iterator[None]:
    """While active: IEEE single precision, or TF32 with its 10 bits of mantissa; and the same bits every time.

    torch's own default is TF32 for convolutions, and kernels whose bits differ from call to call. `session()` chooses
    IEEE for all that is computed in it; only the training loop, whose recipe may ask for TF32, chooses again.
    """
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    # The newer `fp32_precision` makes torch's own readers of these flags raise.
    before = matmul.allow_tf32, cudnn.allow_tf32, cudnn.deterministic
    matmul.allow_tf32 = cudnn.allow_tf32 = tf32
    cudnn.deterministic = True
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32, cudnn.deterministic = before
