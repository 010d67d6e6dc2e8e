import io
import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pipeline.artifacts.files import write_array
from pipeline.artifacts.overrides import read_overrides
from pipeline.artifacts.provenance import import_closure
from pipeline.config.renamed_keys import with_old_keys
from pipeline.paths import DataPaths
from tests.fixtures.content_policy import policy_sources
from tests.fixtures.params import digits_tree
from tests.fixtures.projects import NETWORK, write_params
from tests.fixtures.report import ROOT, write_network
from tests.fixtures.view import drawn_rows
from viz.__main__ import main
from viz.app import make_app
from viz.components import picture
from viz.data import Points, Source

_PARAMS = ROOT / "tests" / "params.yaml"


@pytest.fixture
def client(source: Source) -> Any:
    return make_app(source, params_file=_PARAMS).server.test_client()


def test_the_page_has_no_external_url(client: Any) -> None:
    answer = client.get("/")
    assert answer.status_code == 200
    # Class names are text, whatever their characters.
    page = re.sub(r'"label":"(?:[^"\\]|\\.)*"', "", answer.text)
    assert not re.search(r"https?:|[\"'](//|\\u002f\\u002f)", page)
    assert "style.css" in answer.text
    # Browsers ask for another icon at each change of the address.
    assert re.findall(r'<link rel="icon"[^>]*href="([a-z]*:)', answer.text) == ["data:"]
    assert "favicon.ico" not in answer.text
    policy = answer.headers["Content-Security-Policy"]
    assert policy_sources(policy)["default-src"] == ["'self'", "'unsafe-inline'", "'unsafe-eval'", "data:", "blob:"]
    # Only the policy has a URL: notebooks on this machine may show the page.
    named = re.findall(r"http[^ ;]*", policy)
    assert named
    assert all(address.startswith(("http://127.0.0.1:", "http://localhost:")) for address in named)
    assert answer.headers["Referrer-Policy"] == "no-referrer"


def body_of(client: Any, output: str, values: Mapping[str, Any], changed: str) -> dict[str, Any]:
    """Return the request of the page for the callback with `output`; controls not in `values` are None."""
    entry = next(entry for entry in client.get("/_dash-dependencies").json if output in entry["output"])
    parts = [name.rsplit(".", 1) for name in entry["output"].strip(".").split("...")]

    outputs = [{"id": name, "property": prop.partition("@")[0]} for name, prop in parts]

    def filled(wanted: list[dict[str, str]]) -> list[dict[str, Any]]:
        return [{**part, "value": values.get(f"{part['id']}.{part['property']}")} for part in wanted]

    return {
        "output": entry["output"],
        "outputs": outputs if entry["output"].startswith("..") else outputs[0],
        "inputs": filled(entry["inputs"]),
        "state": filled(entry["state"]),
        "changedPropIds": [changed],
    }


def page_values(client: Any) -> dict[str, Any]:
    """Return "id.property" -> value of the components of a page just opened."""
    values: dict[str, Any] = {}

    def visit(part: Any) -> None:
        if isinstance(part, list):
            for inner in part:
                visit(inner)
        elif isinstance(part, dict) and "props" in part:
            props = part["props"]
            values.update({f"{props.get('id')}.{name}": value for name, value in props.items()})
            visit(props.get("children"))

    visit(client.get("/_dash-layout").json)
    return values


def test_the_page_and_its_callbacks_answer(client: Any, points: Points) -> None:
    assert "resnet18" in client.get("/_dash-layout").text
    values = page_values(client) | {"coloring.value": "class"}
    answer = client.post("/_dash-update-component", json=body_of(client, "map-drawing.data", values, "network.value"))
    assert answer.status_code == 200
    response = answer.json["response"]
    drawing = response["map-drawing"]["data"]
    assert sorted(drawn_rows(drawing)) == list(range(80))
    _check_coordinates(client, points, drawing["coordinates"])
    values |= {"plotted.data": response["plotted"]["data"]}
    again = client.post("/_dash-update-component", json=body_of(client, "map-drawing.data", values, "coloring.value"))
    assert drawing["rows"] not in again.text


def _check_coordinates(client: Any, points: Points, address: str) -> None:
    answer = client.get(address)
    assert answer.status_code == 200
    assert "immutable" in answer.headers["Cache-Control"]
    sent = np.frombuffer(answer.data, dtype="<f4").reshape(2, -1)
    np.testing.assert_array_equal(sent.T, points.coordinates.astype(np.float32))


@pytest.mark.parametrize("query", ["", "?generation=resnet18+0", "?generation=resnet34+0", "?generation=../../etc+0"])
def test_coordinates_of_other_files_are_refused(client: Any, query: str) -> None:
    answer = client.get(f"/coordinates{query}")
    assert answer.status_code == 404
    assert answer.data


def test_every_callback_answers_a_page_just_opened(client: Any) -> None:
    """The requests are those of the browser, with all inputs from the layout."""
    values = page_values(client) | {"view.value": "compare"}
    for entry in client.get("/_dash-dependencies").json:
        if entry["clientside_function"] is None and "training" not in entry["output"]:
            first = entry["inputs"][0]
            body = body_of(client, entry["output"], values, f"{first['id']}.{first['property']}")
            answer = client.post("/_dash-update-component", json=body)
            assert answer.status_code in (200, 204), entry["output"]


def test_results_with_old_keys_open(source: Source, tmp_path: Path) -> None:
    """The page, the picker of batch sizes and the controls that the URL sets read the networks and studies."""
    params = tmp_path / "params.yaml"
    params.write_text(json.dumps(with_old_keys(digits_tree())))
    client: Any = make_app(source, params_file=params).server.test_client()
    assert '"id":"network"' in client.get("/_dash-layout").text.replace(" ", "")
    for output, values in (
        ("study-batch.options", {"study.value": "digits"}),
        ("training.children", {"study.value": "digits"}),
        ("coloring.value", {"url.search": ""}),
    ):
        body = body_of(client, output, values, next(iter(values)))
        assert client.post("/_dash-update-component", json=body).status_code == 200, output


def test_thumbnail(client: Any, data: DataPaths) -> None:
    answer = client.get("/thumbnail/7.png")
    assert answer.status_code == 200
    assert answer.mimetype == "image/png"
    assert "max-age" in answer.headers["Cache-Control"]
    pixels = np.asarray(Image.open(io.BytesIO(answer.data)))
    np.testing.assert_array_equal(pixels, np.load(data.images("train"))[7])


@pytest.mark.parametrize(
    "name", ["80.png", "-1.png", "1e2.png", "x.png", "7", "9" * 40 + ".png", "..%2f..%2fparams.yaml", "7.png/x"]
)
def test_no_such_thumbnail(client: Any, name: str) -> None:
    assert client.get(f"/thumbnail/{name}").status_code == 404


def test_thumbnail_without_images_says_what_to_run(tmp_path: Path) -> None:
    app = make_app(Source(DataPaths(root=tmp_path)), params_file=_PARAMS)
    answer = app.server.test_client().get("/thumbnail/0.png")
    assert answer.status_code == 404
    assert str(tmp_path) in answer.text
    assert answer.headers["Cache-Control"] == "no-store"


def test_a_thumbnail_belongs_to_the_files_of_the_page(client: Any, data: DataPaths, points: Points) -> None:
    address = picture(points, 7).to_plotly_json()["props"]["src"]
    assert client.get(address).status_code == 200
    write_array(data.images("train"), np.zeros((80, 8, 8, 3), dtype=np.uint8))
    answer = client.get(address)
    assert answer.status_code == 404
    assert answer.headers["Cache-Control"] == "no-store"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _listening(port: int) -> list[str]:
    """Return the local addresses of sockets that listen on `port`, in the notation of the kernel."""
    lines = [line.split() for kind in ("tcp", "tcp6") for line in Path(f"/proc/net/{kind}").read_text().splitlines()]
    return [line[1].split(":")[0] for line in lines if line[1].endswith(f":{port:04X}") and line[3] == "0A"]


def test_listens_on_loopback_whatever_the_environment_says(data: DataPaths, tmp_path: Path) -> None:
    port = _free_port()
    environment = {**os.environ, "HOST": "0.0.0.0", "PORT": "1", "DASH_DEBUG": "true", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "viz", "--port", str(port), "--params", str(_PARAMS), "--data", str(data.root)]
    with (tmp_path / "log").open("w+") as log:
        process = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=log, stderr=log)
        try:
            deadline = time.monotonic() + 120
            while not _listening(port):
                assert process.poll() is None, (tmp_path / "log").read_text()
                assert time.monotonic() < deadline
                time.sleep(0.1)
            assert _listening(port) == ["0100007F"]
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=30) as answer:
                assert b'"ui":false' in answer.read()
        finally:
            process.terminate()
            process.wait(30)


def test_bad_command_lines_and_params_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        busy = taken.getsockname()[1]
        for arguments, named in (
            (["--params", str(tmp_path / "none.yaml")], "none.yaml: no such file"),
            (["--params", str(_PARAMS), "--port", "70000"], "--port: 70000"),
            (["--params", str(_PARAMS), "--host", "ä..b"], "of ä..b is not available"),
            (["--params", str(_PARAMS), "--port", str(busy)], f"--port: {busy}"),
        ):
            assert main(arguments) == 2
            error = capsys.readouterr().err
            assert named in error
            assert error.count("\n") == 1
    with pytest.raises(SystemExit) as ended:
        main(["--prot", "1"])
    assert ended.value.code == 2


def test_decisions_are_accepted_only_as_json(client: Any, data: DataPaths, points: Points) -> None:
    command = {"action": "drop", "rows": [7], "generation": points.generation, "page": "p", "note": ""}
    before = Source(data).overrides_stamp()
    answer = client.post("/decide", json=command)
    assert answer.json["message"]
    assert answer.json["edited"] == Source(data).overrides_stamp() != before
    assert [line.path for line in read_overrides(data.overrides)] == [points.paths[7].as_py()]
    for damaged in (b"", b"[]", b"{", b"null"):
        assert client.post("/decide", data=damaged, content_type="application/json").json["failed"]
    assert client.post("/decide", data=json.dumps(command), content_type="text/plain").json["failed"]
    assert client.post("/decide", json=command, headers={"Origin": "http://evil.example"}).status_code == 403


def test_a_million_selected_images_are_read_and_more_are_not(client: Any) -> None:
    selection = json.dumps(list(range(1_000_000))).encode()
    assert client.post("/decide", data=selection, content_type="application/json").json["failed"]
    body = b'"' + b" " * 16_000_000 + b'"'
    for url in ("/_dash-update-component", "/decide"):
        assert client.post(url, data=body, content_type="application/json").status_code == 413
        # Without a length, as by chunks.
        chunks = {"input_stream": io.BytesIO(body), "environ_overrides": {"wsgi.input_terminated": True}}
        assert client.post(url, content_type="application/json", **chunks).status_code == 413


@pytest.mark.parametrize(
    "body",
    [b"[" * 100_000, b'{"a":' * 100_000, b"{", b"\xff", b"[]", b"null", b'"a"', b"7"],
    ids=["lists", "objects", "cut", "bytes", "list", "null", "text", "number"],
)
def test_json_that_cannot_be_read_is_answered_without_a_traceback(client: Any, body: bytes) -> None:
    answer = client.post("/_dash-update-component", data=body, content_type="application/json")
    assert answer.status_code == 400
    assert "Traceback" not in answer.text


@pytest.mark.parametrize("path", ["os/environ", "no_such_package/a.js", "dash/../../etc/passwd", "dash/none.js"])
def test_files_that_are_not_of_the_page_are_not_found(client: Any, path: str) -> None:
    answer = client.get(f"/_dash-component-suites/{path}")
    assert answer.status_code == 404
    assert len(answer.text.splitlines()) == 1


def test_each_page_reads_the_parameters_again(source: Source, tmp_path: Path) -> None:
    params = write_params(tmp_path)
    client: Any = make_app(source, params_file=params).server.test_client()
    assert '"resnet34"' not in client.get("/_dash-layout").text
    params.write_text(params.read_text().replace("[resnet18]", "[resnet34, resnet18]"))
    assert '"resnet34"' in client.get("/_dash-layout").text
    # Built now, as the page lists its callbacks when it opens.
    restore = body_of(client, "coloring.value", {"url.search": ""}, "url.search")
    params.write_text("{")
    assert "params.yaml" in client.get("/_dash-layout").text
    assert client.post("/_dash-update-component", json=restore).status_code == 204


def test_a_page_does_not_draw_replaced_files(client: Any, data: DataPaths) -> None:
    values = page_values(client) | {"focus.data": 3}
    plotted = client.post("/_dash-update-component", json=body_of(client, "map-drawing.data", values, "network.value"))
    values["plotted.data"] = plotted.json["response"]["plotted"]["data"]
    write_network(data, NETWORK, seed=1)
    entries = client.get("/_dash-dependencies").json
    of_cells = next(entry["output"] for entry in entries if entry["inputs"][0]["id"] == "matrix-cell")
    for output, changed in (
        ("..map-drawing.data", "coloring.value"),
        ("..other-drawing.data", "view.value"),
        ("grid.children", "list.value"),
        ("card.children", "map-focus.data"),
        ("map-drawing.data@", "selection.data"),
        ("matrix.children", "classes.value"),
        (of_cells, "matrix-cell.data"),
        ("curve.figure", "settings.data"),
        ("threshold.value", "share.value"),
    ):
        answer = client.post("/_dash-update-component", json=body_of(client, output, values, changed))
        assert answer.status_code == 204, output


@pytest.mark.slow
def test_torch_is_never_imported() -> None:
    modules = ("viz.app", "viz.commands.serve", "viz.notebook", "viz.__main__")
    closure = {name for module in modules for name in import_closure(module)}
    assert not [name for name in closure if name.startswith(("pipeline.training", "pipeline.models"))]
    script = f"import sys, {', '.join(modules)}; print(sorted({{'torch', 'torchvision', 'dvc'}} & set(sys.modules)))"
    answer = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert answer.stdout == "[]\n"
