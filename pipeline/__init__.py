"""batchsieve: choose training images by their features, and train on them at any batch size."""

import gc
import os
import sys

# OpenMP threads that wait for each other spin. With one other busy process on the machine, a training step then takes
# several times as long. A bound on the spinning changes no result. OpenMP reads the variable when torch or scikit-learn
# is first imported, so it is set here. The user's setting takes precedence.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")

# Python sets sys.argv[0] to "-m" while it locates the module of `python -m pipeline...`. What a program imports lives
# until it ends, and a sixth of the time of its start is spent searching it for garbage. `freeze_imported_objects` turns
# the collector on again.
if sys.argv[:1] == ["-m"]:
    gc.disable()
