"""Where two settings of the filter differ."""

import numpy as np

from viz.figures.groups import Groups
from viz.figures.palette import NOISE, SERIES
from viz.rules import Verdict

NAMES = ("both keep", "only A drops", "only B drops", "both drop")


def differences(a: Verdict, b: Verdict) -> Groups:
    """Which of the two drops each of N images, human decisions included."""
    codes = (~a.keep).astype(np.uint8) + 2 * (~b.keep).astype(np.uint8)
    return Groups(codes=codes, names=NAMES, colors=(NOISE, SERIES[1], SERIES[0], SERIES[3]))
