from typing import Any

import pytest
from flask import Flask
from hypothesis import given
from hypothesis import strategies as st

from viz.security import cookie_name, protect

_TOKEN = "a-token-of-this-start"


def _client(token: str | None = None) -> Any:
    server = Flask(__name__)
    protect(server, token=token, callbacks={})
    server.add_url_rule("/", view_func=lambda: "here", methods=["GET", "POST"])

    def broken() -> str:
        raise RuntimeError

    server.add_url_rule("/broken", view_func=broken)
    return server.test_client()


@pytest.mark.parametrize("host", ["127.0.0.1:8050", "localhost", "localhost:9"])
def test_loopback_host_names_are_accepted(host: str) -> None:
    assert _client().get("/", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "10.0.0.1:8050", "localhost.evil.example"])
def test_other_host_names_are_rejected(host: str) -> None:
    assert _client().get("/", headers={"Host": host}).status_code == 400
    assert _client().post("/", headers={"Host": host, "Origin": f"http://{host}"}).status_code == 400


@pytest.mark.parametrize("origin", [None, "http://localhost:8050"])
def test_this_page_and_programs_may_write(origin: str | None) -> None:
    headers = {"Host": "localhost:8050"} | ({} if origin is None else {"Origin": origin})
    assert _client().post("/", headers=headers).status_code == 200


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example", "null", "", "http://localhost:8051", "http://localhost", "http://localhost:8050.evil.example",
        "http://evil.example@localhost:8050", "http://[", "file://localhost:8050",
    ],
)  # fmt: skip
@pytest.mark.parametrize("token", [None, _TOKEN])
def test_other_origins_cannot_write(origin: str, token: str | None) -> None:
    client = _client(token)
    headers = {"Host": "localhost:8050", "Origin": origin}
    answer = client.post(f"/?token={token}", headers=headers)
    assert answer.status_code == 403
    # GET changes nothing, and browsers hide the answer from the other page.
    assert client.get(f"/?token={token}", headers=headers).status_code == 200


def test_the_token_is_required_once_and_then_sent_as_a_cookie() -> None:
    client = _client(_TOKEN)
    assert client.get("/").status_code == 403
    first = client.get(f"/?token={_TOKEN}")
    assert first.status_code == 200
    cookie = first.headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert client.get("/").status_code == 200
    assert client.post("/").status_code == 200
    assert _client(_TOKEN).get("/").status_code == 403


@given(given=st.text().filter(lambda text: text != _TOKEN))
def test_a_wrong_token_is_rejected(given: str) -> None:
    client = _client(_TOKEN)
    assert client.get("/", query_string={"token": given}).status_code == 403
    client.set_cookie(cookie_name(_TOKEN), "wrong")
    assert client.get("/").status_code == 403


def test_servers_of_one_host_keep_their_cookies_apart() -> None:
    names = {_client(token).get(f"/?token={token}").headers["Set-Cookie"].partition("=")[0] for token in ("a", "b")}
    assert len(names) == 2


def test_a_wrong_token_in_the_url_wins_over_the_cookie() -> None:
    client = _client(_TOKEN)
    client.get(f"/?token={_TOKEN}")
    assert client.get("/?token=wrong").status_code == 403


@pytest.mark.parametrize("path", ["/", "/none", "/broken"])
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
def test_responses_do_not_contain_the_token(path: str, method: str) -> None:
    client = _client(_TOKEN)
    for headers in ({}, {"Origin": "http://["}, {"Host": "["}, {"Cookie": f"{cookie_name(_TOKEN)}=\udcff"}):
        answer = client.open(path, method=method, headers=headers)
        assert answer.status_code in (400, 403)
        assert "Set-Cookie" not in answer.headers
        assert _TOKEN not in answer.text


def test_tokens_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []

    def compare(a: bytes, b: bytes) -> bool:
        compared.append((a, b))
        return False

    monkeypatch.setattr("hmac.compare_digest", compare)
    assert _client(_TOKEN).get("/?token=x").status_code == 403
    assert (b"x", _TOKEN.encode()) in compared
