"""Add what a pod's service account provides: a volume with a token in every container, and pull secrets.

Never looks at anything but the account: whether something runs that could read the token is not its business.
"""

from __future__ import annotations

import zlib

from phalanx.base.ids import SAFE_ALPHABET
from phalanx.base.well_known import SERVICE_TOKEN_PREFIX
from phalanx.local.api.problems import forbidden
from phalanx.local.api.view import decode
from phalanx.local.store.contract import StoreProtocol
from phalanx.model.kinds import Json, Kind

DEFAULT = "default"
MOUNT_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"
TABLE = "serviceaccounts"
_MIRROR = "kubernetes.io/config.mirror"
_TOKEN_SECONDS = 3607  # one hour and 7 seconds: clusters recognise these tokens by the 7 seconds
_FILE_MODE = 0o644
_REMEMBERED = 10_000


class _Account:
    """What is looked up for every pod of an account."""

    __slots__ = ("mount", "pull_secrets", "revision", "volume")

    def __init__(self, revision: int, obj: Json, namespace: str, name: str) -> None:
        self.revision = revision
        self.mount = obj.get("automountServiceAccountToken") is not False
        self.pull_secrets = [{"name": secret.get("name", "")} for secret in obj.get("imagePullSecrets") or ()]
        # The same name for all pods of an account, not a random one for each: equal pods stay equal.
        self.volume = SERVICE_TOKEN_PREFIX + _suffix(f"{namespace}/{name}")


class ServiceAccounts:
    def __init__(self, store: StoreProtocol) -> None:
        self._store = store
        self._known: dict[tuple[str, str], _Account] = {}

    def admit(self, kind: Kind, pod: Json, namespace: str) -> None:
        """Set the service account, its token volume and its pull secrets in a pod.

        Raises Forbidden for a pod whose account does not exist.
        """
        spec, metadata = pod["spec"], pod["metadata"]
        if _MIRROR in (metadata.get("annotations") or ()):
            if spec.get("serviceAccountName"):
                shown = str(metadata.get("name") or "")
                raise forbidden(kind, shown, "a mirror pod may not reference service accounts")
            return
        if not spec.get("serviceAccountName"):
            spec["serviceAccountName"] = spec["serviceAccount"] = DEFAULT
        name = spec["serviceAccountName"]
        account = self._account(namespace, name)
        if account is None:
            why = f'error looking up service account {namespace}/{name}: serviceaccount "{name}" not found'
            raise forbidden(kind, str(metadata.get("name") or ""), why)
        requested = spec.get("automountServiceAccountToken")
        if account.mount if requested is None else requested:
            _mount(spec, account.volume)
        if account.pull_secrets and not spec.get("imagePullSecrets"):
            spec["imagePullSecrets"] = [dict(secret) for secret in account.pull_secrets]

    def _account(self, namespace: str, name: str) -> _Account | None:
        entry = self._store.latest((TABLE, namespace, name))
        # The default account of a namespace is created a moment after it: pods do not wait for that.
        if entry is None and name != DEFAULT:
            return None
        revision = entry.revision if entry is not None else 0
        known = self._known.get((namespace, name))
        if known is None or known.revision != revision:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            obj: Json = decode(entry.value) if entry is not None else {}
            known = self._known[namespace, name] = _Account(revision, obj, namespace, name)
        return known


def _mount(spec: Json, volume: str) -> None:
    volumes: list[Json] = spec.get("volumes") or []
    own = next((name for entry in volumes if str(name := entry.get("name")).startswith(SERVICE_TOKEN_PREFIX)), None)
    wanted = False
    for containers in (spec.get("initContainers"), spec.get("containers")):
        for container in containers or ():
            mounts = container.get("volumeMounts") or []
            if any(mount.get("mountPath") == MOUNT_PATH for mount in mounts):
                continue
            mount = {"name": own or volume, "readOnly": True, "mountPath": MOUNT_PATH}
            container["volumeMounts"] = [*mounts, mount]
            wanted = True
    if wanted and own is None:
        spec["volumes"] = [*volumes, {"name": volume, "projected": _projected()}]


def _projected() -> Json:
    """Return a new volume for each pod: later admission steps edit it in place."""
    field = {"apiVersion": "v1", "fieldPath": "metadata.namespace"}
    return {
        "sources": [
            {"serviceAccountToken": {"expirationSeconds": _TOKEN_SECONDS, "path": "token"}},
            {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
            {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": field}]}},
        ],
        "defaultMode": _FILE_MODE,
    }


def _suffix(text: str) -> str:
    """Return five letters, the same for the same text."""
    number, letters = zlib.crc32(text.encode()), ""
    for _ in range(5):
        number, place = divmod(number, len(SAFE_ALPHABET))
        letters += SAFE_ALPHABET[place]
    return letters
