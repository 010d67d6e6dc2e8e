"""A process that imports torch and computes nothing itself: forks of it train for a step on the CPU.

Each line of standard input is a list of CPU threads, environment variables and network in JSON. The answer is a line
with the key, the machine and a digest of the trained bits, empty if the fork failed. torch, oneDNN and MKL read their
variables at the first computation.
"""

import hashlib
import importlib
import json
import os
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from pipeline import distributed
from pipeline.training.run_key import run_key, training_code_digest
from tests.fixtures.loop import N, train_bright, weights_of
from tests.fixtures.training import ALONE, TINY


def main() -> None:
    importlib.import_module("torchvision")  # which networks import late
    training_code_digest()
    for line in sys.stdin:
        threads, variables, network = json.loads(line)
        if os.fork() == 0:
            os.environ.update(variables)
            print(json.dumps(trained(threads, network)), flush=True)
            os._exit(0)
        _, status = os.wait()
        if status:
            print("{}", flush=True)


def trained(threads: int, network: str) -> dict[str, Any]:
    settings = replace(TINY, network=network)
    with distributed.join_process_group(threads_per_worker=threads):
        members = np.ones(N, dtype=np.bool_)
        key = run_key(settings, members, data_digest="", device=ALONE.device, threads=torch.get_num_threads())
        weights = weights_of(train_bright(settings))
    bits = hashlib.sha256(weights.numpy().tobytes()).hexdigest()
    return {"key": key.fingerprint, "machine": key.machine, "bits": bits}


if __name__ == "__main__":
    main()
