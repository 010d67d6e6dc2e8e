"""Each fault of an installation gives a finding with its fix."""

import os
import subprocess
import sys
import tomllib
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from pipeline.commands.code_digests import project_dvc_yaml
from pipeline.commands.doctor import command as doctor
from pipeline.commands.doctor import packages
from pipeline.commands.doctor.command import Gpus, format_finding
from pipeline.environment import MINIMUM_PYTHON
from tests.fixtures.golden import check_golden
from tests.fixtures.printed_errors import printed_error

_ROOT = Path(__file__).parents[3]


def _doctor(**environment: str) -> subprocess.CompletedProcess[str]:
    """Run as a person would, in this environment with its bin folder first on PATH."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        [sys.executable, "-m", "pipeline", "doctor"],
        cwd=_ROOT,
        env={**os.environ, "PATH": path, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def _statuses(stdout: str) -> dict[str, str]:
    """Subject -> status, of all findings but the repairs below them and the last line, which counts them."""
    rows = [line.split()[:2] for line in stdout.splitlines()[:-1] if not line.startswith(" ")]
    return {subject: status for status, subject in rows}


@pytest.mark.slow
def test_sound_installation_has_no_problems() -> None:
    answer = _doctor()
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "problem" not in _statuses(answer.stdout).values()


@pytest.mark.slow
def test_torchvision_of_another_source_is_recognized(tmp_path: Path) -> None:
    """The import error that a CPU-only torch with the package index's torchvision gives."""
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").write_text(
        "raise RuntimeError('operator torchvision::nms does not exist')\n"
    )
    (tmp_path / "plotly.py").write_text("import os; os._exit(3)\n")
    answer = _doctor(PYTHONPATH=str(tmp_path))
    assert answer.returncode == 2
    result = {subject for subject, status in _statuses(answer.stdout).items() if status == "problem"}
    assert result == {"torchvision", "timm", "plotly"}  # timm imports torchvision
    assert answer.stderr == ""


def test_outside_the_project_it_says_where_to_go(tmp_path: Path) -> None:
    answer = subprocess.run(
        [sys.executable, "-m", "pipeline", "doctor"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert answer.returncode == 2
    assert printed_error(answer.stderr).key == str(tmp_path)
    assert answer.stderr.endswith("cd to the project's folder, or start one: batchsieve init\n")


@pytest.mark.subprocess
def test_a_project_outside_a_clone_needs_no_files_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "dvc.yaml").write_text(project_dvc_yaml((_ROOT / "dvc.yaml").read_text()))
    # Of another package, which a user may have there.
    (project / "pyproject.toml").write_text("[project]\nname = 'mine'\n")
    (tmp_path / ".dvc").mkdir()
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    monkeypatch.chdir(project)
    # Seconds each.
    monkeypatch.setattr(packages, "import_errors", lambda _: {})
    monkeypatch.setattr(doctor, "_probe_torch", lambda: None)
    code = doctor.main([])
    statuses = _statuses(capsys.readouterr().out)
    assert not {"pipeline", "lock"} & set(statuses)
    assert [statuses[subject] for subject in ("Python", "imports", "git", "dvc", "data")] == ["ok"] * 5
    assert code == (2 if "problem" in statuses.values() else 0)


def test_in_a_project_the_requirements_are_those_of_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    declared = [f'{line}; extra == "{extra}"' for extra, lines in extras.items() for line in lines]
    lines = {"batchsieve": [*project["dependencies"], *declared]}
    monkeypatch.setattr(metadata, "requires", lines.__getitem__)
    of_clone = packages.read_requirements(_ROOT / "pyproject.toml")
    assert packages.installed_requirements() == {group: of_clone[group] for group in ("pipeline", "stages", "viz")}


def test_code_that_is_not_installed_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "_PACKAGE", "no-such-distribution")
    (finding,) = packages.check_packages(tmp_path)
    assert (finding.status, finding.repair) == ("problem", doctor.INSTALL_PACKAGE)


# Python and the package itself


def test_old_python() -> None:
    assert doctor.check_python_version((3, 10, 14)).status == "problem"
    assert doctor.check_python_version((3, 11, 0)).status == "ok"
    assert doctor.check_python_version((4, 0, 0)).status == "ok"


def test_minimum_is_that_of_pyproject() -> None:
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == f">={'.'.join(map(str, MINIMUM_PYTHON))}"


def test_another_checkout(tmp_path: Path) -> None:
    assert doctor.check_checkout(tmp_path / "pipeline", tmp_path).status == "ok"
    other = doctor.check_checkout(Path("/elsewhere/pipeline"), tmp_path)
    assert (other.status, other.repair) == ("problem", "pip install --no-deps -e .")
    assert other.detail.endswith("/elsewhere/pipeline")
    assert doctor.check_checkout(None, tmp_path).status == "problem"


def test_python_on_path() -> None:
    assert doctor.check_python_on_path("/venv", "/venv").status == "ok"
    assert doctor.check_python_on_path("/usr", "/venv").status == "warning"
    assert doctor.check_python_on_path(None, "/venv").status == "warning"


# Packages


@pytest.mark.parametrize(
    ("installed", "group", "status"),
    [
        ("2.10.0", "pipeline", "ok"),
        ("2.15.1+cpu", "pipeline", "ok"),
        ("3.0.0a1", "pipeline", "ok"),
        ("2.9.1", "pipeline", "problem"),
        ("2.9.1", "dev", "warning"),
        (None, "stages", "problem"),
        (None, "dev", "warning"),
    ],
)
def test_bounds(installed: str | None, group: str, status: str) -> None:
    finding = packages.check_package_version(Requirement("torch>=2.10"), installed, group, install=doctor.INSTALL)
    assert finding.status == status
    assert bool(finding.repair) == (status != "ok")


def test_lock_reads_the_line_for_this_python(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text(
        "# a comment\n"
        "numpy==2.4.6 ; python_full_version < '3.0'\n"
        "numpy==2.5.5 ; python_full_version >= '3.0'\n"
        "    # via scipy\n"
        "ruamel-yaml==0.18.10\n"
    )
    assert packages.read_lock(tmp_path / "lock") == {"numpy": "2.5.5", "ruamel-yaml": "0.18.10"}


def test_lock_differences_are_listed_once() -> None:
    locked = {"numpy": "2.5.5", "ruamel-yaml": "0.18.10", "torch": "2.15.0"}
    assert packages.check_locked_versions({"ruamel.yaml": "0.18.10", "torch": "2.15.0+cpu"}, locked).status == "ok"
    assert packages.check_locked_versions({"numpy": None}, locked).status == "ok"
    finding = packages.check_locked_versions({"numpy": "2.4.6", "tqdm": "4.67"}, locked)
    assert finding.status == "warning"
    assert finding.detail.endswith("numpy 2.4.6 (lock: 2.5.5), tqdm 4.67 (lock: none)")


def test_torchvision_for_another_torch() -> None:
    requires = [Requirement("numpy"), Requirement("torch==2.15.0")]
    assert not list(packages.check_torch_pair("2.15.0+cpu", requires))
    assert not list(packages.check_torch_pair(None, requires))
    (finding,) = packages.check_torch_pair("2.14.0", requires)
    assert (finding.subject, finding.status) == ("torchvision", "problem")


@pytest.mark.subprocess
def test_import_errors_are_one_line_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "loud.py").write_text("print('hello'); raise ImportError('first\\nsecond')\n")
    (tmp_path / "warns.py").write_text("import warnings; warnings.warn('old')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    errors = packages.import_errors(["json", "loud", "warns", "no_such_module"])
    assert errors == {
        "loud": "ImportError: first second",
        "no_such_module": "ModuleNotFoundError: No module named 'no_such_module'",
    }


def test_every_requirement_of_the_stages_has_a_module_that_exists() -> None:
    groups = packages.read_requirements(_ROOT / "pyproject.toml")
    assert set(groups) == {"pipeline", "stages", "viz", "notebooks", "cleanlab", "tuning", "docs", "dev"}
    wanted = [*groups["pipeline"], *groups["stages"], *groups["viz"]]
    modules = [packages.import_name(requirement) for requirement in wanted]
    assert {"PIL", "sklearn", "ruamel.yaml", "openTSNE", "dash"} <= set(modules)
    assert [module for module in modules if find_spec(module) is None] == []


# git and DVC


def test_git_and_dvc() -> None:
    assert doctor.check_git("git version 2.39.5", repository=True).detail == "2.39.5"
    assert doctor.check_git("git version 2.39.5", repository=False).status == "problem"
    assert doctor.check_git(None, repository=False).status == "problem"
    assert doctor.check_dvc("3.67.1", initialized=True, install=doctor.INSTALL).status == "ok"
    assert doctor.check_dvc(None, initialized=True, install=doctor.INSTALL).status == "problem"
    assert doctor.check_dvc("3.67.1", initialized=False, install=doctor.INSTALL).status == "problem"


# The machine


def test_cores_within_a_container(tmp_path: Path) -> None:
    limit = tmp_path / "cpu.max"
    limit.write_text("150000 100000\n")
    assert doctor.cpu_quota(limit) == 1.5
    limit.write_text("max 100000\n")
    assert doctor.cpu_quota(limit) is None
    assert doctor.cpu_quota(tmp_path / "missing") is None
    assert doctor.check_cores(8, None).status == "ok"
    assert doctor.check_cores(2, 2.0).status == "ok"
    finding = doctor.check_cores(64, 1.5)
    assert finding.status == "warning"
    assert finding.repair.startswith("set threads_per_worker: 1 ")


@pytest.mark.parametrize(
    ("names", "cuda", "nccl", "driver", "status"),
    [
        ((), None, False, False, "ok"),
        ((), "13.0", True, False, "ok"),
        (("A",), "13.0", False, True, "ok"),
        (("A", "A"), "13.0", True, True, "ok"),
        (("A", "A"), "13.0", False, True, "problem"),
        ((), None, False, True, "problem"),
        ((), "13.0", True, True, "problem"),
    ],
)
def test_gpus(names: tuple[str, ...], cuda: str | None, nccl: bool, driver: bool, status: str) -> None:
    finding = doctor.check_gpus(Gpus(names=names, cuda=cuda, nccl=nccl), driver=driver)
    assert finding.status == status


def test_shared_memory_matters_to_several_gpus_only() -> None:
    assert doctor.check_shared_memory(64e6, gpus=0).status == "ok"
    assert doctor.check_shared_memory(64e6, gpus=2).status == "warning"
    assert doctor.check_shared_memory(None, gpus=2).status == "warning"
    assert doctor.check_shared_memory(8e9, gpus=2).status == "ok"


def test_disk() -> None:
    assert [doctor.check_disk(free).status for free in (0.5e9, 5e9, 50e9)] == ["problem", "warning", "ok"]


def test_writable(tmp_path: Path) -> None:
    assert doctor.check_writable(tmp_path / "data").status == "ok"
    assert list((tmp_path / "data").iterdir()) == []
    (tmp_path / "file").write_text("")
    assert doctor.check_writable(tmp_path / "file").status == "problem"
    # Nobody makes files there, root included.
    assert doctor.check_writable(Path("/proc/self/fd")).status == "problem"


# The text


def test_doctor_prints_findings_with_repairs() -> None:
    """Every finding, for a made-up installation and machine."""
    torch = Requirement("torch>=2.10")
    pinned = [Requirement("torch==2.15.0")]
    locked = {"numpy": "2.5.5", "torch": "2.15.0"}
    findings = [
        doctor.check_python_version((3, 12, 1)),
        doctor.check_python_version((3, 10, 14)),
        doctor.check_checkout(Path("/project/pipeline"), Path("/project")),
        doctor.check_checkout(Path("/elsewhere/pipeline"), Path("/project")),
        doctor.check_checkout(None, Path("/project")),
        doctor.check_python_on_path("/venv", "/venv"),
        doctor.check_python_on_path("/usr", "/venv"),
        doctor.check_python_on_path(None, "/venv"),
        packages.check_package_version(torch, "2.15.1+cpu", "pipeline", install=doctor.INSTALL),
        packages.check_package_version(torch, "2.9.1", "pipeline", install=doctor.INSTALL),
        packages.check_package_version(torch, None, "dev", install=doctor.INSTALL),
        packages.check_locked_versions({"numpy": "2.5.5"}, locked),
        packages.check_locked_versions({"numpy": "2.4.6", "torch": "2.15.0+cpu", "tqdm": "4.67"}, locked),
        *packages.check_torch_pair("2.14.0", pinned),
        packages.import_finding("torchvision", "RuntimeError: operator torchvision::nms does not exist"),
        packages.import_finding("torch", "ImportError: libtorch.so"),
        packages.import_finding("plotly", "ends Python with code 3"),
        doctor.check_git("git version 2.39.5", repository=True),
        doctor.check_git("git version 2.39.5", repository=False),
        doctor.check_git(None, repository=False),
        doctor.check_dvc("3.67.1", initialized=True, install=doctor.INSTALL),
        doctor.check_dvc("3.67.1", initialized=False, install=doctor.INSTALL),
        doctor.check_dvc(None, initialized=True, install=doctor.INSTALL),
        doctor.check_cores(8, None),
        doctor.check_cores(64, 1.5),
        doctor.check_gpus(Gpus(names=(), cuda=None, nccl=False), driver=False),
        doctor.check_gpus(Gpus(names=("A", "A"), cuda="13.0", nccl=True), driver=True),
        doctor.check_gpus(Gpus(names=("A", "A"), cuda="13.0", nccl=False), driver=True),
        doctor.check_gpus(Gpus(names=(), cuda=None, nccl=False), driver=True),
        doctor.check_gpus(Gpus(names=(), cuda="13.0", nccl=True), driver=True),
        doctor.check_shared_memory(8e9, gpus=2),
        doctor.check_shared_memory(64e6, gpus=2),
        doctor.check_shared_memory(None, gpus=2),
        doctor.check_disk(50e9),
        doctor.check_disk(5e9),
        doctor.check_disk(0.5e9),
    ]
    check_golden("doctor.txt", "".join(f"{format_finding(finding)}\n" for finding in findings))
