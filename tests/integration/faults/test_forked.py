"""Processes that tests fork behave as those that `python -m` starts."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.fixtures.forked import run_forked, start_forked
from tests.fixtures.process_tree import alive
from tests.fixtures.projects import ROOT

_SHOWN = """
import gc, json, os, signal, sys
shown = {
    "name": __name__, "argv": sys.argv[1:], "orig_argv": sys.orig_argv[1:], "cwd": os.getcwd(),
    "environ": dict(os.environ), "session": os.getsid(0) == os.getpid() == os.getpgid(0), "dvc": os.getppid(),
    "sigterm": signal.getsignal(signal.SIGTERM) == signal.SIG_DFL,
    "sigint": signal.getsignal(signal.SIGINT) == signal.default_int_handler,
    "imported": "torch" in sys.modules, "collects": gc.isenabled(),
    "shown": open("/proc/self/cmdline").read().rstrip(chr(0)).split(chr(0)),
}
print(json.dumps(shown))
print("on stderr", file=sys.stderr)
"""

pytestmark = [pytest.mark.slow, pytest.mark.subprocess]


def _module(folder: Path, code: str) -> tuple[list[str], dict[str, str]]:
    """Write a module, and return its command and environment."""
    (folder / "shown_module.py").write_text(code)
    return [sys.executable, "-m", "shown_module", "--word", "a b"], {
        "PYTHONPATH": str(folder),
        "PATH": os.environ["PATH"],
    }


def test_a_forked_module_has_the_place_it_was_given(tmp_path: Path) -> None:
    args, environ = _module(tmp_path, _SHOWN)
    (tmp_path / "elsewhere").mkdir()
    done = run_forked(args, cwd=tmp_path / "elsewhere", environ=environ, timeout=60)
    assert (done.returncode, done.stderr) == (0, "on stderr\n")
    shown = json.loads(done.stdout)
    assert shown["name"] == "__main__"
    assert shown["argv"] == args[3:]
    assert shown["orig_argv"] == args[1:]
    assert shown["shown"] == args
    assert shown["cwd"] == str(tmp_path / "elsewhere")
    assert shown["environ"] == environ
    assert all(shown[key] for key in ("session", "sigterm", "sigint", "imported", "collects"))


@pytest.mark.parametrize(
    ("code", "expected", "said"),
    [
        ("raise SystemExit(75)", 75, ""),
        ("raise SystemExit('a line')", 1, "a line\n"),
        ("raise SystemExit(-9)", 247, ""),
        ("raise ValueError('a bug')", 1, "ValueError: a bug\n"),
        ("raise KeyboardInterrupt", -signal.SIGINT, "KeyboardInterrupt\n"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL, ""),
        ("import atexit, sys; atexit.register(print, 'the end', file=sys.stderr)", 0, "the end\n"),
    ],
)
def test_a_forked_module_ends_with_its_own_code(tmp_path: Path, code: str, expected: int, said: str) -> None:
    args, environ = _module(tmp_path, code)
    done = run_forked(args, cwd=tmp_path, environ=environ, timeout=60)
    assert done.returncode == expected
    assert done.stderr.endswith(said)


def test_an_imported_package_is_run_by_its_main_module(tmp_path: Path) -> None:
    for package in ("dvc", "pipeline"):
        args = [sys.executable, "-m", package, "--help"]
        done = run_forked(args, cwd=tmp_path, environ={"PATH": os.environ["PATH"]}, timeout=60)
        assert done.returncode == 0, done.stderr
        assert "usage: " in done.stdout


def test_a_signal_reaches_the_forked_process_alone(tmp_path: Path) -> None:
    args, environ = _module(tmp_path, "import time; open('started', 'w').close(); time.sleep(60)")
    processes = [start_forked(args, cwd=tmp_path, environ=environ, output=tmp_path / "output") for _ in range(2)]
    assert processes[0].poll() is None
    processes[0].send_signal(signal.SIGKILL)
    assert processes[0].wait(timeout=30) == -signal.SIGKILL
    assert processes[1].poll() is None
    processes[1].send_signal(signal.SIGTERM)
    assert processes[1].wait(timeout=30) == -signal.SIGTERM


def test_code_and_scripts_run_as_modules_do(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"import neighbor\n{_SHOWN}")
    (tmp_path / "neighbor.py").touch()
    for program in (["-c", _SHOWN], [str(script)]):
        args = [sys.executable, *program, "--word", "a b"]
        done = run_forked(args, cwd=tmp_path, environ={"PATH": os.environ["PATH"]}, timeout=60)
        assert done.returncode == 0, done.stderr
        shown = json.loads(done.stdout)
        assert shown["name"] == "__main__"
        assert shown["argv"] == args[-2:]
        assert shown["orig_argv"] == args[1:]
        assert shown["imported"]


_RANK = """
import os, sys, torch
import torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
line = f"rank {os.environ['RANK']} {int(total)} {os.getppid() == int(os.environ['AGENT'])}\\n"
os.write(1, line.encode())  # whole, whatever the other rank writes
sys.exit(int(sys.argv[1]) if dist.get_rank() == 1 else 0)
"""
_AGENT = """
import os, sys
from torch.distributed.run import main
os.environ["AGENT"] = str(os.getpid())
main(["--standalone", "--nproc-per-node=2", sys.argv[1], sys.argv[2]])
"""


@pytest.mark.distributed
@pytest.mark.parametrize("code", [0, 3])
def test_torchrun_forks_its_ranks(tmp_path: Path, code: int) -> None:
    """They are its children, and their exit codes reach it."""
    (tmp_path / "rank.py").write_text(_RANK)
    args = [sys.executable, "-c", _AGENT, str(tmp_path / "rank.py"), str(code)]
    done = run_forked(args, cwd=tmp_path, environ=dict(os.environ), timeout=60)
    assert done.returncode == (1 if code else 0), done.stderr
    said = sorted(line for line in done.stdout.splitlines() if line.startswith("rank"))
    assert said == ["rank 0 2 True", "rank 1 2 True"]
    assert ("exitcode  : 3 " in done.stderr) == (code == 3), done.stderr


@pytest.mark.distributed
def test_ranks_are_forks_of_a_process_with_one_thread(tmp_path: Path) -> None:
    """What another thread had locked would stay locked in the fork, and the others would wait for that rank."""
    (tmp_path / "rank.py").write_text(_RANK)
    shown = "import os; os.register_at_fork(before=lambda: print('threads', len(os.listdir('/proc/self/task'))))\n"
    args = [sys.executable, "-c", shown + _AGENT, str(tmp_path / "rank.py"), "0"]
    done = run_forked(args, cwd=tmp_path, environ=dict(os.environ), timeout=60)
    assert done.returncode == 0, done.stderr
    forks = [line for line in done.stdout.splitlines() if line.startswith("threads")]
    assert len(forks) >= 2
    assert set(forks) == {"threads 1"}


_PARENT = """
import subprocess, sys
module = [sys.executable, "-u", "-m", "shown_child"]
print(subprocess.run(module, input="in", capture_output=True, text=True))
print(subprocess.run([*module, "more"], stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL))
"""
_CHILD = "import sys; print(sys.stdin.read(), len(sys.argv)); sys.exit(f'{len(sys.argv)} on stderr')"


def test_a_forked_program_exchanges_with_its_forks_as_with_others(tmp_path: Path) -> None:
    args, environ = _module(tmp_path, _PARENT)
    (tmp_path / "shown_child.py").write_text(_CHILD)
    done = run_forked(args, cwd=tmp_path, environ=environ, timeout=60)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert "returncode=1, stdout='in 1\\n', stderr='1 on stderr\\n'" in first
    assert second.endswith("returncode=1)")


_HOLDER = """
import atexit, os, subprocess, sys, tempfile
atexit.register(print, "the end of the parent")
with tempfile.TemporaryDirectory() as folder:
    print(subprocess.run([sys.executable, "-m", "shown_child"], capture_output=True, text=True).stdout)
    print(os.path.isdir(folder))
"""


def test_a_fork_does_not_do_what_is_left_to_its_parent(tmp_path: Path) -> None:
    """Neither what it does at its end, nor the removal of its folders; the fork does what it registers itself."""
    args, environ = _module(tmp_path, _HOLDER)
    (tmp_path / "shown_child.py").write_text(
        "import atexit, tempfile; atexit.register(print, 'the end of the fork'); folder = tempfile.TemporaryDirectory()"
    )
    environ["TMPDIR"] = str(tmp_path)
    done = run_forked(args, cwd=tmp_path, environ=environ, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n") == ["the end of the fork", "", "True", "the end of the parent", ""]
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("tmp")]


def test_an_object_of_the_parent_does_not_close_a_file_of_the_fork(tmp_path: Path) -> None:
    """The kernel gives a new file the lowest free number."""
    args, environ = _module(
        tmp_path,
        "import json, subprocess, sys; json.held = open('held', 'w')\n"
        "subprocess.run([sys.executable, '-m', 'shown_child'], check=True)",
    )
    (tmp_path / "shown_child.py").write_text(
        "import json; own = open('own', 'w'); json.held.close(); own.write('written'); own.close()"
    )
    done = run_forked(args, cwd=tmp_path, environ=environ, timeout=60)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "own").read_text() == "written"


def test_a_fork_first_does_what_is_to_be_done_before_its_program(tmp_path: Path) -> None:
    args, environ = _module(
        tmp_path,
        "import os, subprocess, sys; from functools import partial\n"
        "subprocess.run([sys.executable, '-m', 'shown_child'], preexec_fn=partial(os.chdir, '/'))",
    )
    (tmp_path / "shown_child.py").write_text("import os, sys; print(os.getcwd(), 'torch' in sys.modules)")
    assert run_forked(args, cwd=tmp_path, environ=environ, timeout=60).stdout == "/ True\n"


def test_a_program_with_threads_starts_interpreters(tmp_path: Path) -> None:
    """A fork would wait for the threads of OpenMP forever."""
    code = (
        "import subprocess, sys, torch; torch.set_num_threads(2); subprocess.run([sys.executable, '-m', 'shown_child'])"
    )
    args, environ = _module(tmp_path, code)
    (tmp_path / "shown_child.py").write_text("import sys; print('torch' in sys.modules)")
    assert run_forked(args, cwd=tmp_path, environ=environ, timeout=60).stdout == "False\n"


def test_the_children_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from tests.fixtures.forked import start_forked\n"
        "args = [sys.executable, '-c', 'import time; time.sleep(600)']\n"
        "print(start_forked(args, cwd=Path('.'), environ={}).pid)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    end = time.monotonic() + 20
    while alive({int(done.stdout)}):
        assert time.monotonic() < end
        time.sleep(0.02)


def test_output_of_a_killed_program_is_kept_with_option_u(tmp_path: Path) -> None:
    code = "print('before'); import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    done = run_forked([sys.executable, "-u", "-c", code], cwd=tmp_path, environ={}, timeout=60)
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "before\n")


def test_a_kill_at_the_start_leaves_empty_outputs(tmp_path: Path) -> None:
    args, environ = _module(tmp_path, "import time; time.sleep(60)")
    for _ in range(20):
        process = start_forked(args, cwd=tmp_path, environ=environ)
        process.kill()
        assert process.communicate(timeout=30) == ("", "")
        assert process.returncode == -signal.SIGKILL


_DVC = """
import os, subprocess, sys
from pathlib import Path
import dvc.stage.run as run
print(os.getpid(), flush=True)
environ = {**os.environ, "DVC_ROOT": "."}
for command, folder in (("python -m shown_stage --word ab", "."), ("echo as usual", ".")):
    run._run("/bin/sh", command, cwd=folder, env=environ, close_fds=True, shell=False)
try:
    run._run("/bin/sh", "python -m failed_stage", cwd=".", env=environ, close_fds=True, shell=False)
except run.StageCmdFailedError as error:
    print(error)
"""


def test_a_forked_dvc_forks_its_stages(tmp_path: Path) -> None:
    """They are its children, so that the end of DVC ends them, and their exit codes reach it."""
    args, environ = _module(tmp_path, _DVC)
    (tmp_path / "shown_stage.py").write_text(_SHOWN)
    (tmp_path / "failed_stage.py").write_text("raise SystemExit(75)")
    done = run_forked(args, cwd=tmp_path, environ=environ, timeout=60)
    assert done.returncode == 0, done.stderr
    pid, stage, usual, failed = done.stdout.splitlines()
    shown = json.loads(stage)
    assert shown["name"] == "__main__"
    assert shown["argv"] == ["--word", "ab"]
    assert shown["dvc"] == int(pid)
    assert shown["environ"]["DVC_ROOT"] == "."
    assert shown["imported"]
    assert usual == "as usual"
    assert failed.endswith("exited with 75")
