"""Commands, flags and manifests of README.md and docs/ exist and can be parsed; other tests show that they work."""

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from ruamel.yaml import YAML
from torch.distributed.run import get_args_parser

from pipeline.__main__ import main
from tests.fixtures.source_tree import ROOT
from tests.fixtures.training import wait_until

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
CLUSTERS = ROOT / "docs" / "guides" / "clusters.md"
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)
_MODULE = re.compile(r"python -m ([a-z_]+(?:\.[a-z_]+)*)")
# To the end of the line or of the inline code.
_COMMAND = re.compile(r"python -m pipeline ([a-z-]+)([^`\n]*)")
_TORCHRUN = re.compile(r"\btorchrun\b(.*?)\s-m\s", flags=re.DOTALL)
_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]*")


def _text(page: Path) -> str:
    """Return the text with continued lines joined."""
    return page.read_text(encoding="utf-8").replace("\\\n", " ")


def _fences(page: Path, language: str) -> list[str]:
    return [text for of, text in _FENCE.findall(page.read_text(encoding="utf-8")) if of == language]


def _help(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0, command
    return capsys.readouterr().out


# An earlier test may have imported distutils, by torch's compiler.
@pytest.mark.filterwarnings("ignore:Setuptools is replacing distutils")
def test_documented_modules_exist() -> None:
    for page in PAGES:
        for module in _MODULE.findall(_text(page)):
            assert importlib.util.find_spec(module) is not None, f"{page}: python -m {module}"


def test_documented_commands_and_flags_exist(capsys: pytest.CaptureFixture[str]) -> None:
    documented = [(page, *match) for page in PAGES for match in _COMMAND.findall(_text(page))]
    assert len(documented) > 10
    helps = {command: _help(command, capsys) for command in sorted({command for _, command, _ in documented})}
    for page, command, rest in documented:
        for flag in _FLAG.findall(rest):
            assert re.search(rf"{flag}\b", helps[command]), f"{page}: {command} has no {flag}"


def test_documented_flags_of_torchrun_exist() -> None:
    flags = {flag for action in get_args_parser()._actions for flag in action.option_strings}
    documented = [
        (page, part) for page in PAGES for _, text in _FENCE.findall(_text(page)) for part in _TORCHRUN.findall(text)
    ]
    assert {page.name for page, _ in documented} >= {"README.md", "clusters.md"}
    for page, part in documented:
        for flag in _FLAG.findall(part):
            assert flag in flags, f"{page}: torchrun has no {flag}"


def test_documented_shell_scripts_can_be_parsed(tmp_path: Path) -> None:
    if shutil.which("bash") is None:
        pytest.skip("needs bash")
    scripts = [text for page in PAGES for text in _fences(page, "bash")]
    assert any("#SBATCH" in text for text in scripts)
    for text in scripts:
        script = tmp_path / "script.sh"
        script.write_text(text)
        done = subprocess.run(["bash", "-n", script], check=False, capture_output=True, text=True)
        assert done.returncode == 0, f"{text}\n{done.stderr}"


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(("signalled", "code"), [(True, 75), (False, 3)])
def test_the_batch_script_is_requeued_after_its_ranks_saved(signalled: bool, code: int, tmp_path: Path) -> None:
    """Fake programs of Slurm replace the real ones: `srun` waits for SIGTERM, or fails with code 3."""
    (script,) = (text for text in _fences(CLUSTERS, "bash") if "#SBATCH" in text)
    fake_programs = {
        "bin/scontrol": 'echo "scontrol $*" >> said.txt\necho node7',
        "bin/srun": 'trap "sleep 0.2; echo saved >> said.txt; exit 1" TERM\necho "$*" > started.txt\n'
        + ("while :; do sleep 0.05; done" if signalled else "exit 3"),
        ".venv/bin/activate": "",
    }
    for name, body in fake_programs.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)
    slurm = {"SLURM_JOB_NODELIST": "node[7-8]", "SLURM_JOB_NUM_NODES": "2", "SLURM_GPUS_ON_NODE": "4"}
    environ = {**os.environ, **slurm, "SLURM_JOB_ID": "12", "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    job = subprocess.Popen(["bash", "-c", script, "job", "digits"], cwd=tmp_path, env=environ, text=True)
    try:
        if signalled:
            wait_until((tmp_path / "started.txt").exists, job)
            job.terminate()
        assert job.wait(timeout=30) == code
    finally:
        job.kill()
    started = (tmp_path / "started.txt").read_text()
    assert {"--nnodes=2", "--nproc-per-node=4", "--rdzv-endpoint=node7:29500"} <= set(started.split())
    assert started.endswith("-m pipeline.stages.train --study digits\n")
    lines = (tmp_path / "said.txt").read_text().splitlines()
    assert lines[1:] == (["saved", "scontrol requeue 12"] if signalled else [])


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize("page", ["headline", "law"])
def test_a_queue_of_studies_ends_with_an_error_at_one_that_fails(page: str, tmp_path: Path) -> None:
    """A fake `dvc` fails at the second study."""
    texts = _fences(ROOT / "docs" / "guides" / f"{page}.md", "")
    (queue,) = (text for text in texts if "for study in" in text)
    fakes = {"python": "exit 0", "dvc": 'echo "$*" >> studies.txt\ntest "$(wc -l < studies.txt)" -lt 2'}
    for name, body in fakes.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    environ = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", f"{queue}\nexit $?"], cwd=tmp_path, env=environ, check=False)
    assert done.returncode == 1
    assert len((tmp_path / "studies.txt").read_text().splitlines()) == 2


def test_documented_yaml_can_be_parsed() -> None:
    for page in PAGES:
        for text in _fences(page, "yaml"):
            # Items of a list are for a list that the page names.
            assert all(isinstance(tree, dict | list) for tree in YAML(typ="safe").load_all(text)), f"{page}: {text}"


def test_the_pods_of_the_job_find_the_first_of_them() -> None:
    documents = [list(YAML(typ="safe").load_all(text)) for text in _fences(CLUSTERS, "yaml")]
    ((service, job),) = (trees for trees in documents if [tree.get("kind") for tree in trees] == ["Service", "Job"])
    pods = job["spec"]["template"]["spec"]
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    assert pods["subdomain"] == service["metadata"]["name"]
    (container,) = pods["containers"]
    assert f"--rdzv-endpoint={job['metadata']['name']}-0.{pods['subdomain']}:29500" in container["args"]
    assert f"--nnodes={job['spec']['completions']}" in container["args"]
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pods["volumes"]}
