"""Two hosts train one study as one process would, and one that is cut off costs the other no bit.

Each host is a network namespace; where none may be made, both are this machine's loopback interface.
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
from tests.fixtures.interrupted_study import Study
from tests.fixtures.projects import ROOT
from tests.fixtures.training import runs_of

pytestmark = pytest.mark.slow

Hosts = tuple[Host, Host]
STEPS = 200
_OUTAGE_S = 1.5
# Longer than an outage that goes unnoticed, and than the longest step of a busy machine.
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
    """The end of it that can be pulled."""
    if not hosts[1].prefix:
        pytest.skip("no network namespaces can be made here (`ip netns add`), so that there is no cable to cut")
    return hosts[1]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """Trained by one process on one host."""
    study = _study(tmp_path_factory.mktemp("whole"))
    study.finish()
    return study


@pytest.fixture
def study(tmp_path: Path) -> Study:
    return _study(tmp_path / "study")


def test_what_a_killed_process_left_is_removed(cable: Host) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    left = f"batchsieve-{ended.pid}-a"
    subprocess.run(["ip", "netns", "add", left], check=True)
    other = "from benchmarks.two_hosts import two_hosts\nwith two_hosts(): pass"
    subprocess.run([sys.executable, "-c", other], cwd=ROOT, check=True)
    names = {path.name for path in NAMESPACES.iterdir()}
    assert left not in names
    assert cable.prefix[-1] in names


def _study(folder: Path) -> Study:
    study = {"seeds": [0], "budget": {"steps": STEPS}}
    keys: dict[str, Any] = {"reduction": "tree", "workers": "auto", "timeout_seconds": _TIMEOUT_S, "study": study}
    return Study.write(folder, **keys)


@contextmanager
def _in_mid_run(study: Study, hosts: Hosts, slow: Path) -> Iterator[Agents]:
    """Both hosts have made a checkpoint together, and make another every second or two."""
    slow.touch()
    agents = Agents(study, nnodes="1:2", slow=slow, hosts=hosts)
    try:
        for _ in hosts:
            agents.join()
            agents.train_together()
        yield agents
    finally:
        agents.end()


def test_two_hosts_train_the_bits_of_one_process(hosts: Hosts, study: Study, whole: Study, tmp_path: Path) -> None:
    agents = Agents(study, nnodes="2", slow=tmp_path / "slow", hosts=hosts)
    try:
        agents.join()
        agents.join()
        agents.finish()
    finally:
        agents.end()
    assert [row["workers"] for row in runs_of(study.data)] == [2]
    study.assert_equals(whole)


def test_a_host_that_is_lost_leaves_the_other_to_go_on(
    hosts: Hosts, study: Study, whole: Study, tmp_path: Path
) -> None:
    """All that runs on the second is killed, together with what it had trained since the last checkpoint."""
    with _in_mid_run(study, hosts, tmp_path / "slow") as agents:
        agents.lose()
        agents.train_together()
        agents.finish()
    assert [row["workers"] for row in runs_of(study.data)] == [1]
    study.assert_equals(whole)


def test_a_cable_that_is_soon_mended_is_not_noticed(
    cable: Host, hosts: Hosts, study: Study, whole: Study, tmp_path: Path
) -> None:
    """What was sent meanwhile is sent again, and no agent starts anything again."""
    with _in_mid_run(study, hosts, tmp_path / "slow") as agents:
        started = agents.starts()
        cut(cable)
        time.sleep(_OUTAGE_S)
        reconnect(cable)
        agents.train_together()
        agents.finish()
        assert agents.starts() == started
    assert [row["workers"] for row in runs_of(study.data)] == [2]
    study.assert_equals(whole)


def test_a_host_that_falls_silent_leaves_the_other_to_go_on(
    cable: Host, hosts: Hosts, study: Study, whole: Study, tmp_path: Path
) -> None:
    """As by a loss of power: no connection ends, nothing answers any more."""
    with _in_mid_run(study, hosts, tmp_path / "slow") as agents:
        cut(cable)
        agents.lose()
        try:
            agents.train_together()
        finally:
            reconnect(cable)  # another test may need it
        agents.finish()
    assert [row["workers"] for row in runs_of(study.data)] == [1]
    study.assert_equals(whole)
