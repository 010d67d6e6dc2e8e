"""Who may talk to the server: this machine, or whoever has the token; and never a page from elsewhere."""

import hmac
import socket
from typing import Any

from flask import Flask, Response, request

from pipeline.errors import InputError

LOOPBACK = "127.0.0.1"
LOOPBACK_NAMES = (LOOPBACK, "localhost")

_COOKIE = "batchsieve-token"

# The browser itself refuses whatever is not from here. Dash has inline scripts; plotly's WebGL compiles its own.
_POLICY = (
    "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; frame-ancestors 'self' "
    "http://127.0.0.1:* http://localhost:*"
)


def protect(server: Flask, *, token: str | None) -> None:
    """Check every request before it is answered.

    Args:
        token: that a browser must bring, in the address once and then in a cookie; None on the loopback
            address, where the host's name is checked instead.
    """
    if token is None:
        # A page elsewhere that has its own name point here does not get through.
        server.config["TRUSTED_HOSTS"] = list(LOOPBACK_NAMES)

    @server.before_request
    def check() -> tuple[str, int] | None:
        origin = request.headers.get("Origin")
        # Compared as text: what a stranger sends need not be an address.
        ours = {f"{scheme}://{request.host}" for scheme in ("http", "https")}
        if request.method not in ("GET", "HEAD") and origin is not None and origin not in ours:
            return "requests from other pages are refused", 403
        if token is not None and not _has_token(token):
            return "the address needs ?token=..., as printed where the server was started", 403
        return None

    @server.after_request
    def restrict(response: Response) -> Response:
        response.headers["Content-Security-Policy"] = _POLICY
        response.headers["Referrer-Policy"] = "no-referrer"
        response.headers["X-Content-Type-Options"] = "nosniff"
        # To whoever has it already; an error's answer comes here too.
        if token is not None and _has_token(token):
            response.set_cookie(_COOKIE, token, httponly=True, samesite="Strict")
        return response


def check_port(host: str, port: int, *, name: str) -> None:
    """See that a server can listen there.

    Args:
        name: of the option that gave the port, for the error.

    Raises:
        InputError: it cannot.
    """
    if not 1 <= port <= 65535:
        raise InputError(f"{name}: {port} is no port; give one from 1024 to 65535")
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        # As the server does: a port that was in use a moment ago is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise InputError(
                f"{name}: {port} of {host} cannot be had ({error.strerror}); give another, e.g. {port % 65535 + 1}"
            ) from None


def _has_token(token: str) -> bool:
    given: Any = request.args.get("token") or request.cookies.get(_COOKIE) or ""
    return hmac.compare_digest(given.encode(), token.encode())
