"""Additional users of a local cluster: a file of names, groups, hashes of tokens (mode 600).

`phalanx user` writes it, the server reads it again when it changed. A token stands in its user's kubeconfig only.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from pathlib import Path

import msgspec

from phalanx.base.errors import ConfigProblem
from phalanx.local.api.files import write_private
from phalanx.local.api.request import User

FILE = "users.json"
_WORD = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.@:]{0,126}[A-Za-z0-9])?")


class Known(msgspec.Struct, frozen=True):
    """One user, as the file has it."""

    name: str
    groups: list[str]
    uid: str
    token_sha256: str = ""
    certificate: str = ""  # serial number of the one that is good

    @property
    def user(self) -> User:
        return User(self.name, self.uid, (*self.groups, "system:authenticated"))


class _File(msgspec.Struct):
    users: list[Known] = []


def read_users(path: Path) -> list[Known]:
    """Read the users of a file; none if there is no file.

    Raises ConfigProblem if it cannot be read as a list of users.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=_File).users
    except FileNotFoundError:
        return []
    except (OSError, msgspec.DecodeError) as problem:
        raise ConfigProblem(str(path), f"cannot be read as a list of users: {problem}") from None


# Users that run parts of Kubernetes; `bootstrap_roles.table` binds their roles.
PROGRAMS = frozenset({"system:kube-controller-manager", "system:kube-proxy", "system:kube-scheduler"})


def check_names(name: str, groups: tuple[str, ...]) -> None:
    """Check the names of a user and its groups. Raises ConfigProblem."""
    for word in (name, *groups):
        if not _WORD.fullmatch(word):
            raise ConfigProblem(
                "user", f"{word!r} is no name of a user or group: letters, digits and -_.@: inside, such as team-a"
            )
    if name.startswith("system:") and name not in PROGRAMS:
        raise ConfigProblem("user", f"{name!r}: names that begin with system: are the cluster's own")


def add_user(path: Path, name: str, groups: tuple[str, ...], certificate: str = "") -> str:
    """Add a user or renew a known one, and return the new token. Raises ConfigProblem.

    A user with a certificate gets no token ("" is returned). The user's earlier token or certificate is no longer
    valid.
    """
    check_names(name, groups)
    token = "" if certificate else secrets.token_urlsafe(32)
    known = read_users(path)
    uid = next((user.uid for user in known if user.name == name), "") or secrets.token_hex(8)
    made = Known(name, list(groups), uid, _hash(token.encode()) if token else "", certificate)
    _write(path, sorted([*(user for user in known if user.name != name), made], key=lambda user: user.name))
    return token


def remove_user(path: Path, name: str) -> bool:
    """Remove a user; return False if there is no user of this name."""
    known = read_users(path)
    left = [user for user in known if user.name != name]
    if len(left) == len(known):
        return False
    _write(path, left)
    return True


def _write(path: Path, users: list[Known]) -> None:
    write_private(path, msgspec.json.format(msgspec.json.encode(_File(users)), indent=2))


def _hash(token: bytes) -> str:
    return hashlib.sha256(token).hexdigest()


class Users(msgspec.Struct):
    """The server's side: the user of a token."""

    path: Path | None = None
    _stamp: tuple[int, int, int] = (0, 0, 0)
    _by_hash: dict[str, User] = msgspec.field(default_factory=dict)
    _by_certificate: dict[str, User] = msgspec.field(default_factory=dict)

    def user(self, token: bytes) -> User | None:
        return self._by_hash.get(_hash(token)) if self._fresh() else None

    def by_certificate(self, serial: str) -> User | None:
        return self._by_certificate.get(serial) if self._fresh() else None

    def _fresh(self) -> bool:
        """Read the file again if it changed; False: there is none."""
        if self.path is None:
            return False
        try:
            found = os.stat(self.path)
        except OSError:
            return False
        stamp = (found.st_mtime_ns, found.st_ino, found.st_size)
        if stamp != self._stamp:
            try:
                known = read_users(self.path)
            except ConfigProblem:
                known = []  # an unreadable file authenticates no user
            self._by_hash = {user.token_sha256: user.user for user in known if user.token_sha256}
            self._by_certificate = {user.certificate: user.user for user in known if user.certificate}
            self._stamp = stamp
        return True
