"""Agents of one torchrun job, each as on a machine of its own, that train a study which may be interrupted."""

import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from interrupted_study import HOOKS, Study, kill_one, starts_again
from made_up_training import arguments, kill, start

from benchmarks.two_hosts import LOOPBACK, Host

TRAINS_WITHIN_S = 300


class Agents:
    """One process each; they are started in turn on `hosts`, the first of which has the store they meet by."""

    def __init__(self, study: Study, *, nnodes: str, slow: Path, hosts: Sequence[Host] = (LOOPBACK,)) -> None:
        """While the file `slow` is there, each checkpoint takes a second."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._endpoint = f"{hosts[0].address}:{free.getsockname()[1]}"
        self._study, self._nnodes, self._slow, self._hosts = study, nnodes, slow, hosts
        self._output = study.folder / "agents.txt"
        self.running: list[subprocess.Popen[str]] = []

    def join(self) -> None:
        """Start another."""
        host, is_first = self._hosts[len(self.running) % len(self._hosts)], not self.running
        job = {
            "--nnodes": self._nnodes,
            "--nproc-per-node": "1",
            "--max-restarts": "10",
            "--rdzv-backend": "c10d",
            "--rdzv-endpoint": self._endpoint,
            "--rdzv-id": "elastic",
            # Said, since the address of a namespace is not that of the machine's name.
            "--rdzv-conf": f"last_call_timeout=3,keep_alive_interval=1,is_host={int(is_first)}",
            "--local-addr": host.address,
        }
        options = [f"{name}={value}" for name, value in job.items()]
        stage = ["-m", "pipeline.stages.train", *arguments("train", self._study.folder)]
        environ = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "PYTHONPATH": str(HOOKS), "SLOW": str(self._slow)}
        agent = [*host.prefix, sys.executable, "-m", "torch.distributed.run", *options, *stage]
        self.running.append(start(agent, environ={**environ, **host.environ}, output=self._output))

    def lose(self) -> None:
        """SIGKILL the newest."""
        agent = self.running.pop()
        kill_one(agent.pid)
        agent.wait()

    def train_together(self) -> None:
        """Wait until all that run have made a checkpoint together, from now on."""
        end, newest = time.monotonic() + TRAINS_WITHIN_S, self._study.checkpoints()[-1:]
        while not self._together(newest):
            assert time.monotonic() < end, self.said()
            assert all(agent.poll() is None for agent in self.running), self.said()
            time.sleep(0.1)

    def _together(self, newest: list[int]) -> bool:
        step, count = [(0, 1), *self.starts()][-1]
        return count == len(self.running) and self._study.checkpoints()[-1:] > max(newest, [step])

    def starts(self) -> list[tuple[int, int]]:
        """From which step and on how many processes, each time that they began again."""
        log = self._study.work.log("train@tiny")
        return starts_again(log.read_text()) if log.exists() else []

    def finish(self) -> None:
        """Let checkpoints take no longer than they do; all end well, and nothing of theirs is left."""
        self._slow.unlink(missing_ok=True)
        codes = [agent.wait(timeout=TRAINS_WITHIN_S) for agent in self.running]
        assert codes == [0] * len(self.running), self.said()
        self._study.check_no_orphans()

    def said(self) -> str:
        """What all of them printed."""
        return self._output.read_text()

    def end(self) -> None:
        """Whatever they do."""
        for agent in self.running:
            kill(agent)
