"""What does importing each module of L0 and L1 cost beyond the libraries that it needs?

A fresh process imports the libraries of the module's import closure first, then the module; only the
second is counted. The goal is below 0.3 s for each.

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
    """Modules of the units that docs/architecture.md puts into L0 and L1."""
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


def libraries_of(module: str) -> list[str]:
    """What the module's import closure imports from others at the top of its files, by full names."""
    found: set[str] = set()
    for path in import_closure(module).values():
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Import):
                found.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                found.add(node.module)
                found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return sorted(name for name in found if name.split(".")[0] not in ("pipeline", "viz"))


def seconds_of(module: str, repeats: int) -> float:
    """Median over fresh processes."""
    command = [sys.executable, "-c", _TIMED, module, *libraries_of(module)]
    return median(
        float(subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=True).stdout)
        for _ in range(repeats)
    )


def main() -> int:
    """Print a table, the slowest first; exit code 1 if one misses the goal."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeats", type=int, default=3)
    repeats: int = parser.parse_args().repeats
    results = {module: seconds_of(module, repeats) for module in modules_below_l2()}
    for module, seconds in sorted(results.items(), key=lambda item: -item[1]):
        print(f"{module:45}{seconds * 1000:8.1f} ms{'  over the goal' if seconds > GOAL_S else ''}")
    print(f"slowest: {max(results.values()) / GOAL_S:.0%} of the goal of {GOAL_S} s")
    return int(max(results.values()) > GOAL_S)


if __name__ == "__main__":
    sys.exit(main())
