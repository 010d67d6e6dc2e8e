"""Measure the import time of each module of L0 and L1, without the libraries that it needs.

A fresh process imports the libraries of the module's import closure, then the module. Only the second import is timed.
The goal is below 0.3 s for each module.

    python -m benchmarks.import_time
"""

import argparse
import ast
import re
import subprocess
import sys
from pathlib import Path
from statistics import median

from pipeline.artifacts.provenance import import_closure

GOAL_S = 0.3

_ROOT = Path(__file__).parents[1]
_TIMED = """
import importlib, sys, time
module, *libraries = sys.argv[1:]
for name in libraries:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        pass  # a class or function
start = time.perf_counter()
importlib.import_module(module)
print(time.perf_counter() - start)
"""


def modules_below_l2() -> list[str]:
    """Return the modules of the packages that docs/architecture.md places in L0 and L1."""
    text = (_ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    units = {
        unit.strip() for line in re.findall(r"^L[01] ([a-z_, ]+)", text, flags=re.MULTILINE) for unit in line.split(",")
    }
    names = []
    for path in sorted((_ROOT / "pipeline").rglob("*.py")):
        parts = path.relative_to(_ROOT).with_suffix("").parts
        if len(parts) > 1 and parts[1] in units:
            names.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return names


def imported_libraries(module: str) -> list[str]:
    """Return the full names of all that the module's import closure imports from libraries at module level."""
    libraries: set[str] = set()
    for path in import_closure(module).values():
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Import):
                libraries.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                libraries.add(node.module)
                libraries.update(f"{node.module}.{alias.name}" for alias in node.names)
    return sorted(name for name in libraries if name.split(".")[0] not in ("pipeline", "viz"))


def import_seconds(module: str, repeats: int) -> float:
    """Return the median import time over `repeats` fresh processes."""
    command = [sys.executable, "-c", _TIMED, module, *imported_libraries(module)]
    return median(
        float(subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=True).stdout)
        for _ in range(repeats)
    )


def main() -> int:
    """Print a table, the slowest first; return exit code 1 if a module misses the goal."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeats", type=int, default=3)
    repeats: int = parser.parse_args().repeats
    results = {module: import_seconds(module, repeats) for module in modules_below_l2()}
    for module, seconds in sorted(results.items(), key=lambda item: -item[1]):
        print(f"{module:45}{seconds * 1000:8.1f} ms{'  over the goal' if seconds > GOAL_S else ''}")
    print(f"slowest: {max(results.values()) / GOAL_S:.0%} of the goal of {GOAL_S} s")
    return int(max(results.values()) > GOAL_S)


if __name__ == "__main__":
    sys.exit(main())
