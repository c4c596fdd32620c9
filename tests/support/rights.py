"""What parts ask an API server for, and what their roles allow."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import AsyncIterator, Callable
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from phalanx.base.client import Call, Resource
from phalanx.local.api.request import User
from phalanx.local.api.rights import Attributes, Rights, refusal

Json = dict[str, Any]
DEPLOY = Path(__file__).parents[2] / "deploy"
CALLS = ("get", "list", "watch", "create", "update", "patch", "delete")


class Use(NamedTuple):
    verb: str
    group: str
    resource: str  # with the subresource: pods/binding


class Recording:
    """A client that remembers what was asked of it, where, and what the server's own RBAC would refuse its account."""

    def __init__(self, client: Any, rights: Rights, account: str) -> None:
        self._client, self._rights = client, rights
        groups = ("system:serviceaccounts", "system:serviceaccounts:phalanx-system", "system:authenticated")
        self._user = User(f"system:serviceaccount:phalanx-system:{account}", "", groups)
        self.uses: dict[Use, set[tuple[str, str]]] = {}  # -> (namespace, name)
        self.refused: set[str] = set()

    def _note(self, verb: str, resource: Resource, subresource: str, namespace: str, name: str) -> None:
        plural = f"{resource.plural}/{subresource}" if subresource else resource.plural
        self.uses.setdefault(Use(verb, resource.group, plural), set()).add((namespace, name))
        self._decide(Attributes(verb, resource.group, resource.plural, subresource, namespace, name))
        if plural == "resourceclaims/status" and verb != "get":
            self._note(verb, resource, "binding", "", "")  # kube-apiserver asks for this one as well

    def _decide(self, asked: Attributes) -> None:
        if not self._rights.decide(self._user, asked).allowed:
            self.refused.add(refusal(self._user, asked))

    def __getattr__(self, verb: str) -> Any:
        call = getattr(self._client, verb)
        if verb in ("call", "events"):  # what wraps a client hands its calls on as values
            return partial(self._handed_on, call)
        if verb not in CALLS:
            return call

        async def noted(resource: Resource, *args: Any, **options: Any) -> Any:
            if verb == "list":
                name, rest = options.get("fields", "").removeprefix("metadata.name="), args  # as RBAC reads it
            elif verb == "create":
                name, rest = options.get("name", ""), args[1:]
            else:
                name, rest = args[0], args[1:] if verb in ("get", "delete") else args[2:]
            namespace = rest[0] if rest else ""
            self._note(verb, resource, options.get("subresource", ""), namespace, name)
            if verb == "create":
                self._note_owners(args[0])
            return await call(resource, *args, **options)

        def watched(resource: Resource, namespace: str = "", **options: Any) -> AsyncIterator[Any]:
            self._note("watch", resource, "", namespace, "")
            found: AsyncIterator[Any] = call(resource, namespace, **options)
            return found

        return watched if verb == "watch" else noted

    def _handed_on(self, on: Callable[[Call], Any], call: Call) -> Any:
        self._note(call.verb, call.resource, call.subresource, call.namespace, call.name)
        if "sendInitialEvents" in call.query:  # a server without WatchList rejects it, and the informer lists instead
            self._note("list", call.resource, "", call.namespace, "")
        if call.verb == "create":
            self._note_owners(call.body)
        return on(call)

    def _note_owners(self, body: Any) -> None:
        """OwnerReferencesPermissionEnforcement asks for the right to update the finalizers of an owner that waits."""
        if not isinstance(body, dict):
            return
        for owner in (body.get("metadata") or {}).get("ownerReferences") or ():
            if owner.get("blockOwnerDeletion"):
                group = owner["apiVersion"].rpartition("/")[0]
                plural = f"{owner['kind'].lower()}s"
                self.uses.setdefault(Use("update", group, f"{plural}/finalizers"), set()).add(("", ""))
                self._decide(Attributes("update", group, plural, "finalizers"))


def documents(name: str) -> list[Json]:
    """Objects in a file of deploy/base or deploy/components, as it is before kustomize; the chart links to both."""
    (file,) = (path for folder in ("base", "") if (path := DEPLOY / folder / name).exists())
    return [body for body in yaml.safe_load_all(file.read_text()) if body]


@cache
def _rendered(overlay: str) -> str:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("no kubectl on PATH")
    command = [kubectl, "kustomize", str(DEPLOY / overlay)]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


def installed(overlay: str = ".") -> list[Json]:
    """Objects that `kubectl apply -k deploy/OVERLAY` applies."""
    return [body for body in yaml.safe_load_all(_rendered(overlay)) if body]


class Grant(NamedTuple):
    use: Use
    namespace: str  # "" : everywhere
    names: tuple[str, ...]  # () : any

    def allows(self, namespace: str, name: str) -> bool:
        return (not self.namespace or self.namespace == namespace) and (not self.names or name in self.names)


def grants(role: str, file: str = "20-rbac.yaml") -> list[Grant]:
    """Every single right in the roles of this name."""
    found = []
    for body in documents(file):
        if body["kind"] in ("ClusterRole", "Role") and body["metadata"]["name"] == role:
            for rule in body["rules"]:
                names = tuple(rule.get("resourceNames", ()))
                for group in rule["apiGroups"]:
                    for resource in rule["resources"]:
                        for verb in rule["verbs"]:
                            use = Use(verb, group, resource)
                            found.append(Grant(use, body["metadata"].get("namespace", ""), names))
    return found
