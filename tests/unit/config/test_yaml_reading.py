"""Any text, however it was made, is read as plain values or refused in one line, within bounded time and memory."""

import contextlib
import json
import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.commands import check_lock, preset
from pipeline.config.params import check_params, load_params
from pipeline.config.yaml_reading import MAX_BYTES, MAX_VALUES, parse_yaml, read_yaml_text
from pipeline.errors import InputError
from pipeline.simulator.machine import load_machine
from tests.fixtures.golden import check_golden, refusals
from tests.fixtures.params import PRESET, digits_with
from tests.fixtures.printed_errors import key_within
from tests.fixtures.slow import quick_first


def _bomb(levels: int) -> str:
    """Return 100 bytes a level, each with ten times the values of the last."""
    lists = [f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]" for level in range(1, levels)]
    return "\n".join(["a0: &a0 [x, x, x, x, x, x, x, x, x, x]", *lists])


def _merge_bomb(levels: int) -> str:
    merges = [f"m{level}: &m{level} {{<<: [{', '.join([f'*m{level - 1}'] * 10)}]}}" for level in range(1, levels)]
    return "\n".join(["m0: &m0 {a: 1}", *merges])


_REFUSED = {
    "null key": "~: 1",
    "NaN key": ".nan: 1",
    "boolean key": "a:\n  true: 1",
    "number as key": "12: 1",
    "date as key": "2024-12-05: 1",
    "list as key": "[a, b]: 1",
    "mapping as key": "{a: 1}: 1",
    "no such month": "a: 1\nseed: 2024-13-45",
    "word as integer": "a: 1\nseed: !!int sixteen",
    "word as boolean": "seed: !!bool perhaps",
    "word as number": "seed: !!float perhaps",
    "word as date": "seed: !!timestamp perhaps",
    "bytes": "seed: !!binary aGVsbG8=",
    "set": "seed: !!set {a, b}",
    "object of Python": "seed: !!python/object:os.system x",
    "5,000 digits": "seed: " + "9" * 5000,
    "5,000 hexadecimal digits": "seed: 0x" + "f" * 5000,
    "no such character": 'a: "\\UFFFFFFFF"',
    "half a character": 'a: "\\ud800"',
    "half a character as key": '"\\ud800": a',
    "control character": "a: 1\nb: \x00",
    "450 brackets": "a: " + "[" * 450 + "]" * 450,
    "450 braces": "{a: " * 450 + "1" + "}" * 450,
    "brackets that never end": "[" * 100_000,
    "450 indents": "\n".join(" " * level + "a:" for level in range(450)),
    "alias bomb": _bomb(30),
    "merge bomb": _merge_bomb(30),
    "many values": "[" + "1," * 2 * MAX_VALUES + "]",
    "a list within itself": "x: &x [*x]",
    "a file within itself": "&x\na: *x",
    "unknown alias": "x: *nowhere",
    "YAML 1.1": "%YAML 1.1\n---\na: 1",
    "two documents": "a: 1\n---\na: 2",
}


def test_hostile_text_is_refused_in_one_short_line() -> None:
    lines = refusals({name: partial(parse_yaml, text, source="params.yaml") for name, text in _REFUSED.items()})
    check_golden("refused_yaml.txt", lines)
    assert max(len(line) for line in lines.splitlines()) < 300


_TAGS = ("int", "float", "bool", "null", "timestamp", "binary", "omap", "pairs", "set", "map", "seq")
_TAGGED = st.tuples(st.sampled_from(_TAGS), st.text(alphabet="0123456789abxo.-:+_eE []{}~", max_size=20))


@given(
    st.one_of(
        st.text(max_size=60),
        st.text(alphabet="[]{}:,-?*&!|>%@'\" \n\t#~ab1.", max_size=60),
        _TAGGED.map(lambda tagged: f"!!{tagged[0]} {tagged[1]}"),
    )
)
def test_any_text_is_plain_values_or_one_line(text: str) -> None:
    tree = None
    with contextlib.suppress(InputError):
        tree = parse_yaml(text, source="params.yaml")
    json.dumps(tree, default=str).encode()


def test_what_files_have_is_read() -> None:
    text = "base: &base {a: 1, when: 2026-11-24}\nderived: {<<: *base, b: [1e-3, no, ~, 0x10, 'x']}\n"
    tree = parse_yaml(text, source="p")
    assert str(tree["base"]["when"]) == "2026-11-24"
    assert tree["derived"] == {"a": 1, "when": tree["base"]["when"], "b": [1e-3, "no", None, 16, "x"]}
    assert parse_yaml("", source="p") is None
    assert len(parse_yaml("[" + "1," * (MAX_VALUES - 1) + "]", source="p")) == MAX_VALUES - 1


def test_what_is_no_bounded_regular_file_is_refused(tmp_path: Path) -> None:
    fifo, large, circle = tmp_path / "fifo", tmp_path / "large", tmp_path / "circle"
    os.mkfifo(fifo)
    large.write_bytes(b"#" * (MAX_BYTES + 1))
    circle.symlink_to(circle)
    for path in (fifo, large, circle, Path("/dev/zero"), tmp_path):
        with pytest.raises(InputError) as raised:
            read_yaml_text(path)
        assert raised.value.key == str(path)
    large.write_bytes(b"#" * MAX_BYTES)
    assert len(read_yaml_text(large)) == MAX_BYTES


def _write_preset(path: Path) -> None:
    preset.main([path.stem, "--presets", str(path.parent), "--params", str(path.with_name("params.yaml")), "--force"])


def _with_batch_sizes(count: int) -> str:
    """Return the parameters with a study of 2, 3, ... images in a batch."""
    sizes = f"batch_sizes: {list(range(2, count + 2))}"
    text, found = re.subn(r"batch_sizes: \[[0-9, ]+\]", sizes, PRESET.read_text())
    assert found == 1
    return text


_READERS: dict[str, Callable[[Path], object]] = {
    "params.yaml": load_params, "machines": load_machine, "presets": _write_preset,
}  # fmt: skip
_HOSTILE = {
    "null key": "~: 1",
    "no such month": "seed: 2024-13-45",
    "bomb": _bomb(30),
    "100,000 batch sizes": _with_batch_sizes(100_000),
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("read", _READERS.values(), ids=list(_READERS))
@pytest.mark.parametrize("text", quick_first(3, _HOSTILE.values()), ids=list(_HOSTILE))
def test_every_reader_refuses_it(tmp_path: Path, read: Callable[[Path], object], text: str) -> None:
    path = tmp_path / "some.yaml"
    path.write_text(text)
    with pytest.raises(InputError) as raised:
        read(path)
    assert raised.value.key == str(path)
    assert [file.name for file in tmp_path.iterdir()] == ["some.yaml"]


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_a_study_of_15000_batch_sizes_is_read(tmp_path: Path) -> None:
    """They are below the limits on values and runs; no check of a study takes time by their square."""
    path = tmp_path / "some.yaml"
    path.write_text(_with_batch_sizes(15_000))
    assert load_params(path).studies["digits"].batch_sizes == tuple(range(2, 15_002))
    _write_preset(path)
    written, given = read_yaml_text(path.with_name("params.yaml")), path.read_text()
    assert written.splitlines()[1:] == given.splitlines()[1:]  # the first line is the editor's


def test_a_preset_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_bytes(b"\xff\xfe")
    for argv in ([], ["bad"]):
        with pytest.raises(InputError) as raised:
            preset.main([*argv, "--presets", str(tmp_path), "--params", str(tmp_path / "params.yaml")])
        assert raised.value.key == str(tmp_path / "bad.yaml")


@pytest.mark.parametrize("text", ["stages: 2024-13-45\n", "- a\n", "stages: [a]\n", "[" * 1000 + "\n"])
def test_a_damaged_lock_of_the_last_commit_is_refused(text: str) -> None:
    with pytest.raises(InputError) as raised:
        check_lock.parse_lock(text.encode(), source="dvc.lock of the last commit")
    assert raised.value.key == "dvc.lock of the last commit"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("train.simulated_workers", 10**9),
        ("train.simulated_workers", 10**30),
        ("reduce.tsne.perplexity", 1e-300),
        ("finetune.batch_size", 10**30),
        ("studies.digits.batch_sizes", [10**30]),
        ("studies.digits.budget.steps", 10**30),
        ("studies.digits.seeds", [1, 1, *range(10_000)]),
    ],
)
def test_huge_values_are_refused_at_once_and_briefly(key: str, value: Any) -> None:
    with pytest.raises(InputError) as raised:
        check_params(digits_with(key, value), source="p")
    assert key_within(raised.value, "p").startswith(key.rpartition(".")[0])
    assert len(str(raised.value)) < 600


def test_a_grid_of_more_runs_than_fit_the_memory_is_refused() -> None:
    tree = digits_with("studies.digits.seeds", list(range(2000)))
    tree["studies"]["digits"]["learning_rates"] = [0.001 * (i + 1) for i in range(1000)]
    with pytest.raises(InputError) as raised:
        check_params(tree, source="p")
    assert key_within(raised.value, "p") == "studies.digits.seeds"
    assert "give at most 1,000,000 runs" in str(raised.value)


def test_a_word_in_place_of_a_number_names_its_line(tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    text = re.sub(r"^  seed: 0$", "  seed: !!int sixteen", PRESET.read_text(), count=1, flags=re.MULTILINE)
    path.write_text(text)
    with pytest.raises(InputError) as raised:
        load_params(path)
    line = text.splitlines().index("  seed: !!int sixteen") + 1
    assert f"line {line}:" in str(raised.value)
    assert "sixteen" in str(raised.value)
