"""Requests byte by byte on a TLS socket, and the media types that clients ask for."""

from __future__ import annotations

import http.client
import socket
import ssl
from urllib.parse import urlsplit

from support.local_cluster import LocalCluster

ALONE = {"run_nodes": False, "run_controllers": False, "run_scheduler": False}


def raw(server: LocalCluster, timeout: float = 10) -> ssl.SSLSocket:
    where = urlsplit(server.url)
    context = ssl.create_default_context(cadata=(server.cluster.server.ca or b"").decode())
    sock = socket.create_connection((where.hostname, where.port), timeout=timeout)
    return context.wrap_socket(sock, server_hostname=where.hostname)


def request(server: LocalCluster, text: str) -> bytes:
    head, _, body = text.partition("\n\n")
    lines = head.replace("\n", "\r\n")
    return f"{lines}\r\nHost: x\r\nAuthorization: Bearer {server.token}\r\n\r\n{body}".encode()


def version_code(server: LocalCluster, sock: ssl.SSLSocket) -> int:
    """One whole exchange on a connection that stays open."""
    sock.sendall(request(server, "GET /version HTTP/1.1"))
    reply = http.client.HTTPResponse(sock)
    reply.begin()
    reply.read()
    return reply.status


TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


PARTIAL = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
