"""Users of a guarded cluster as people meet them: `phalanx user`, kubectl with --as, `kubectl auth can-i`."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

KUBECTL = shutil.which("kubectl")
PHALANX = [sys.executable, "-m", "phalanx"]


class Person:
    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def phalanx(self, *arguments: str, code: int = 0) -> str:
        return self._run([*PHALANX, *arguments], self.directory / "kubeconfig", code)

    def kubectl(self, *arguments: str, user: str = "", code: int = 0) -> str:
        file = self.directory / "users" / f"{user}.kubeconfig" if user else self.directory / "kubeconfig"
        return self._run([str(KUBECTL), *arguments], file, code)

    def _run(self, command: list[str], kubeconfig: Path, code: int) -> str:
        environment = {**os.environ, "KUBECONFIG": str(kubeconfig), "HOME": str(self.directory)}
        done = subprocess.run(command, text=True, capture_output=True, timeout=60, check=False, env=environment)
        assert done.returncode == code, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr


@pytest.fixture
def person(tmp_path: Path) -> Iterator[Person]:
    if KUBECTL is None:
        pytest.skip("no kubectl on PATH")
    options = ["--data", str(tmp_path), "--listen", "127.0.0.1:0", "--authorization-mode", "RBAC"]
    process = subprocess.Popen([*PHALANX, "apiserver", *options], text=True, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None and process.stdout.readline().startswith("ready")
        yield Person(tmp_path)
    finally:
        process.terminate()
        process.communicate(timeout=90)


def test_a_user_is_added_given_a_role_and_removed(person: Person) -> None:
    where = ("--data", str(person.directory))
    said = person.phalanx("user", "add", "jane", "--group", "developers", *where)
    file = person.directory / "users" / "jane.kubeconfig"
    assert str(file) in said and stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "jane developers" in " ".join(person.phalanx("user", "list", *where).split())
    assert person.kubectl("auth", "whoami", "-o", "jsonpath={.status.userInfo.groups}", user="jane") == (
        '["developers","system:authenticated"]'
    )
    said = person.kubectl("get", "pods", user="jane", code=1)
    assert 'User "jane" cannot list resource "pods" in API group "" in the namespace "default"' in said
    person.kubectl("create", "rolebinding", "devs", "--clusterrole", "edit", "--group", "developers")
    assert "No resources found" in person.kubectl("get", "pods", user="jane")
    assert person.kubectl("auth", "can-i", "create", "jobs", user="jane") == "yes\n"
    assert person.kubectl("auth", "can-i", "get", "nodes", user="jane", code=1).startswith("no\n")
    listed = person.kubectl("auth", "can-i", "--list", "--as", "jane", "--as-group", "developers")
    assert "podgroups.scheduling.k8s.io" in listed and "*.*" not in listed
    said = person.kubectl("get", "nodes", "--as", "somebody", code=1)
    assert 'User "somebody" cannot list resource "nodes"' in said
    person.phalanx("user", "add", "carl", "--group", "developers", "--certificate", *where)
    users = person.directory / "users"
    assert "token" not in (users / "carl.kubeconfig").read_text()
    assert person.kubectl("auth", "whoami", "-o", "jsonpath={.status.userInfo.username}", user="carl") == "carl"
    assert "No resources found" in person.kubectl("get", "pods", user="carl")
    (users / "old.kubeconfig").write_bytes((users / "carl.kubeconfig").read_bytes())
    person.phalanx("user", "remove", "carl", *where)
    assert "Unauthorized" in person.kubectl("get", "pods", user="old", code=1)
    assert "no name of a user" in person.phalanx("user", "add", "../evil", *where, code=2)
    person.phalanx("user", "remove", "jane", *where)
    assert not file.exists()
    assert "there is no user jane" in person.phalanx("user", "remove", "jane", *where, code=2)
    assert "no users but the administrator" in person.phalanx("user", "list", *where)
