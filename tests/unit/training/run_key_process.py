"""A separate process that trains for a step on the CPU; prints, as JSON, its key and a digest of the trained bits.

Command line: CPU threads of the process.
"""

import hashlib
import json
import sys

import numpy as np
import torch

from pipeline import distributed
from pipeline.training.run_key import run_key
from tests.fixtures.loop import N, train_bright, weights_of
from tests.fixtures.training import ALONE, TINY


def main() -> None:
    with distributed.join_process_group(threads_per_worker=int(sys.argv[1])):
        members = np.ones(N, dtype=np.bool_)
        key = run_key(TINY, members, data_digest="", device=ALONE.device, threads=torch.get_num_threads())
        weights = weights_of(train_bright(TINY))
    bits = hashlib.sha256(weights.numpy().tobytes()).hexdigest()
    print(json.dumps({"key": key.fingerprint, "machine": key.machine, "bits": bits}))


if __name__ == "__main__":
    main()
