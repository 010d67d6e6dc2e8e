"""A study whose nodes join and leave while it trains ends in the bytes of an undisturbed study."""

import time
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.agents import TRAINS_WITHIN_S, Agents
from tests.fixtures.interrupted_study import StudyProject, kill_one, starts_again
from tests.fixtures.process_tree import descendants
from tests.fixtures.training import command, kill, start

STEPS = 100
"""Every second step takes four seconds while nodes join and leave: minutes in all, of which seconds suffice."""
_KEYS: dict[str, Any] = {"reduction": "exact", "study": {"seeds": [0], "budget": {"steps": STEPS}}}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> StudyProject:
    """The study on one process: exact sums give any number of processes its results."""
    study = StudyProject.write(tmp_path_factory.mktemp("undisturbed"), **_KEYS)
    study.finish()
    return study


@pytest.mark.slow
@pytest.mark.distributed
def test_nodes_join_and_leave(undisturbed: StudyProject, tmp_path: Path) -> None:
    """The job has 1, 3, 1 and 2 processes; the node with the rendezvous store stays."""
    study, slow = StudyProject.write(tmp_path / "study", workers="auto", **_KEYS), tmp_path / "slow"
    slow.touch()
    nodes = Agents(study, nnodes="1:3", slow=slow)
    try:
        for change in (+1, +2, -2, +1):
            for _ in range(abs(change)):
                nodes.join() if change > 0 else nodes.lose()
            nodes.train_together()
        assert len(nodes.running) == 2
        nodes.finish()
    finally:
        nodes.end()
    study.assert_equals(undisturbed)


@pytest.mark.slow
def test_a_lost_rank_is_started_again_by_its_agent(undisturbed: StudyProject, tmp_path: Path) -> None:
    """The store of the agent still has the keys of the first ranks."""
    study, output = StudyProject.write(tmp_path / "study", **_KEYS), tmp_path / "output.txt"
    interpreter, *rest = command("train", study.folder, ranks=2)
    agent = start([interpreter, *rest[:2], "--max-restarts=1", *rest[2:]], output=output)
    try:
        end = time.monotonic() + TRAINS_WITHIN_S
        while not study.checkpoints():
            assert time.monotonic() < end, output.read_text()
            time.sleep(0.01)
        kill_one(max(descendants(agent.pid)))
        assert agent.wait(timeout=TRAINS_WITHIN_S) == 0, output.read_text()
        study.check_no_orphans()
    finally:
        kill(agent)
    assert [count for _, count in starts_again(output.read_text())] == [2]
    study.assert_equals(undisturbed)
