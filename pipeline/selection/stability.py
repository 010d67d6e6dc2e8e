"""How much two filters agree."""

import numpy as np
from numpy.typing import NDArray


def jaccard(left: NDArray[np.bool_], right: NDArray[np.bool_]) -> float:
    """Images in both sets (N,) over images in either, 0 to 1; 1 if both are empty.

    Two random sets that hold a share s of all images each have about s / (2 - s).
    """
    either = int((left | right).sum())
    return int((left & right).sum()) / either if either else 1.0
