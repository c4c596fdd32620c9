"""Server address and credentials, from kubeconfig files and in-cluster service accounts.

Credentials are never logged or printed. Exec plugins are run as an argument list, never through a shell.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import msgspec

from phalanx.base.clock import Clock, SystemClock, parse_rfc3339
from phalanx.base.errors import ApiProblem, ConfigProblem
from phalanx.model import yaml_body

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
EXEC_SECONDS = 60.0  # the user may have to log in
TOKEN_REREAD_SECONDS = 60.0  # projected tokens rotate, so the file is read again


class ExecPlugin(msgspec.Struct):
    """client.authentication.k8s.io exec credential."""

    command: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = msgspec.field(default_factory=dict)
    api_version: str = "client.authentication.k8s.io/v1"
    install_hint: str = ""


class Connection(msgspec.Struct):
    """Everything a transport needs."""

    server: str
    ssl: ssl.SSLContext | None
    namespace: str = "default"
    cluster: str = ""  # its name in the kubeconfig; "": in-cluster
    token: str = ""
    token_file: str = ""
    exec_plugin: ExecPlugin | None = None
    clock: Clock = msgspec.field(default_factory=SystemClock)
    _cached: str = ""
    _valid_until: float = 0.0

    async def bearer(self, *, renew: bool = False) -> str:
        """Return the token to send, or "" if there is none.

        renew: ask the token's source again, after a 401.
        """
        if self.token:
            return self.token
        now = self.clock.now()
        if not renew and self._cached and now < self._valid_until:
            return self._cached
        if self.token_file:
            text = await asyncio.to_thread(Path(self.token_file).read_text)
            self._cached, self._valid_until = text.strip(), now + TOKEN_REREAD_SECONDS
        elif self.exec_plugin is not None:
            self._cached, self._valid_until = await run_exec_plugin(self.exec_plugin)
        return self._cached


async def run_exec_plugin(plugin: ExecPlugin) -> tuple[str, float]:
    """Run a credential plugin; return the token and the time until which it may be used."""
    info = {"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": {"interactive": False}}
    env = {**os.environ, **plugin.env, "KUBERNETES_EXEC_INFO": json.dumps(info)}
    try:
        process = await asyncio.create_subprocess_exec(
            plugin.command, *plugin.args, env=env, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
    except OSError as error:
        hint = f"; {plugin.install_hint}" if plugin.install_hint else ""
        raise ConfigProblem("users[].user.exec.command", f"cannot run {plugin.command!r}: {error}{hint}") from error
    try:
        async with asyncio.timeout(EXEC_SECONDS):
            out, err = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        raise ConfigProblem("users[].user.exec", f"{plugin.command!r} gave no answer in {EXEC_SECONDS:.0f} s") from None
    if process.returncode:
        detail = err.decode(errors="replace").strip()[-500:]
        raise ConfigProblem(
            "users[].user.exec", f"{plugin.command!r} ended with code {process.returncode}: {detail or 'no message'}"
        )
    try:
        status = json.loads(out)["status"]
        token = str(status["token"])
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigProblem("users[].user.exec", f"{plugin.command!r} did not print an ExecCredential") from error
    expires = status.get("expirationTimestamp")
    # A token without expiry is used until the server answers 401.
    return token, parse_rfc3339(expires) - 10 if expires else float("inf")


def in_cluster(account: Path = SERVICE_ACCOUNT, environ: Mapping[str, str] = os.environ) -> Connection:
    host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT")
    if not host or not port:
        raise ConfigProblem("", "not inside a cluster (KUBERNETES_SERVICE_HOST is not set); give --kubeconfig FILE")
    token_file, ca_file, namespace_file = account / "token", account / "ca.crt", account / "namespace"
    if not token_file.exists():
        raise ConfigProblem("", f"no service account token at {token_file}; is automountServiceAccountToken off?")
    context = ssl.create_default_context(cafile=str(ca_file))
    namespace = namespace_file.read_text().strip() if namespace_file.exists() else "default"
    if ":" in host:
        host = f"[{host}]"
    return Connection(f"https://{host}:{port}", context, namespace=namespace, token_file=str(token_file))


def load(path: str | Path, context_name: str = "") -> Connection:
    """Read one context of a kubeconfig file."""
    path = Path(path)
    try:
        document = yaml_body.read(path.read_bytes())
    except OSError as error:
        raise ConfigProblem(
            "", f"cannot read kubeconfig {path}: {error.strerror}; `phalanx list` shows local clusters"
        ) from error
    except ApiProblem as error:
        raise ConfigProblem("", f"kubeconfig {path} cannot be used: {error}") from error
    if not isinstance(document, dict):
        found = "is empty" if document is None else "is not a kubeconfig (it has no clusters, users and contexts)"
        raise ConfigProblem("", f"kubeconfig {path} {found}: give another with --kubeconfig FILE")
    name = context_name or document.get("current-context") or ""
    if not name:
        raise ConfigProblem("current-context", f"not set in {path}; name a context with --context NAME")
    context = _entry(path, document, "contexts", name, "context")
    cluster = _entry(path, document, "clusters", str(context.get("cluster") or ""), "cluster")
    user = _entry(path, document, "users", str(context["user"]), "user") if context.get("user") else {}
    server = str(cluster.get("server") or "")
    if not server:
        raise ConfigProblem("clusters[].cluster.server", f"missing in {path}")
    relative = path.resolve().parent
    return Connection(
        server.rstrip("/"),
        _tls(server, cluster, user, relative),
        namespace=str(context.get("namespace") or "default"),
        cluster=str(context.get("cluster") or ""),
        token=str(user.get("token") or ""),
        token_file=str(relative / user["tokenFile"]) if user.get("tokenFile") else "",
        exec_plugin=_exec(user.get("exec")),
    )


def _entry(path: Path, document: Mapping[str, Any], section: str, name: str, inner: str) -> dict[str, Any]:
    found = document.get(section)
    entries = [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []
    for entry in entries:
        if entry.get("name") == name:
            content = entry.get(inner) or {}
            if not isinstance(content, dict):
                raise ConfigProblem(f"{section}[].{inner}", f"of {name!r} is no mapping")
            return cast(dict[str, Any], content)
    known = [str(entry.get("name")) for entry in entries]
    there = ", ".join(known[:10]) or "none"
    raise ConfigProblem("", f"kubeconfig {path} has no entry named {name!r} in {section}; there is {there}")


def _exec(plugin: Mapping[str, Any] | None) -> ExecPlugin | None:
    if not plugin:
        return None
    if not plugin.get("command"):
        raise ConfigProblem("users[].user.exec.command", "is required")
    return ExecPlugin(
        command=str(plugin["command"]),
        args=tuple(str(arg) for arg in plugin.get("args") or ()),
        env={str(e["name"]): str(e["value"]) for e in plugin.get("env") or ()},
        api_version=str(plugin.get("apiVersion") or "client.authentication.k8s.io/v1"),
        install_hint=str(plugin.get("installHint") or ""),
    )


def _tls(server: str, cluster: Mapping[str, Any], user: Mapping[str, Any], relative: Path) -> ssl.SSLContext | None:
    if not server.startswith("https:"):
        return None
    context = ssl.create_default_context()
    ca = _pem(cluster, "certificate-authority", relative)
    if ca:
        try:
            context = ssl.create_default_context(cadata=ca.decode())
        except (ssl.SSLError, UnicodeDecodeError) as error:
            raise ConfigProblem("certificate-authority", f"of {server} is no PEM certificate") from error
    if cluster.get("insecure-skip-tls-verify"):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    certificate, key = _pem(user, "client-certificate", relative), _pem(user, "client-key", relative)
    if certificate and key:
        try:
            _with_files([certificate, key], lambda files: context.load_cert_chain(files[0], files[1]))
        except ssl.SSLError as error:
            raise ConfigProblem("client-certificate", "and client-key are no PEM certificate with its key") from error
    return context


def _pem(section: Mapping[str, Any], name: str, relative: Path) -> bytes:
    data = section.get(f"{name}-data")
    if data:
        try:
            return base64.b64decode(data)
        except (TypeError, ValueError) as error:
            raise ConfigProblem(f"{name}-data", "is not base64") from error
    file = section.get(name)
    if not file:
        return b""
    try:
        return (relative / str(file)).read_bytes()
    except OSError as error:
        raise ConfigProblem(name, f"cannot read {file}: {error.strerror}") from error


def _with_files(contents: list[bytes], use: Callable[[list[str]], None]) -> None:
    """Call `use` with private temporary files of these contents.

    The ssl module reads client keys only from files; they are deleted after the call.
    """
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        files = []
        for number, content in enumerate(contents):
            file = Path(folder) / str(number)
            file.touch(mode=0o600)
            file.write_bytes(content)
            files.append(str(file))
        use(files)
