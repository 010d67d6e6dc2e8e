"""Two hosts train one study in the bits of one process, and the loss of a host changes no bit.

Each host is a network namespace. Without the right to make namespaces, both are the loopback interface of this machine.
"""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from benchmarks.packet_relay import NAMESPACES
from benchmarks.two_hosts import LOOPBACK, Host, NoNamespaces, cut, reconnect, two_hosts
from tests.fixtures.agents import Agents
from tests.fixtures.interrupted_study import StudyProject
from tests.fixtures.projects import ROOT
from tests.fixtures.training import runs_of

# `ip` starts the ranks in their namespace.
pytestmark = [pytest.mark.slow, pytest.mark.distributed]

Hosts = tuple[Host, Host]
STEPS = 100
_OUTAGE_S = 1.5
# Longer than an outage that nobody notices, and longer than the longest step of a busy machine.
_TIMEOUT_S = 15


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    with ExitStack() as stack:
        try:
            both = stack.enter_context(two_hosts())
        except NoNamespaces:
            both = LOOPBACK, LOOPBACK
        yield both


@pytest.fixture
def cable(hosts: Hosts) -> Host:
    """The host whose cable a test can cut."""
    if not hosts[1].prefix:
        pytest.skip("needs the right to make network namespaces (`ip netns add`)")
    return hosts[1]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> StudyProject:
    """A study trained by one process on one host."""
    study = _study(tmp_path_factory.mktemp("undisturbed"))
    study.finish()
    return study


@pytest.fixture
def study(tmp_path: Path) -> StudyProject:
    return _study(tmp_path / "study")


def test_namespaces_of_a_killed_process_are_removed(cable: Host) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    left = f"batchsieve-{ended.pid}-a"
    subprocess.run(["ip", "netns", "add", left], check=True)
    other = "from benchmarks.two_hosts import two_hosts\nwith two_hosts(): pass"
    subprocess.run([sys.executable, "-c", other], cwd=ROOT, check=True)
    names = {path.name for path in NAMESPACES.iterdir()}
    assert left not in names
    assert cable.prefix[-1] in names


def _study(folder: Path) -> StudyProject:
    study = {"seeds": [0], "budget": {"steps": STEPS}}
    keys: dict[str, Any] = {"reduction": "exact", "workers": "auto", "timeout_seconds": _TIMEOUT_S, "study": study}
    return StudyProject.write(folder, **keys)


@contextmanager
def _in_mid_run(study: StudyProject, hosts: Hosts, slow: Path) -> Iterator[Agents]:
    """Yield agents that have written a checkpoint together, and write another one every few seconds."""
    slow.touch()
    agents = Agents(study, nnodes="1:2", slow=slow, hosts=hosts)
    try:
        for _ in hosts:
            agents.join()
            agents.train_together()
        yield agents
    finally:
        agents.end()


def test_two_hosts_give_the_bits_of_one_process(
    hosts: Hosts, study: StudyProject, undisturbed: StudyProject, tmp_path: Path
) -> None:
    agents = Agents(study, nnodes="2", slow=tmp_path / "slow", hosts=hosts)
    try:
        agents.join()
        agents.join()
        agents.finish()
    finally:
        agents.end()
    assert [row["workers"] for row in runs_of(study.data)] == [2]
    study.assert_equals(undisturbed)


def test_a_lost_host_leaves_one_that_resumes(
    hosts: Hosts, study: StudyProject, undisturbed: StudyProject, tmp_path: Path
) -> None:
    """All processes of the second host are killed; their training since the last checkpoint is lost."""
    with _in_mid_run(study, hosts, tmp_path / "slow") as agents:
        agents.lose()
        agents.train_together()
        agents.finish()
    assert [row["workers"] for row in runs_of(study.data)] == [1]
    study.assert_equals(undisturbed)


def test_a_short_outage_of_the_network_is_not_noticed(
    cable: Host, hosts: Hosts, study: StudyProject, undisturbed: StudyProject, tmp_path: Path
) -> None:
    """The network sends lost packets again, and no agent restarts a rank."""
    with _in_mid_run(study, hosts, tmp_path / "slow") as agents:
        started = agents.starts()
        cut(cable)
        time.sleep(_OUTAGE_S)
        reconnect(cable)
        agents.train_together()
        agents.finish()
        assert agents.starts() == started
    assert [row["workers"] for row in runs_of(study.data)] == [2]
    study.assert_equals(undisturbed)


def test_after_a_power_cut_of_a_host_the_other_resumes(
    cable: Host, hosts: Hosts, study: StudyProject, undisturbed: StudyProject, tmp_path: Path
) -> None:
    """No connection is closed, and the host answers no more."""
    with _in_mid_run(study, hosts, tmp_path / "slow") as agents:
        cut(cable)
        agents.lose()
        try:
            agents.train_together()
        finally:
            reconnect(cable)  # another test may need it
        agents.finish()
    assert [row["workers"] for row in runs_of(study.data)] == [1]
    study.assert_equals(undisturbed)
