"""Check Host and Origin of requests, and add security headers to answers.

Other pages in the same browser can reach a loopback port. They cannot read our cookie (HttpOnly, SameSite=Strict), but
pages on other loopback ports count as the same site, and a name of theirs may point here: so Host and Origin are
checked, too.
"""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from aiohttp import web

from phalanx.base.errors import Forbidden

HEADERS = {
    "Server": "phalanx",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


def check(request: web.Request) -> None:
    """Check that a request comes from the dashboard's own page on a loopback name. Raises Forbidden."""
    host = request.headers.get("Host", "")
    if not _loopback(host):
        raise Forbidden(
            f"the dashboard answers on loopback names only, not as {host[:100]!r}: open http://127.0.0.1:PORT/, "
            "through a tunnel such as kubectl port-forward if it runs elsewhere"
        )
    origin = request.headers.get("Origin")
    if origin is not None and origin != f"http://{host}":
        raise Forbidden("the dashboard answers its own page only; this request comes from another one")
    if origin is None and request.method not in ("GET", "HEAD"):
        raise Forbidden("a request that is not a GET needs an Origin header: use the page")
    if request.headers.get("Sec-Fetch-Site", "none") not in ("same-origin", "none") and not _navigation(request):
        raise Forbidden("the dashboard answers its own page only; this request comes from another site")


def _navigation(request: web.Request) -> bool:
    """Return True if the request follows a link to the page itself, which shows nothing without a login."""
    return request.method == "GET" and request.headers.get("Sec-Fetch-Mode") == "navigate"


def _loopback(host: str) -> bool:
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
