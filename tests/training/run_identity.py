"""A process of its own that trains for a step on the CPU; prints, as JSON, its key and a digest of the trained bits.

Command line: CPU threads of the process.
"""

import hashlib
import json
import sys

import numpy as np
import torch
from made_up_loop import N, train_bright, weights_of
from made_up_training import ALONE, TINY

from pipeline import distributed
from pipeline.training.fingerprint import identify


def main() -> None:
    with distributed.session(threads_per_worker=int(sys.argv[1])):
        members = np.ones(N, dtype=np.bool_)
        identity = identify(TINY, members, data_digest="", device=ALONE.device, threads=torch.get_num_threads())
        weights = weights_of(train_bright(TINY))
    bits = hashlib.sha256(weights.numpy().tobytes()).hexdigest()
    print(json.dumps({"key": identity.key, "machine": identity.machine, "bits": bits}))


if __name__ == "__main__":
    main()
