"""Settings of the local cluster, checked before anything starts."""

from __future__ import annotations

import ipaddress
import os
import re
import socket
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import msgspec

from phalanx.base.errors import ConfigProblem
from phalanx.model.gates import Gates
from phalanx.serve.clusters import Home, home_of

MEMORY = ":memory:"
ALWAYS_ALLOW = "AlwaysAllow"
RBAC = "RBAC"
DEFAULT_DATA = "data"
DEFAULT_LISTEN = "127.0.0.1:7443"


def packaged_text(name: str, checkout: str) -> str:
    """Return a file that the wheel holds as phalanx/serve/`name`, and a checkout at the path `checkout`."""
    packaged = files("phalanx.serve") / name
    return packaged.read_text() if packaged.is_file() else (Path(__file__).parents[3] / checkout).read_text()


@dataclass(frozen=True, slots=True)
class Listen:
    host: str
    port: int

    @classmethod
    def parse(cls, text: str, option: str = "--listen") -> Listen:
        host, separator, port = text.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not separator or not host or not port.isdigit() or int(port) > 65535:
            raise ConfigProblem(option, f"{text!r} is not HOST:PORT, for example {DEFAULT_LISTEN}")
        return cls(host, int(port))

    @property
    def loopback(self) -> bool:
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def cannot_listen(option: str, host: str, port: int, problem: OSError) -> ConfigProblem:
    """Return the problem with the system's error text, without asyncio's additions."""
    why = os.strerror(problem.errno) if problem.errno else str(problem)
    return ConfigProblem(option, f"cannot listen on {host}:{port}: {why}; choose another address, such as {host}:0")


class ServerSettings(msgspec.Struct, frozen=True):
    data: Path | None = None  # None: in memory
    listen: Listen = msgspec.field(default_factory=lambda: Listen.parse(DEFAULT_LISTEN))
    kubeconfig: Path | None = None  # None: in the data directory
    plain_http: bool = False  # no TLS and no token
    gates: Gates = msgspec.field(default_factory=Gates)
    name: str = ""  # "": known only by its data directory
    event_ttl: float = 3600.0  # seconds that events are kept after their last change; 0: for ever
    authorization: str = ALWAYS_ALLOW  # or RBAC
    audit_log: Path | None = None  # None: no audit log

    @classmethod
    def of(
        cls,
        data: str,
        listen: str,
        kubeconfig: str | None,
        plain_http: bool = False,
        feature_gates: str = "",
        name: str = "",
        event_ttl: str = "",
        authorization_mode: str = "",
        audit_log: str | None = None,
    ) -> ServerSettings:
        """Build settings from command line texts; "" if not given. Raises ConfigProblem."""
        home = home_of(name) if name else None
        data = data or (str(home.path / "data") if home else DEFAULT_DATA)
        if home is not None:
            kubeconfig = kubeconfig or str(home.path / "kubeconfig")
        address = Listen.parse(listen or (_usual_address(home) if home else DEFAULT_LISTEN))
        if plain_http and not address.loopback:
            raise ConfigProblem(
                "--plain-http",
                "without TLS and token only a loopback address may be listened on, such as --listen 127.0.0.1:7443",
            )
        if plain_http and authorization_mode == RBAC:
            raise ConfigProblem("--authorization-mode", "RBAC needs to know who asks: leave out --plain-http")
        directory = None if data == MEMORY else Path(data)
        if directory is not None:
            prepare_directory(directory)
        gates = Gates.parse(feature_gates)
        place = Path(kubeconfig) if kubeconfig else None
        return cls(
            directory,
            address,
            place,
            plain_http,
            gates,
            name,
            _seconds(event_ttl),
            authorization_mode or ALWAYS_ALLOW,
            Path(audit_log) if audit_log else None,
        )

    @property
    def home(self) -> Home | None:
        """Return the home of the cluster; None in memory without a name."""
        if self.name:
            return home_of(self.name)
        return home_of("", str(self.data)) if self.data is not None else None

    @property
    def shown_name(self) -> str:
        """Return the name for users: as given, else the data directory, else ""."""
        return self.name or (self.data.absolute().name if self.data is not None else "")

    @property
    def kubeconfig_path(self) -> Path | None:
        """Return the path of the kubeconfig; None in memory without a given path."""
        if self.kubeconfig is not None:
            return self.kubeconfig.absolute()
        return (self.data / "kubeconfig").absolute() if self.data is not None else None

    def notes(self) -> list[str]:
        """Return warnings about unexpected effects of these settings, with remedies."""
        notes = []
        if self.kubeconfig_path is None and not self.plain_http:
            notes.append("--data :memory: writes no kubeconfig, so the token is lost: give --kubeconfig FILE")
        if not self.listen.loopback:
            notes.append(f"--listen {self.listen.host} can be reached from other machines: the token allows everything")
        return notes


_DURATION = re.compile(r"(?:(\d{1,6})h)?(?:(\d{1,6})m)?(?:(\d{1,8})s)?")


def _seconds(text: str) -> float:
    """Parse a duration like kube-apiserver: 1h, 90m, 1h30m, 45s; 0 means never."""
    match = _DURATION.fullmatch(text or "1h")
    if text == "0":
        return 0.0
    if match is None or not any(match.groups()):
        raise ConfigProblem("--event-ttl", f"{text!r} is not a duration like 1h, 90m or 1h30m0s (0: keep for ever)")
    hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return hours * 3600.0 + minutes * 60.0 + seconds


def _usual_address(home: Home) -> str:
    """Return the address of a named cluster: its last port, unless that is in use."""
    record = home.record()
    address = record.url.rpartition("/")[2] if record is not None else ""
    return address if address and _free(Listen.parse(address)) else "127.0.0.1:0"


def _free(listen: Listen) -> bool:
    with socket.socket(socket.AF_INET6 if ":" in listen.host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((listen.host, listen.port))
        except OSError:
            return False
    return True


def prepare_directory(directory: Path) -> None:
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as problem:
        raise ConfigProblem(
            "--data", f"cannot create {directory}: {problem.strerror or problem}; choose another with --data DIR"
        ) from None
    if not directory.is_dir() or not os.access(directory, os.R_OK | os.W_OK | os.X_OK):
        raise ConfigProblem(
            "--data", f"{directory} is not a directory this user may write to; choose another with --data DIR"
        )
