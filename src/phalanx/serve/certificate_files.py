"""Certificates created elsewhere (cert-manager, an operator): read from a directory, again after each change.

Existing connections keep their certificate; new connections get the new one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

from cryptography import x509

from phalanx.base.clock import Clock, SystemClock
from phalanx.base.errors import ConfigProblem
from phalanx.local.api.tls import Identity, Pair

log = logging.getLogger(__name__)

LOOK_EVERY = 30.0  # seconds; certificates are renewed days before they expire


class CertificateFiles:
    """tls.crt and tls.key as in a Secret of type kubernetes.io/tls, and ca.crt if it exists."""

    def __init__(self, directory: Path, option: str, clock: Clock | None = None) -> None:
        self._directory, self._option, self._clock = directory, option, clock or SystemClock()
        self._reported: Identity | None = None  # the expired certificate that was logged
        self.identity = self._read_identity()
        try:
            self.context: ssl.SSLContext = self.identity.context()
        except ssl.SSLError as error:
            raise self._unusable(error) from None
        self._refused: Identity | None = None
        self._report_expired()

    def _read_identity(self) -> Identity:
        try:
            certificate, key = ((self._directory / name).read_bytes() for name in ("tls.crt", "tls.key"))
            authority = b""
            with contextlib.suppress(FileNotFoundError):
                authority = (self._directory / "ca.crt").read_bytes()
        except OSError as error:
            where = error.filename or self._directory
            raise ConfigProblem(self._option, f"cannot read {where}: {error.strerror}") from None
        return Identity(authority, Pair(key, certificate))

    def _unusable(self, error: ssl.SSLError) -> ConfigProblem:
        where = self._directory
        return ConfigProblem(
            self._option, f"{where}/tls.crt and tls.key are no certificate and its key in PEM: {error.reason or error}"
        )

    def _report_expired(self) -> None:
        """Log once that the certificate expired; stopping the process would not help."""
        try:
            until = x509.load_pem_x509_certificate(self.identity.server.certificate).not_valid_after_utc
        except ValueError:
            return
        if until.timestamp() > self._clock.now() or self._reported == self.identity:
            return
        self._reported = self.identity
        log.error(
            "the certificate in %s (%s) expired at %s, so that clients, the API server too, do not connect: renew"
            " tls.crt and tls.key there; new files are read within %.0f s, without a restart",
            self._directory,
            self._option,
            until.isoformat(),
            LOOK_EVERY,
        )

    def refresh(self) -> bool:
        """Return True if another certificate is used from now on. Invalid or incomplete files are logged and
        ignored."""
        try:
            found = self._read_identity()
        except ConfigProblem as problem:
            log.warning("the certificate in use stays: %s", problem)
            return False
        if found in (self.identity, self._refused):
            return False
        try:
            found.context()  # loaded as a trial: a failed load would damage the context in use
            found.load_into(self.context)
        except ssl.SSLError as error:
            self._refused = found
            log.warning("the certificate in use stays: %s", self._unusable(error))
            return False
        self.identity, self._refused = found, None
        log.info("the certificate in %s was renewed", self._directory)
        return True

    async def follow(self, renewed: Callable[[Identity], Awaitable[object]] | None = None) -> None:
        """Check the files until cancelled; call `renewed` with every new certificate."""
        while True:
            await asyncio.sleep(LOOK_EVERY)
            if self.refresh() and renewed is not None:
                await renewed(self.identity)
            self._report_expired()
