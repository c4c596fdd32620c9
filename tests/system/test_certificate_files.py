"""A certificate that is renewed on the disk is shown without a restart; one that cannot be used changes nothing."""

from __future__ import annotations

import asyncio
import datetime
import logging
import ssl
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from phalanx.base.errors import ConfigProblem
from phalanx.kube.client import HttpClient
from phalanx.kube.config import Connection
from phalanx.local.api.tls import Identity, load_identity
from phalanx.serve import certificate_files
from phalanx.serve.callers import Callers
from phalanx.serve.certificate_files import CertificateFiles
from phalanx.serve.health import HealthServer, Secure
from phalanx.serve.settings import Listen


def write(directory: Path) -> Identity:
    made = load_identity(None, ("localhost",), datetime.datetime.now(datetime.UTC))
    (directory / "tls.key").write_bytes(made.server.key)
    (directory / "tls.crt").write_bytes(made.server.certificate)
    (directory / "ca.crt").write_bytes(made.ca)
    return made


def shown(port: int) -> str:
    return ssl.get_server_certificate(("127.0.0.1", port)).strip()


def pem(identity: Identity) -> str:
    return identity.server.certificate.decode().strip()


def test_a_renewed_certificate_is_shown_to_new_connections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificate_files, "LOOK_EVERY", 0.01)
    first = write(tmp_path)
    announced: asyncio.Queue[Identity] = asyncio.Queue()

    async def scenario() -> None:
        files = CertificateFiles(tmp_path, "--secure-tls-dir")
        health = HealthServer(CollectorRegistry())
        callers = Callers(HttpClient(Connection("https://127.0.0.1:1", None)))
        await health.start_secure(Secure(Listen("127.0.0.1", 0), files.context, callers))
        following = asyncio.create_task(files.follow(announced.put))
        try:
            assert await asyncio.to_thread(shown, health.secure_port) == pem(first)
            second = write(tmp_path)
            renewed = await asyncio.wait_for(announced.get(), 10)
            while renewed != second:  # it was read between two of the three files
                renewed = await asyncio.wait_for(announced.get(), 10)
            assert await asyncio.to_thread(shown, health.secure_port) == pem(second)
        finally:
            following.cancel()
            await health.stop()

    asyncio.run(scenario())


@pytest.mark.parametrize("name", ["tls.crt", "tls.key"])
@pytest.mark.parametrize("content", [None, b"", b"not a certificate", "another's"])
def test_files_that_cannot_be_used_leave_the_certificate_there_is(
    name: str, content: bytes | str | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = write(tmp_path)
    files = CertificateFiles(tmp_path, "--tls-dir")
    if content is None:
        (tmp_path / name).unlink()
    elif isinstance(content, bytes):
        (tmp_path / name).write_bytes(content)
    else:
        other = load_identity(None, ("localhost",), datetime.datetime.now(datetime.UTC)).server
        (tmp_path / name).write_bytes(other.key if name == "tls.key" else other.certificate)
    with caplog.at_level(logging.WARNING):
        assert not files.refresh()
    assert "the certificate in use stays: --tls-dir" in caplog.text
    assert files.identity == first
    with pytest.raises(ConfigProblem, match="--tls-dir"):  # at a start it is said at once
        CertificateFiles(tmp_path, "--tls-dir")

    second = write(tmp_path)
    assert files.refresh() and files.identity == second


def test_an_expired_certificate_is_reported_once_with_what_to_do(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificate_files, "LOOK_EVERY", 0.001)
    long_ago = datetime.datetime(2001, 1, 1, tzinfo=datetime.UTC)
    made = load_identity(None, ("localhost",), long_ago)
    (tmp_path / "tls.key").write_bytes(made.server.key)
    (tmp_path / "tls.crt").write_bytes(made.server.certificate)

    async def scenario() -> None:
        files = CertificateFiles(tmp_path, "--tls-dir")
        renewed: asyncio.Queue[Identity] = asyncio.Queue()
        following = asyncio.create_task(files.follow(renewed.put))
        write(tmp_path)
        await asyncio.wait_for(renewed.get(), 10)
        following.cancel()

    asyncio.run(scenario())
    (expired,) = [record.message for record in caplog.records if "expired at 20" in record.message]
    assert f"the certificate in {tmp_path} (--tls-dir)" in expired and "renew tls.crt and tls.key there" in expired
