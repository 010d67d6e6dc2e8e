"""A tuned.yaml that someone has changed, or made up: read or refused in one line, in bounded time and memory.

A search writes data/tune/NAME/tuned.yaml, a whole parameter file, and people pass it on.
"""

import copy
import datetime
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.commands.tune.outputs import check_values_are_writable
from pipeline.commands.validate import count_runs
from pipeline.config.params import Params, check_params
from pipeline.config.search_checks import check_space
from pipeline.config.yaml_reading import parse_yaml
from pipeline.errors import InputError
from pipeline.paths import DataPaths
from pipeline.tuning.search import count_trials
from pipeline.tuning.storage import TrialSampler
from tests.fixtures.printed_errors import printed_error
from tests.fixtures.slow import quick_first
from tests.fixtures.training import run
from tests.fixtures.tuning import NAME, tune, write_search
from tests.unit.config.test_yaml_reading import _bomb, _merge_bomb

_SPACE = {"learning_rates": {"log_uniform": [0.01, 1.0]}, "recipe.optimizer.momentum": {"choices": [0.0, 0.5]}}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The file of a search of one trial."""
    folder = tmp_path_factory.mktemp("search")
    data = write_search(folder, trials=1, epochs=1, space=_SPACE, max_concurrent_trials=None)
    assert tune(folder) == 0
    return data.tuned(NAME).read_text()


def _nested(levels: int) -> Any:
    value: Any = 1
    for level in range(levels):
        value = [value] if level % 2 else {"a": value}
    return value


_VALUES: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 7, 2**31, 2**63 - 1, 2**63, -(2**70), 10**300, 0.5, -0.0, 1e-320, 1.7e308, math.inf,
    math.nan, "", " ", ".", "..", "../../etc/passwd", "/dev/zero", "a\nb", "\x1b[2J", "{0.__class__}", "%s%n",
    "x" * 5000,
    "\ud7ff\U0010ffff", "null", "1e-3", "resnet18", "filtered", [], [[]], {}, {"name": "sgd"}, {"name": []},
    {"choices": []}, {"choices": [None, {}]}, {"uniform": [-1.7e308, 1.7e308]}, {"int_uniform": [0, 2**63 - 1]},
    {"log_uniform": [5e-324, 1.7e308]}, {"epochs": 1e308}, {"steps": 2**63 - 1}, [1, 1], ["resnet18", 3], [1e308, 5],
    datetime.date(2026, 11, 24), _nested(40),
)  # fmt: skip
_KEYS = (
    "", ".", "..", "../../x", "/etc/x", "a/b", "a\nb", "\x1b[2J", "__class__", "model_config", "recipe", "recipe.",
    "recipe..x", "recipe.__class__", "recipe.optimizer", "recipe.optimizer.momentum.x", "learning_rates", "x" * 5000,
    "model_fields", "\u202e", "0",
)  # fmt: skip
# The file has 150 places, and the other checks of an accepted one take most of the time.
_QUICK = 61


def _places(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    inner = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in inner:
        yield (*path, key)
        yield from _places(value, (*path, key))


def _set(tree: Any, path: tuple[Any, ...], value: Any) -> Any:
    changed = copy.deepcopy(tree)
    at = changed
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return changed


def _use(params: Params, text: str) -> None:
    """Do what `validate`, `plan` and `tune` do of a file before they read images."""
    data = DataPaths(root=Path("/data"))
    for name, study in params.studies.items():
        assert data.runs(name).parent == Path("/data/train"), name
        assert data.trained_weights(name).resolve().is_relative_to("/data/train"), name
        count_runs(study, params.train)
    for name, tuning in params.tuning.items():
        assert data.tuned(name).resolve().is_relative_to("/data/tune"), name
        check_space(f"tuning.{name}", tuning, params.studies[tuning.study], params.train)
        check_values_are_writable(text, tuning, source="tuned.yaml")
        count_trials(tuning)
        sampler = TrialSampler(tuning)
        for _ in range(2):
            sampler.ask()


def _check(tree: Any, text: str) -> bool:
    """Return whether the tree is accepted; every refusal is one short line."""
    try:
        _use(check_params(tree, source="tuned.yaml"), text)
    except InputError as error:
        assert 0 < len(str(error)) < 2000, error  # noqa: PT017 - either outcome is right
        assert "\n" not in str(error), error  # noqa: PT017
        return False
    return True


@pytest.mark.parametrize("every", [_QUICK, pytest.param(1, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
def test_any_value_in_any_place(text: str, every: int) -> None:
    tree = parse_yaml(text, source="tuned.yaml")
    assert _check(tree, text)
    cases = [(path, value) for path in _places(tree) for value in _VALUES]
    assert len(cases) > 5000
    outcomes, tracebacks = set(), []
    for path, value in cases[::every]:
        try:
            outcomes.add(_check(_set(tree, path, value), text))
        except Exception as error:  # noqa: BLE001 - any other error is a traceback
            tracebacks.append((path, ascii(value)[:100], repr(error)[:200]))
    assert tracebacks == []
    assert outcomes == {False, True}


def test_a_range_without_bounds_is_refused(text: str) -> None:
    """What is missing is an item of a list, which has no key."""
    tree = parse_yaml(text, source="tuned.yaml")
    for bounds in ([], [0.1]):
        changed = _set(tree, ("tuning", NAME, "space", "learning_rates", "log_uniform"), bounds)
        with pytest.raises(InputError, match=r"^tuned.yaml: tuning.lr.space.learning_rates.log_uniform.*missing"):
            check_params(changed, source="tuned.yaml")


@pytest.mark.slow
def test_any_key_in_any_section(text: str) -> None:
    tree = parse_yaml(text, source="tuned.yaml")
    tracebacks = []
    for path in [(), *_places(tree)]:
        section = tree
        for key in path:
            section = section[key]
        if not isinstance(section, dict):
            continue
        for key in _KEYS:
            # A copy of a neighbor is what the section allows as a value.
            for value in (None, next(iter(section.values()), None)):
                try:
                    _check(_set(tree, (*path, key), copy.deepcopy(value)), text)
                except Exception as error:  # noqa: BLE001 - any other error is a traceback
                    tracebacks.append((path, ascii(key)[:100], repr(error)[:200]))
    assert tracebacks == []


# Each section may be chosen in ten ways, and has a section that may be chosen in ten ways. The innermost comes first.
_CHAIN = "\n".join(
    f"      {'.'.join(['recipe', *'abcdefghijkl'[:depth]])}: {{choices: [{', '.join(map(str, range(10)))}]}}"
    for depth in range(12, 0, -1)
)
_BOMBS = {
    "aliases": _bomb(30),
    "merges": _merge_bomb(30),
    "brackets": "x: " + "[" * 100_000,
    "indents": "\n".join(" " * level + "a:" for level in range(450)),
    "values": "x: [" + "1," * 50_000 + "]",
    "digits": "x: " + "9" * 5000,
    "object": "x: !!python/object/apply:os.system [x]",
    "key": "? [a, b]\n: 1",
    "a key twice": "studies: {}\nstudies: {}",
    "searched chain": f"    space:\n{_CHAIN}",
    "trials": "    trials: 4611686018427387904",
    "epochs": "    epochs: 4611686018427387904",
    "seeds": "    seeds: 4611686018427387904",
}
_LIMIT = 3 << 30
_LIMITED = f"""
import resource, sys
from pipeline.__main__ import main
resource.setrlimit(resource.RLIMIT_AS, ({_LIMIT}, {_LIMIT}))
resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
sys.exit(main(sys.argv[1:]))
"""


def _with_bomb(text: str, bomb: str) -> str:
    """Return the file with a bomb in its search, or else at its end."""
    key = bomb.strip().partition(":")[0]
    if not bomb.startswith("    ") or key not in ("space", "trials", "epochs", "seeds"):
        return f"{text}\n{bomb}\n"
    lines = text.splitlines()
    start = lines.index("tuning:")
    own = [number for number in range(start, len(lines)) if lines[number].startswith(f"    {key}:")]
    assert own or key == "seeds"
    if own:
        end = own[0] + 1
        while end < len(lines) and lines[end].startswith("     "):
            end += 1
        del lines[own[0] : end]
    return "\n".join([*lines[: start + 2], bomb, *lines[start + 2 :]]) + "\n"


@pytest.mark.slow
@pytest.mark.subprocess
@pytest.mark.parametrize("bomb", quick_first(1, _BOMBS))
def test_a_bomb_ends_a_search_in_one_line(text: str, bomb: str, tmp_path: Path) -> None:
    """`tune` of a real project, in 3 GiB and a minute of the processor."""
    data = write_search(tmp_path)
    file = tmp_path / "tuned.yaml"
    file.write_text(_with_bomb(text, _BOMBS[bomb]))
    arguments = ["tune", NAME, f"--params={file}", f"--data={data.root}", f"--work={tmp_path / 'work'}"]
    done = run([sys.executable, "-c", _LIMITED, *arguments])
    assert done.returncode == 2, done.stderr[-2000:]
    assert "Traceback" not in done.stderr
    assert printed_error(done.stderr).key == str(file)
    assert not (tmp_path / "work" / "tune").exists()


def test_a_bomb_is_placed_in_the_search(text: str) -> None:
    for key in ("space", "trials", "epochs", "seeds"):
        bomb = next(one for one in _BOMBS.values() if one.startswith(f"    {key}:"))
        tree = parse_yaml(_with_bomb(text, bomb), source="tuned.yaml")
        assert tree["tuning"][NAME][key] != parse_yaml(text, source="tuned.yaml")["tuning"][NAME].get(key)
