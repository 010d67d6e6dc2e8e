"""A study whose nodes come and go while it trains ends in the bytes of one that nothing happened to."""

import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from interrupted_study import HOOKS, Study, kill_one, starts_again
from made_up_training import arguments, command, descendants, kill, start

NODES = 4
STEPS = 400
"""At a second for every second one while nodes come and go: minutes, of which seconds are needed."""
_TRAINS_WITHIN_S = 120


class Nodes:
    """Agents of one torchrun job, each as on a machine of its own, with one process."""

    def __init__(self, study: Study, slow: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port: int = free.getsockname()[1]
        self._study, self._slow, self._output = study, slow, study.folder / "nodes.txt"
        self.running: list[subprocess.Popen[str]] = []

    def join(self) -> None:
        """The first one hosts the store by which nodes find each other."""
        job = {
            "--nnodes": f"1:{NODES}",
            "--nproc-per-node": "1",
            "--max-restarts": "10",
            "--rdzv-backend": "c10d",
            "--rdzv-endpoint": f"127.0.0.1:{self._port}",
            "--rdzv-id": "elastic",
            "--rdzv-conf": "last_call_timeout=3,keep_alive_interval=1",
        }
        options = [f"{name}={value}" for name, value in job.items()]
        stage = ["-m", "pipeline.stages.train", *arguments("train", self._study.folder)]
        environ = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "PYTHONPATH": str(HOOKS), "SLOW": str(self._slow)}
        agent = [sys.executable, "-m", "torch.distributed.run", *options, *stage]
        self.running.append(start(agent, environ=environ, output=self._output))

    def lose(self) -> None:
        """SIGKILL the newest."""
        node = self.running.pop()
        kill_one(node.pid)
        node.wait()

    def train_together(self) -> None:
        """Wait until all that run have made a checkpoint together."""
        end = time.monotonic() + _TRAINS_WITHIN_S
        while not self._together():
            assert time.monotonic() < end, self.said()
            assert all(node.poll() is None for node in self.running), self.said()
            time.sleep(0.1)

    def _together(self) -> bool:
        log = self._study.work.log("train@tiny")
        step, count = ([(0, 1)] + (starts_again(log.read_text()) if log.exists() else []))[-1]
        return count == len(self.running) and self._study.checkpoints()[-1:] > [step]

    def said(self) -> str:
        return self._output.read_text()


@pytest.mark.slow
def test_nodes_come_and_go(tmp_path: Path) -> None:
    """Processes: 1, 4, 2, 1, 4. The node that hosts the store stays."""
    keys: dict[str, Any] = {"reduction": "tree", "workers": "auto", "study": {"seeds": [0], "budget": {"steps": STEPS}}}
    whole = Study.write(tmp_path / "whole", **keys)
    whole.finish()
    study, slow = Study.write(tmp_path / "study", **keys), tmp_path / "slow"
    slow.touch()
    nodes = Nodes(study, slow)
    try:
        for change in (+1, +3, -2, -1, +3):
            for _ in range(abs(change)):
                nodes.join() if change > 0 else nodes.lose()
            nodes.train_together()
        slow.unlink()
        assert [node.wait(timeout=_TRAINS_WITHIN_S) for node in nodes.running] == [0] * NODES, nodes.said()
        study.check_no_orphans()
    finally:
        for node in nodes.running:
            kill(node)
    _assert_equal(study, whole)


@pytest.mark.slow
def test_a_lost_rank_is_started_again_by_its_agent(tmp_path: Path) -> None:
    """The agent's store still has what the first ranks left there."""
    keys: dict[str, Any] = {"reduction": "tree", "study": {"seeds": [0], "budget": {"steps": STEPS}}}
    whole = Study.write(tmp_path / "whole", **keys)
    whole.finish()
    study, output = Study.write(tmp_path / "study", **keys), tmp_path / "output.txt"
    interpreter, *rest = command("train", study.folder, ranks=2)
    agent = start([interpreter, *rest[:2], "--max-restarts=1", *rest[2:]], output=output)
    try:
        end = time.monotonic() + _TRAINS_WITHIN_S
        while not study.checkpoints():
            assert time.monotonic() < end, output.read_text()
            time.sleep(0.01)
        kill_one(max(descendants(agent.pid)))
        assert agent.wait(timeout=_TRAINS_WITHIN_S) == 0, output.read_text()
        study.check_no_orphans()
    finally:
        kill(agent)
    assert [count for _, count in starts_again(output.read_text())] == [2]
    _assert_equal(study, whole)


def _assert_equal(study: Study, whole: Study) -> None:
    found, expected = study.outcome(), whole.outcome()
    assert found["losses"] == pytest.approx(expected["losses"], rel=1e-6, abs=0)
    for part in ("cells", "ledger", "correct", "history", "best"):
        assert found[part] == expected[part], part
