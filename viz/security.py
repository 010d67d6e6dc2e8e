"""Access to the server: by this machine or with a token, and never by pages of other origins."""

import hashlib
import hmac
import socket
from collections.abc import Mapping
from typing import Any

from flask import Flask, Response, request

from pipeline.artifacts.untrusted import MAX_DEPTH, is_deeper
from pipeline.errors import InputError
from viz.schemas import is_valid

LOOPBACK = "127.0.0.1"
LOOPBACK_NAMES = (LOOPBACK, "localhost")

# The browser blocks all other origins. Dash needs inline scripts, and WebGL of plotly compiles scripts.
_POLICY = (
    "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; frame-ancestors 'self' "
    "http://127.0.0.1:* http://localhost:*"
)

_CALLBACKS = "/_dash-update-component"

# A selection of a million images takes 8 MB.
_MAX_BODY_BYTES = 16_000_000


def protect(server: Flask, *, token: str | None, callbacks: Mapping[str, Mapping[str, Any]]) -> None:
    """Check every request before it is answered.

    Args:
        server: to protect.
        token: that requests must have, first in the URL and then in a cookie; None for the loopback address,
            where the host name is checked instead.
        callbacks: `Dash.callback_map`, which is read at each request, since callbacks are registered later.
    """
    if token is None:
        # This stops DNS rebinding: pages whose host name resolves to this machine.
        server.config["TRUSTED_HOSTS"] = list(LOOPBACK_NAMES)
    # Larger bodies are answered with 413 and not read.
    server.config["MAX_CONTENT_LENGTH"] = _MAX_BODY_BYTES

    @server.before_request
    def check() -> tuple[str, int] | None:
        origin = request.headers.get("Origin")
        # Compared as text, as the header may be no valid URL.
        allowed = {f"{scheme}://{request.host}" for scheme in ("http", "https")}
        if request.method not in ("GET", "HEAD") and origin is not None and origin not in allowed:
            return "requests from other origins are refused", 403
        if token is not None and not _has_token(token):
            return "the URL needs ?token=..., as printed when the server started", 403
        try:
            # Flask keeps what it parsed. What is not JSON is for the view to answer.
            body = request.get_json(silent=True)
            is_deep = is_deeper(body, MAX_DEPTH)
        except RecursionError:
            is_deep = True
        if is_deep:
            return "the JSON of this request is nested too deeply", 400
        # Dash answers a request that the page does not send with a traceback.
        if request.path == _CALLBACKS and request.method == "POST" and (problem := _problem(body, callbacks)):
            return problem, 400
        return None

    @server.after_request
    def restrict(response: Response) -> Response:
        response.headers["Content-Security-Policy"] = _POLICY
        response.headers["Referrer-Policy"] = "no-referrer"
        response.headers["X-Content-Type-Options"] = "nosniff"
        # Only to clients that have the token: error responses pass here too.
        if token is not None and _has_token(token):
            response.set_cookie(cookie_name(token), token, httponly=True, samesite="Strict")
        return response


def check_port(host: str, port: int, *, name: str) -> None:
    """Check that a server can listen at this address.

    Args:
        host: name or address.
        port: 1 to 65535.
        name: of the option, for the error.

    Raises:
        InputError: the port is invalid or not available.
    """
    if not 1 <= port <= 65535:
        raise InputError(f"{name}: {port} is not a port; choose one from 1024 to 65535")
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        # As the server does: a port that was just closed counts as free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except (OSError, TypeError) as error:
            # A name that no host can have, such as `ä..b`, is a TypeError: "encoding of hostname failed".
            reason = getattr(error, "strerror", None) or error
            raise InputError(
                f"{name}: {port} of {host} is not available ({reason}); choose another, e.g. {port % 65535 + 1}"
            ) from None


def cookie_name(token: str) -> str:
    """Return the name of the cookie of a token; browsers send the cookies of one server to all ports of its host."""
    return f"batchsieve-{hashlib.sha256(token.encode()).hexdigest()[:12]}"


def _has_token(token: str) -> bool:
    sent: Any = request.args.get("token") or request.cookies.get(cookie_name(token)) or ""
    return hmac.compare_digest(sent.encode(), token.encode())


def _problem(body: object, callbacks: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Return what is wrong with the body of a request for a callback; None for what the page sends."""
    if not isinstance(body, dict):
        return "the body of this request is no JSON object"
    output = body.get("output")
    callback = callbacks.get(output) if isinstance(output, str) else None
    # Callbacks that run in the browser have no function.
    if callback is None or "callback" not in callback:
        return "output: no callback of this page"
    for name in ("inputs", "state"):
        if _properties(body.get(name, [])) != _properties(callback[name]):
            return f"{name}: not those of the callback"
        for control in body.get(name, []):
            sent = f"{control['id']}.{control['property']}"
            if not is_valid(sent, control.get("value")):
                return f"{sent}: no value of this control"
    if not callback["no_output"] and not _are_outputs(body.get("outputs"), callback["output"]):
        return "outputs: not those of the callback"
    changed = body.get("changedPropIds", [])
    names = [f"{control['id']}.{control['property']}" for control in callback["inputs"]]
    if not isinstance(changed, list) or not all(name in names for name in changed):
        return "changedPropIds: no list of inputs of the callback"
    return None


def _properties(controls: object) -> list[tuple[Any, Any]] | None:
    """Return id and property of each control; None if it is no list of controls."""
    if not isinstance(controls, list) or not all(isinstance(control, dict) for control in controls):
        return None
    return [(control.get("id"), control.get("property")) for control in controls]


def _are_outputs(sent: object, declared: Any) -> bool:
    """Return whether a request names the outputs of a callback: one, or a list."""
    several = isinstance(declared, list | tuple)
    if several != isinstance(sent, list):
        return False
    properties = _properties(sent if several else [sent])
    outputs = [(output.component_id, output.component_property) for output in (declared if several else [declared])]
    # Where several callbacks have one output, the page adds `@` and a hash.
    return properties is not None and outputs == [(name, str(prop).partition("@")[0]) for name, prop in properties]
