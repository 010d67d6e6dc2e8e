"""Waiting threads spin for a bounded time, in every process that imports the project first."""

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import threadpoolctl
import torch  # noqa: F401 - loads its OpenMP

from tests.fixtures.projects import ROOT
from tests.fixtures.slow import quick_first

ASK = "import os, {module}; print(os.environ.get('GOMP_SPINCOUNT'), os.environ.get('OMP_WAIT_POLICY'))"

_SHOW = "print(os.environ.get('GOMP_SPINCOUNT'))"


def _seen(module: str, **own: str) -> list[str]:
    command = [sys.executable, "-c", ASK.format(module=module)]
    result = subprocess.run(command, env={**_environment(), **own}, capture_output=True, text=True, check=True)
    return result.stdout.split()


@pytest.mark.parametrize(
    "module", quick_first(1, ["pipeline", "pipeline.stages.train", "viz.app", "batchsieve.figures"])
)
def test_the_spinning_is_bounded(module: str) -> None:
    assert _seen(module) == ["1000", "None"]


@pytest.mark.parametrize("name", ["GOMP_SPINCOUNT", "OMP_WAIT_POLICY"])
def test_what_the_user_has_set_wins(name: str) -> None:
    value = {"GOMP_SPINCOUNT": "7", "OMP_WAIT_POLICY": "active"}[name]
    result = dict(zip(("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"), _seen("pipeline", **{name: value}), strict=True))
    assert result == {"GOMP_SPINCOUNT": "None", "OMP_WAIT_POLICY": "None", name: value}


def _environment() -> dict[str, str]:
    """Without what this process, or whoever started it, has set."""
    kept = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    return {**kept, "PYTHONPATH": str(ROOT)}


def _libgomp() -> bool:
    """Whether torch computes with libgomp, which alone reads the variable; others have OpenMP of LLVM or Intel."""
    return any("libgomp" in (library["filepath"] or "") for library in threadpoolctl.threadpool_info())


needs_libgomp = pytest.mark.skipif(not _libgomp(), reason="torch computes with another OpenMP than libgomp")


@needs_libgomp
@pytest.mark.slow
def test_openmp_reads_it_in_time() -> None:
    """libgomp prints the settings that it has read when it is loaded, with torch."""
    command = [sys.executable, "-c", "import pipeline.models.resnet, torch"]
    environment = {**_environment(), "OMP_DISPLAY_ENV": "verbose"}
    printed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stderr
    assert set(re.findall(r"GOMP_SPINCOUNT = '(\d+)'", printed)) == {"1000"}


@needs_libgomp
@pytest.mark.slow
@pytest.mark.distributed
def test_a_rank_of_the_users_own_torchrun_reads_it_in_time(tmp_path: Path) -> None:
    """Torchrun itself has not imported the project."""
    rank = tmp_path / "rank.py"
    rank.write_text(f"import os, pipeline.models.resnet\n{_SHOW}")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1", str(rank)]
    environment = {**_environment(), "OMP_DISPLAY_ENV": "verbose"}
    done = subprocess.run(torchrun, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1000"]
    assert done.stderr.count("GOMP_SPINCOUNT = '1000'") == 1, "the rank alone"


@pytest.mark.slow
@pytest.mark.distributed
def test_a_rank_that_the_project_launches_has_it_from_the_start(tmp_path: Path) -> None:
    (tmp_path / "of_rank.py").write_text(f"import os\n{_SHOW}")
    launch = "from pipeline import distributed; distributed.launch('of_rank', [], 1)"
    environment = {**_environment(), "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    done = subprocess.run([sys.executable, "-c", launch], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1000"]


@pytest.mark.slow
def test_a_worker_of_dask_has_it_from_the_start(tmp_path: Path) -> None:
    """As in the maps of t-SNE, whose processes Dask starts."""
    (tmp_path / "of_worker.py").write_text("import os\ndef seen(_):\n    return os.environ.get('GOMP_SPINCOUNT')\n")
    (tmp_path / "asking.py").write_text(
        "from of_worker import seen\n"
        "from pipeline.parallel import task_pool\n"
        "if __name__ == '__main__':\n"
        "    with task_pool('local', workers=1, threads=1) as run:\n"
        "        print(*run(seen, [0]))\n"
    )
    environment = {**_environment(), "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    done = subprocess.run(
        [sys.executable, str(tmp_path / "asking.py")], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["1000"]


@pytest.mark.parametrize("notebook", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_imports_the_project_before_openmp(notebook: Path) -> None:
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    first = ast.parse("".join(next(cell["source"] for cell in cells if cell["cell_type"] == "code")))
    imports = [node for node in first.body if isinstance(node, ast.Import | ast.ImportFrom)]
    modules = [
        name.split(".")[0]
        for node in imports
        for name in ([alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""])
    ]
    ours = next(index for index, module in enumerate(modules) if module in ("batchsieve", "pipeline"))
    assert not {"torch", "sklearn", "openTSNE", "faiss"}.intersection(modules[:ours])
