"""Webhooks of tests: a real HTTPS endpoint with an answer for every path."""

from __future__ import annotations

import base64
import datetime
import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from phalanx.local.api.tls import load_identity

Json = dict[str, Any]
Answer = Callable[[Json], Json]


class Endpoint:
    """Webhooks by path; keeps what it was asked."""

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {}
        self.asked: list[tuple[str, Json]] = []
        now = datetime.datetime.now(datetime.UTC)
        identity = load_identity(None, ("hooks.tools.svc",), now)
        self.ca = base64.b64encode(identity.ca).decode()
        self.leaf = base64.b64encode(identity.server.certificate).decode()  # its own certificate, without the issuer
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                path = self.path.partition("?")[0]
                endpoint.asked.append((path, review["request"]))
                response = endpoint.answers[path](review["request"])
                body = json.dumps({**review, "response": {"uid": review["request"]["uid"], **response}}).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                return

        class Server(ThreadingHTTPServer):
            def handle_error(self, *_: Any) -> None:
                """Clients go away in the middle: that is what some of these tests are about."""

        self.server = Server(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.server.socket = identity.context().wrap_socket(self.server.socket, server_side=True)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def of(self, path: str) -> list[Json]:
        return [request for called, request in self.asked if called == path]
