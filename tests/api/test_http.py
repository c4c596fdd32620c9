"""The wire: credentials, sizes, slow and rude clients, shutdown."""

from __future__ import annotations

import asyncio
import socket
import ssl
import stat
import threading
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from phalanx.local.api.limits import Limits
from support.local_cluster import LocalCluster
from support.manifests import pod
from support.raw_http import ALONE, raw, request


@pytest.fixture(scope="module")
def strict(start_cluster: Callable[..., LocalCluster]) -> LocalCluster:
    """A server with little patience."""
    limits = Limits(header_seconds=0.5, body_seconds=0.5, idle_seconds=5, write_seconds=0.5, connections=20)
    return start_cluster(limits=limits, **ALONE)


def read_all(sock: ssl.SSLSocket) -> bytes:
    """Until the server closes."""
    received = b""
    while True:
        try:
            piece = sock.recv(65536)
        except (ConnectionResetError, ssl.SSLEOFError, ssl.SSLZeroReturnError):
            return received
        if not piece:
            return received
        received += piece


@pytest.mark.parametrize("token", ["", "wrong", "x" * 5000])
def test_without_the_token_nothing_is_answered(server: LocalCluster, token: str) -> None:
    reply = server.ask("GET", "/api/v1/pods", token=token)
    assert (reply.code, reply.json["reason"], reply.json["message"]) == (401, "Unauthorized", "Unauthorized")
    assert server.ask("GET", "/apis", token=token).code == 401


def test_a_service_account_may_come_in_until_it_is_deleted(server: LocalCluster, namespace: str) -> None:
    accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    server.create(accounts, {"metadata": {"name": "robot"}})
    token = server.create(f"{accounts}/robot/token", {})["status"]["token"]
    review = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
    said = server.ask("POST", review, {}, token=token)
    assert said.json["status"]["userInfo"]["username"] == f"system:serviceaccount:{namespace}:robot"
    server.delete(f"{accounts}/robot")
    assert server.ask("POST", review, {}, token=token).code == 401


def test_a_client_that_does_not_trust_our_authority_cannot_connect(server: LocalCluster) -> None:
    where = urlsplit(server.url)
    with (
        pytest.raises(ssl.SSLCertVerificationError),
        socket.create_connection((where.hostname, where.port)) as sock,
        ssl.create_default_context().wrap_socket(sock, server_hostname="127.0.0.1"),
    ):
        pass


def test_the_kubeconfig_is_private_and_complete(server: LocalCluster) -> None:
    assert stat.S_IMODE(server.kubeconfig.stat().st_mode) == 0o600
    config = yaml.safe_load(server.kubeconfig.read_text())
    assert config["clusters"][0]["cluster"]["server"] == server.url
    assert config["clusters"][0]["cluster"]["certificate-authority-data"]
    assert config["users"][0]["user"]["token"] == server.token


def test_a_restart_keeps_credentials_objects_and_revisions(
    tmp_path: Path, start_cluster: Callable[..., LocalCluster]
) -> None:
    data = tmp_path / "data"
    first = start_cluster(data=data, **ALONE)
    created = first.create("/api/v1/namespaces/default/pods", pod("kept"))
    token, ca = first.token, first.cluster.server.ca
    first.call(first.cluster.stop())
    second = start_cluster(data=data, **ALONE)
    assert (second.token, second.cluster.server.ca) == (token, ca)
    assert second.get("/api/v1/namespaces/default/pods/kept") == created
    for path in data.rglob("*"):
        if path.suffix in (".key", ".crt") or path.name == "token":
            assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


def test_a_body_beyond_three_mebibytes_is_refused_and_others_are_served(server: LocalCluster, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    reply = server.ask("POST", path, b" " * (3 * 1024 * 1024 + 1))
    assert (reply.code, reply.json["reason"]) == (413, "RequestEntityTooLarge")
    fits = {"metadata": {"name": "fits"}, "data": {"a": "x" * 1_000_000}}
    assert server.ask("POST", path, fits).code == 201


def test_an_endless_chunked_body_is_cut_off(server: LocalCluster, namespace: str) -> None:
    with raw(server) as sock:
        sock.sendall(request(server, f"POST /api/v1/namespaces/{namespace}/pods HTTP/1.1\nTransfer-Encoding: chunked"))
        chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
        try:
            for _ in range(64):
                sock.sendall(chunk)
        except (BrokenPipeError, ConnectionResetError, ssl.SSLError):
            pass
        answer = read_all(sock)
    assert b"413" in answer.split(b"\r\n")[0] or answer == b""  # closed before it could be read
    assert server.ask("GET", "/readyz").code == 200


def test_headers_beyond_the_limit_are_refused(server: LocalCluster) -> None:
    with raw(server) as sock:
        sock.sendall(request(server, "GET /api/v1/pods HTTP/1.1\nX-Long: " + "x" * 100_000))
        assert read_all(sock).startswith(b"HTTP/1.1 431")


def test_rubbish_gets_a_status_and_a_closed_connection(server: LocalCluster) -> None:
    with raw(server) as sock:
        sock.sendall(b"\x00\x01rubbish\r\n\r\n")
        answer = read_all(sock)
    assert answer.startswith(b"HTTP/1.1 400") and b'"kind":"Status"' in answer


def test_a_client_that_never_finishes_its_headers_is_cut_off(strict: LocalCluster) -> None:
    with raw(strict) as sock:
        sock.sendall(b"GET /api/v1/pods HTTP/1.1\r\nHost: x\r\n")
        assert read_all(sock) == b""


def test_a_connection_that_says_nothing_is_cut_off(strict: LocalCluster) -> None:
    with raw(strict) as sock:
        assert read_all(sock) == b""


def test_a_handshake_that_never_comes_is_cut_off(strict: LocalCluster) -> None:
    where = urlsplit(strict.url)
    with socket.create_connection((where.hostname, where.port), timeout=10) as sock:
        assert sock.recv(1) == b""


def test_a_body_that_never_comes_gets_a_timeout(strict: LocalCluster) -> None:
    with raw(strict) as sock:
        sock.sendall(request(strict, "POST /api/v1/namespaces/default/pods HTTP/1.1\nContent-Length: 100\n\n{"))
        head = sock.recv(65536)
    assert head.startswith(b"HTTP/1.1 504")


def test_too_many_connections_are_refused_and_the_rest_goes_on(strict: LocalCluster) -> None:
    kept = []
    try:
        for _ in range(20):
            sock = raw(strict)
            kept.append(sock)
            sock.sendall(request(strict, "GET /api/v1/namespaces?watch=true HTTP/1.1"))
            assert sock.recv(15).startswith(b"HTTP/1.1 200")
        with raw(strict) as refused:
            assert read_all(refused).startswith(b"HTTP/1.1 503")
        kept.pop().close()
        assert strict.ask("GET", "/version").code == 200
    finally:
        for sock in kept:
            sock.close()


def test_a_watcher_that_never_reads_is_cut_off_and_others_see_everything(strict: LocalCluster) -> None:
    path = "/api/v1/namespaces/default/configmaps"
    since = strict.get(path)["metadata"]["resourceVersion"]
    with raw(strict, timeout=30) as deaf, strict.watch(path, resourceVersion=since) as watch:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.sendall(request(strict, f"GET {path}?watch=true&resourceVersion={since} HTTP/1.1"))
        assert deaf.recv(100).startswith(b"HTTP/1.1 200")  # then never again
        store: Any = strict.cluster.server.context.store
        before = store.watchers
        seen: list[str] = []
        reader = threading.Thread(target=lambda: seen.extend(e[1]["metadata"]["name"] for e in watch.take(60)))
        reader.start()
        for number in range(60):
            body = {"metadata": {"name": f"big-{number:02}"}, "data": {"a": "x" * 200_000}}
            assert strict.ask("POST", path, body).code == 201
        reader.join(20)
        assert seen == [f"big-{number:02}" for number in range(60)]
        _until(lambda: store.watchers == before - 1)


def test_a_watch_that_is_closed_leaves_nothing_behind(server: LocalCluster, namespace: str) -> None:
    store: Any = server.cluster.server.context.store
    before = store.watchers
    with server.watch(f"/api/v1/namespaces/{namespace}/pods") as watch:
        assert watch.code == 200
        _until(lambda: store.watchers == before + 1)
    _until(lambda: store.watchers == before)


def test_stopping_ends_watches_cleanly(start_cluster: Callable[..., LocalCluster]) -> None:
    server = start_cluster(**ALONE)
    server.create("/api/v1/namespaces/default/pods", pod("a"))
    with server.watch("/api/v1/namespaces/default/pods") as watch:
        watch.take(1)
        server.call(server.cluster.stop())
        assert watch.next() is None


def test_requests_are_counted_in_the_metrics(server: LocalCluster, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/limitranges"
    server.get(path)
    server.ask("GET", f"{path}/nope")
    lines = server.ask("GET", "/metrics").body.decode().splitlines()
    ours = [line for line in lines if 'resource="limitranges"' in line and line.startswith("apiserver_request_total")]
    assert any('verb="list"' in line and 'code="200"' in line for line in ours)
    assert any('verb="get"' in line and 'code="404"' in line for line in ours)
    assert server.ask("GET", "/metrics", token="wrong").code == 401


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/namespaces/a%2Fb/pods",
        "/api/v1/pods?labelSelector=%FF%FE",
        "/api/v1/%00",
        "//api//v1//pods",
        "/api/v1/pods?limit=-1",
        "/api/v1/pods?limit=9e9",
    ],
)
def test_odd_paths_and_queries_get_an_answer(server: LocalCluster, path: str) -> None:
    reply = server.ask("GET", path)
    assert reply.code in (200, 400, 404) and reply.json["kind"]


def test_bytes_that_are_no_path_are_refused(server: LocalCluster) -> None:
    with raw(server) as sock:
        sock.sendall(b"GET /api/v1/\xff\xfe HTTP/1.1\r\nHost: x\r\n\r\n")
        assert read_all(sock).startswith(b"HTTP/1.1 400")


def test_no_secret_reaches_the_log(server: LocalCluster, namespace: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    server.ask("GET", "/api/v1/pods", token="guess")
    server.create(f"/api/v1/namespaces/{namespace}/pods", pod("a"))
    server.ask("POST", f"/api/v1/namespaces/{namespace}/pods", b"{")
    assert server.token not in caplog.text and "guess" not in caplog.text


def _until(condition: Callable[[], bool]) -> None:
    """Polls what only the server knows; fails loudly when it never comes true."""
    waiter = threading.Event()
    for _ in range(400):
        if condition():
            return
        waiter.wait(0.05)
    raise AssertionError("did not come true within 20 seconds")


def test_watchers_that_never_read_cost_one_piece_each_and_no_client_waits_for_them(
    start_cluster: Callable[..., LocalCluster],
) -> None:
    server = start_cluster(limits=Limits(write_seconds=1000), **ALONE)
    path = "/api/v1/namespaces/default/configmaps"
    server.create(path, {"metadata": {"name": "fat"}})
    dead = [raw(server) for _ in range(30)]
    for number, sock in enumerate(dead):
        shape = "" if number % 2 else "&labelSelector=nothing!=such"
        sock.sendall(request(server, f"GET {path}?watch=true&resourceVersion=0{shape} HTTP/1.1"))
        assert sock.recv(15).startswith(b"HTTP/1.1 200")
    size, changes = 200_000, 60
    for number in range(changes):
        server.patch(f"{path}/fat", {"data": {"text": f"{number:03}" * (size // 3)}})
    connections = server.cluster.server._server._state.connections  # type: ignore[union-attr]

    async def waiting() -> int:
        return sum(connection.transport.get_write_buffer_size() for connection in tuple(connections))

    assert server.call(waiting()) < len(dead) * 4 * size  # and not len(dead) * changes * size
    assert server.get(f"{path}/fat")["data"]["text"].startswith("059")
    for sock in dead:
        sock.close()


def test_nothing_is_encoded_for_a_watcher_that_is_gone(server: LocalCluster, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    server.create(path, {"metadata": {"name": "fat"}})
    since = server.get(path)["metadata"]["resourceVersion"]
    for number in range(40):
        server.patch(f"{path}/fat", {"data": {"text": f"{number:03}" * 60_000}})
    made = 0

    async def scenario() -> None:
        nonlocal made
        app = server.cluster.server._app
        assert app is not None
        gone = asyncio.Event()

        async def receive() -> dict[str, object]:
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: MutableMapping[str, Any]) -> None:
            nonlocal made
            if message.get("body"):
                made += len(message["body"])
                gone.set()  # from here on sending does nothing and never waits, as with a connection that was cut

        headers = [(b"authorization", f"Bearer {server.token}".encode())]
        query = f"watch=true&resourceVersion={since}".encode()
        scope = {"type": "http", "method": "GET", "path": path, "query_string": query, "headers": headers}
        await app(scope, receive, send)

    server.call(scenario())
    assert 0 < made <= 5 * 200_000, "each of the 40 versions has 180 kB"
