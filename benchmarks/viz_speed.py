"""Measure the response times of the visualizer.

A real process serves the app, and a real Chromium uses it (Debian's `chromium`, WebGL in software), on random points.
Measured are the seconds until the server listens, until the map is plotted, from a pointer's move to the tooltip, from
a changed threshold or `min_samples` to the recolored map (all images, and one class of `class_size` images), and from
the end of a box selection to its pictures.

    python -m benchmarks.viz_speed --n 2000 50000 1000000
"""

import argparse
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from playwright.sync_api import Page, sync_playwright
from ruamel.yaml import YAML

from benchmarks.measuring import print_results
from benchmarks.printing import Row
from pipeline.artifacts.files import write_array, write_json
from pipeline.artifacts.tables import list_array, write_parquet
from pipeline.paths import DataPaths

NETWORK = "resnet18"
SIDE = 8
CLASS_SIZE = 5000


def write_points(data: DataPaths, n: int, n_classes: int) -> NDArray[np.float32]:
    """Write the app's files for `n` images in blobs, 5 % of them outliers; return the coordinates (n, 2)."""
    rng = np.random.default_rng(0)
    labels = np.arange(n) % n_classes
    centers = rng.uniform(-100, 100, (n_classes, 2))
    xy = (centers[labels] + rng.normal(size=(n, 2)) * np.where(rng.random(n) < 0.05, 12, 2)[:, None]).astype(np.float32)
    radii = rng.exponential(size=n)
    noise = radii > np.quantile(radii, 0.95)
    names = [f"class {label}" for label in range(n_classes)]
    paths = pa.array([f"{row}.png" for row in range(n)])
    identity = {
        "sample_id": np.arange(n), "path": paths, "label": labels, "label_name": [names[label] for label in labels],
        "sha256": paths,
    }  # fmt: skip
    write_array(data.images("train"), rng.integers(0, 256, (n, SIDE, SIDE, 3), dtype=np.uint8))
    write_parquet(data.manifest("train"), pa.table(identity))
    write_json(data.prepare_metrics, {"class_names": names, "image_size": SIDE})
    filtered = {
        "predicted": labels, "confidence": np.full(n, 0.9, dtype=np.float32),
        "x": xy[:, 0].copy(), "y": xy[:, 1].copy(),
        "cluster": np.where(noise, -1, 0).astype(np.int32), "is_noise": noise, "eps": np.full(n, 1.0),
        "score": radii / (radii + np.quantile(radii, 0.95)), "reason": pa.array(["made up"] * n),
        "neighbours": list_array(rng.integers(0, n, (n, 10)).astype(np.int32)), "keep": ~noise,
    }  # fmt: skip
    write_parquet(data.points(NETWORK), pa.table({**identity, **filtered}))
    scorer = {"name": "dbscan", "space": "embedding", "min_samples": 5}
    write_json(data.filter_metrics(NETWORK), {"eps": 1.0, "settings": {"scorer": scorer}})
    return xy


def write_params(file: Path) -> None:
    """Write the digits preset with NETWORK alone."""
    yaml = YAML(typ="safe", pure=True)
    tree = yaml.load(Path("presets/digits.yaml").read_text(encoding="utf-8")) | {"networks": [NETWORK]}
    with file.open("w", encoding="utf-8") as text:
        yaml.dump(tree, text)


def seconds_until(condition: Callable[[], bool], *, at_most: float = 300) -> float:
    """Wait until `condition` holds, polling every 3 ms; return the seconds.

    Raises:
        TimeoutError: it does not hold after `at_most` seconds.
    """
    start = time.perf_counter()
    while not condition():
        if time.perf_counter() - start > at_most:
            raise TimeoutError
        time.sleep(0.003)
    return time.perf_counter() - start


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def listens(url: str, server: subprocess.Popen[bytes]) -> bool:
    """Return whether the app answers.

    Raises:
        RuntimeError: the app has exited.
    """
    if server.poll() is not None:
        raise RuntimeError(f"the app exited with code {server.returncode}")
    try:
        urllib.request.urlopen(url, timeout=5).close()
    except (urllib.error.URLError, ConnectionError):
        return False
    return True


def pixel_position(page: Page, xy: NDArray[np.float32], row: int) -> tuple[float, float]:
    """Return the position of a point in the window, in pixels."""
    x, y = page.evaluate(
        """([x, y]) => {
            const plot = document.querySelector("#map .js-plotly-plot");
            const { xaxis, yaxis } = plot._fullLayout;
            const box = plot.getBoundingClientRect();
            return [box.left + xaxis._offset + xaxis.d2p(x), box.top + yaxis._offset + yaxis.d2p(y)];
        }""",
        xy[row].tolist(),
    )
    return x, y


def use(page: Page, url: str, xy: NDArray[np.float32], rounds: int) -> dict[str, float]:
    """Return the median seconds of each interaction over `rounds`."""
    plotted = "document.querySelector('#map .js-plotly-plot')?._fullData?.[0]?.x?.length > 0"
    start = time.perf_counter()
    page.goto(f"{url}?scorer=dbscan&threshold=1")
    page.wait_for_function(plotted, timeout=300_000)
    page.wait_for_selector("#grid .tile", timeout=300_000)
    seconds_by_action = {"first_paint_s": time.perf_counter() - start}
    page.wait_for_timeout(2000)
    page.evaluate(
        """() => document.querySelector("#map .js-plotly-plot")
            .on("plotly_afterplot", () => (window.mapsPlotted = (window.mapsPlotted ?? 0) + 1))"""
    )
    seconds_by_action["hover_s"] = statistics.median(_hover(page, xy, row) for row in range(rounds))
    seconds_by_action["eps_all_s"] = statistics.median(_move(page, "threshold") for _ in range(rounds))
    seconds_by_action["min_samples_all_s"] = statistics.median(
        _min_samples(page, value) for value in range(6, 6 + rounds)
    )
    page.locator("#scope").click()
    page.get_by_role("option").get_by_text("class 0", exact=True).click()
    page.wait_for_timeout(3000)
    seconds_by_action["eps_class_s"] = statistics.median(_move(page, "threshold") for _ in range(rounds))
    page.locator("#map [data-title*=Box]").click()
    seconds_by_action["lasso_s"] = statistics.median(_lasso(page) for _ in range(rounds))
    return {name: round(seconds, 3) for name, seconds in seconds_by_action.items()}


def _hover(page: Page, xy: NDArray[np.float32], row: int) -> float:
    page.mouse.move(5, 5)
    tooltip = page.locator("#left .dcc-tooltip-bounding-box")
    tooltip.wait_for(state="hidden")
    page.mouse.move(*pixel_position(page, xy, row))
    return seconds_until(tooltip.is_visible)


def _move(page: Page, slider: str) -> float:
    """Move the slider by one step; return the seconds until the map is plotted."""
    _wait_until_idle(page)
    before = _maps_plotted(page)
    handle = page.locator(f"#{slider} [role=slider]")
    handle.focus()
    handle.press("ArrowRight")
    return seconds_until(lambda: _maps_plotted(page) > before)


def _min_samples(page: Page, value: int) -> float:
    _wait_until_idle(page)
    before = _maps_plotted(page)
    page.locator("#min_samples").fill(str(value))
    page.locator("#min_samples").press("Enter")
    return seconds_until(lambda: _maps_plotted(page) > before)


def _maps_plotted(page: Page) -> int:
    """Return how often the map has been plotted."""
    plotted: int = page.evaluate("window.mapsPlotted ?? 0")
    return plotted


def _wait_until_idle(page: Page) -> None:
    """Wait until no request is pending."""
    page.wait_for_function("!document.querySelector('[data-dash-is-loading=true]')")
    page.wait_for_timeout(200)


def _lasso(page: Page) -> float:
    """Select a square in the middle, a third of the map wide; return the seconds until its pictures show."""
    box = page.locator("#map").bounding_box()
    assert box is not None
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.evaluate(
        "window.dash_clientside.set_props('selection', { data: { generation: null, rows: [], graph: 'map' } })"
    )
    # Without a selection the gallery shows the list before it.
    page.locator("#list").get_by_text("dropped", exact=True).wait_for()
    _wait_until_idle(page)
    page_text = page.locator("#place")
    before = page_text.inner_text()
    half = np.random.default_rng().uniform(0.15, 0.2) * box["width"]
    page.mouse.move(x - half, y - half)
    page.mouse.down()
    page.mouse.move(x + half, y + half, steps=5)
    page.mouse.up()
    return seconds_until(lambda: page_text.inner_text() != before)


def measure(n: int, rounds: int) -> Row:
    """Return one row of the table."""
    with tempfile.TemporaryDirectory() as folder:
        data, params = DataPaths(root=Path(folder) / "data"), Path(folder) / "params.yaml"
        n_classes, port = max(10, n // CLASS_SIZE), free_port()
        url = f"http://127.0.0.1:{port}/"
        xy = write_points(data, n, n_classes)
        write_params(params)
        command = [sys.executable, "-m", "viz", "--port", str(port), "--params", str(params), "--data", str(data.root)]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            start = seconds_until(lambda: listens(url, server))
            with sync_playwright() as playwright:
                arguments = ["--no-sandbox", "--disable-gpu", "--use-angle=swiftshader"]
                browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=arguments)
                seconds = use(browser.new_page(viewport={"width": 1280, "height": 720}), url, xy, rounds)
                browser.close()
        finally:
            server.terminate()
            server.wait()
    return {"n": n, "class_size": n // n_classes, "start_s": round(start, 2), **seconds}


def main() -> None:
    """Print the table and one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--n", type=int, nargs="+", default=[2000, 50_000])
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    print_results(arguments, [measure(n, arguments.rounds) for n in arguments.n])


if __name__ == "__main__":
    main()
