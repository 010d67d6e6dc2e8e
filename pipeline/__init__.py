"""batchsieve: choose training images by their features, and train on them at any batch size."""

from __future__ import annotations

import gc
import os
import re
import sys
from pathlib import Path


def has_avx2() -> bool:
    """Return whether Linux lists AVX2 and FMA among the processor's instructions."""
    try:
        flags = Path("/proc/cpuinfo").read_text(errors="replace").partition("\nflags")[2].partition("\n")[0].split()
    except OSError:
        return False
    return {"avx2", "fma"} <= set(flags)


# OpenMP threads that wait for each other spin. With one other busy process on the machine, a training step then takes
# several times as long. A bound on the spinning changes no result. OpenMP reads the variable when torch or scikit-learn
# is first imported, so it is set here. The user's setting takes precedence.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")

# OpenBLAS, which NumPy and SciPy include, chooses its kernels by the processor, and they round differently: PCA, t-SNE
# and what the filter drops would differ from one processor with AVX2 to the next. See docs/decisions/openblas.md.
if "OPENBLAS_CORETYPE" not in os.environ and has_avx2():
    os.environ["OPENBLAS_CORETYPE"] = "Haswell"

# What a program imports lives until it ends, and searching it for garbage is a sixth of the time of its start.
# `freeze_imported_objects` turns the collector on again. Python sets sys.argv[0] to "-m" while it locates a module.
if sys.argv[:1] == ["-m"] and re.search(r" -m pipeline\b", " ".join(getattr(sys, "orig_argv", []))):
    gc.disable()
