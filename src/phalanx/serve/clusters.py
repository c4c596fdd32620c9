"""Find local clusters by name: their files, whether they run, and their kubeconfig.

A running cluster holds a lock on its `cluster.json`. The lock, not the process ID, shows that it runs: it ends with the
process, while a process ID may be reused. A kubeconfig is readable only by its owner.
"""

from __future__ import annotations

import base64
import fcntl
import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import yaml

from phalanx.base.errors import ConfigProblem
from phalanx.kube.config import load
from phalanx.local.api.files import write_private

RECORD = "cluster.json"
LOG = "log"
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


class ClusterRecord(msgspec.Struct, frozen=True):
    """Data of a running cluster; after it stopped, its last data."""

    name: str
    pid: int
    url: str
    kubeconfig: str
    data: str
    started: float  # seconds since 1970
    dashboard: str = ""


class Home(msgspec.Struct, frozen=True):
    """Directory of one cluster: `cluster.json`, and with a name also data, kubeconfig and log."""

    name: str  # "": known only by its data directory
    path: Path

    @property
    def title(self) -> str:
        return self.name or str(self.path)

    @property
    def log(self) -> Path:
        return self.path / LOG

    def record(self) -> ClusterRecord | None:
        """Return the record; None if no cluster was started here or the file is invalid."""
        try:
            return msgspec.json.decode((self.path / RECORD).read_bytes(), type=ClusterRecord)
        except (OSError, msgspec.DecodeError):
            return None

    def running(self) -> bool:
        try:
            descriptor = os.open(self.path / RECORD, os.O_RDONLY)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    @contextmanager
    def held(self) -> Iterator[Announce]:
        """Hold the lock while the cluster runs. Raises ConfigProblem if another process holds it."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self.path / RECORD, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise ConfigProblem(
                "--name" if self.name else "--data", f"{self.title} runs already{self._who()}"
            ) from None
        try:
            yield Announce(descriptor)
        finally:
            os.close(descriptor)  # also releases the lock

    def _who(self) -> str:
        record = self.record()
        stop = f"phalanx down {self.name}" if self.name else f"phalanx down --data {self.path}"
        return f" as process {record.pid} at {record.url}; stop it with `{stop}`" if record else ""


class Announce(msgspec.Struct, frozen=True):
    """Writes the record in place: a new file would not be locked."""

    descriptor: int

    def __call__(self, record: ClusterRecord) -> None:
        content = msgspec.json.encode(record)
        os.ftruncate(self.descriptor, 0)
        os.pwrite(self.descriptor, content, 0)


def homes() -> Path:
    """Return the directory of all named clusters (XDG base directories: state)."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "phalanx" / "clusters"


def home_of(name: str, data: str = "") -> Home:
    """Return the home of a cluster by name, or by data directory. Raises ConfigProblem for an invalid name."""
    if not name:
        return Home("", Path(data).absolute())
    if not _NAME.fullmatch(name):
        raise ConfigProblem(
            "--name", f"{name!r} is no name: lower case letters, digits and '-', at most 63, such as team-a"
        )
    return Home(name, homes() / name)


def all_homes() -> list[Home]:
    """Return all named clusters that were started and not deleted, by name."""
    folder = homes()
    found = sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
    return [Home(path.name, path) for path in found]


def home_with(name: str, data: str) -> Home:
    """Return the home of a cluster by name, or by data directory, which may be that of a cluster with a name."""
    home = home_of(name, data)
    if name or home.record() is not None:
        return home
    named = ((other, other.record()) for other in all_homes())
    return next((other for other, record in named if record is not None and record.data == str(home.path)), home)


def home_at(kubeconfig: str, context: str = "") -> Home:
    """Return the home of the local cluster that a context of a kubeconfig leads to. Raises ConfigProblem."""
    server = load(kubeconfig, context).server
    places = {home.path: home for home in (*all_homes(), home_of("", "data"), Home("", Path(kubeconfig).parent))}
    known = [home for home in places.values() if (record := home.record()) is not None and record.url == server]
    running = [home for home in known if home.running()]  # a port may have been another cluster's before
    if not known:
        what = f"context {context}" if context else "its current context"
        raise ConfigProblem(
            kubeconfig, f"{what} leads to {server}, which is no local cluster here; name one with --name or --data"
        )
    return (running or known)[0]


def stop(home: Home, patience: float) -> bool:
    """Stop the process and wait. Return False if it still runs after `patience` seconds."""
    record = home.record()
    if record is None or not home.running():
        return True
    os.kill(record.pid, signal.SIGTERM)
    end = time.monotonic() + patience
    while home.running():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


NAME = "phalanx"


def kubeconfig_text(url: str, ca: bytes | None, token: str | None, name: str = NAME) -> str:
    cluster: dict[str, str] = {"server": url}
    if ca is not None:
        cluster["certificate-authority-data"] = base64.b64encode(ca).decode()
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": name, "cluster": cluster}],
            "users": [{"name": name, "user": {"token": token} if token else {}}],
            "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
            "current-context": name,
        },
        sort_keys=False,
    )


def context_name(cluster: str) -> str:
    """Return the context name of a cluster, which must be unique in a kubeconfig."""
    return f"{NAME}-{cluster}" if cluster else NAME


def write_kubeconfig(path: Path, url: str, ca: bytes | None, token: str | None, name: str = NAME) -> None:
    try:
        write_private(path, kubeconfig_text(url, ca, token, name).encode())
    except OSError as problem:
        raise ConfigProblem("--kubeconfig", f"cannot write {path}: {problem.strerror or problem}") from None


def merge_kubeconfig(path: Path, into: Path) -> str:
    """Merge a kubeconfig into another; return the context name. Raises ConfigProblem."""
    new = yaml.safe_load(path.read_text())
    try:
        old = yaml.safe_load(into.read_text()) if into.exists() else None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as problem:
        raise ConfigProblem(str(into), f"cannot be read, so nothing was changed: {problem}") from None
    old = old or {"apiVersion": "v1", "kind": "Config"}
    if not isinstance(old, dict) or old.get("kind") != "Config":
        raise ConfigProblem(str(into), "is not a kubeconfig, so nothing was changed")
    context = str(new["current-context"])
    for part in ("clusters", "users", "contexts"):
        others = [item for item in old.get(part) or () if item.get("name") != context]
        old[part] = [*others, *new[part]]
    old["current-context"] = context
    try:
        write_private(into, yaml.safe_dump(old, sort_keys=False).encode())
    except OSError as problem:
        raise ConfigProblem(str(into), f"cannot be written: {problem.strerror or problem}") from None
    return context
