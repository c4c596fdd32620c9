"""Check whether a cluster is ready for Phalanx, and print what to do. Changes nothing.

Every check is a request to the API server with one line of result. A check without the needed right reports that.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import datetime
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from email.utils import parsedate_to_datetime
from typing import Any

import msgspec
from cryptography import x509

from phalanx.base.client import Resource
from phalanx.base.clock import Clock, parse_rfc3339
from phalanx.base.errors import ApiProblem, ConfigProblem, Forbidden, NotFound, Unauthorized, Unreachable
from phalanx.base.resources import LEASES, MUTATING_WEBHOOKS, PODS
from phalanx.base.well_known import PHALANX_API, SCHEDULING_API
from phalanx.kube.client import HttpClient
from phalanx.kube.group_api import GroupApi
from phalanx.kube.lease import LeaseSettings
from phalanx.serve.start_checks import (
    PARTS,
    RequiredRight,
    check_version,
    listed,
    missing_rights,
    other_holders,
    outdated_resources,
    rights_of,
)

WORKS, FAILS, UNKNOWN = "works", "does not work", "unknown"
ABSENT = "not installed"

GATES = ("GenericWorkload", "GangScheduling", "TopologyAwareWorkloadScheduling", "CompositePodGroup", "WorkloadWithJob")
SKEW_SECONDS = 5.0  # a larger skew makes ages, backoffs and leases of machines inconsistent
MOST_PODS = 5000  # pods whose scheduler is counted
PAGE = 500
EXPIRES_SOON = 30  # days
PUBLISHED_AFTER = 3.0  # seconds in which an API server publishes the schema of a new definition
REVIEWS_AT_ONCE = 16
NO_AUTHORITY = "it has no caBundle: the controllers have not started, or may not write it"

_SUBJECTS = Resource("authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview", False)
_SELF = Resource("authentication.k8s.io", "v1", "selfsubjectreviews", "SelfSubjectReview", False)
_INSTALL = (
    RequiredRight("create", "", "namespaces"),
    RequiredRight("create", "rbac.authorization.k8s.io", "clusterroles"),
    RequiredRight("create", "apiextensions.k8s.io", "customresourcedefinitions"),
    RequiredRight("create", "admissionregistration.k8s.io", "mutatingwebhookconfigurations"),
    RequiredRight("create", "admissionregistration.k8s.io", "validatingadmissionpolicies"),
)
_GATE = re.compile(r'^kubernetes_feature_enabled\{name="([^"]+)"[^}]*\} ([01])', re.MULTILINE)


class Check(msgspec.Struct, frozen=True):
    """The result of one check. `todo`: the remedy, or ""."""

    name: str
    state: str  # WORKS, FAILS, UNKNOWN or ABSENT
    found: str
    todo: str = ""


class ClusterCheck:
    def __init__(self, client: HttpClient, clock: Clock, namespace: str = "phalanx-system") -> None:
        """namespace: of the installation, present or planned."""
        self._client, self._clock, self._namespace = client, clock, namespace

    async def run(self) -> list[Check]:
        """Return all checks. Raises Unreachable or Unauthorized if nothing can be checked."""
        checks: Sequence[tuple[str, Callable[[], Awaitable[Check]]]] = (
            ("version", self._version),
            ("clock", self._skew),
            ("groups", self._groups),
            ("gates", self._gates),
            ("rights", self._rights),
            ("webhook", self._webhook),
            ("leases", self._leases),
            ("questions", self._questions),
            ("schedulers", self._schedulers),
        )
        return [await self._checked(name, check) for name, check in checks]

    @staticmethod
    async def _checked(name: str, check: Callable[[], Awaitable[Check]]) -> Check:
        try:
            return await check()
        except Forbidden as problem:
            return Check(name, UNKNOWN, str(problem), "run this as an administrator of the cluster")
        except (Unreachable, Unauthorized):
            raise
        except (ApiProblem, msgspec.DecodeError, KeyError, TypeError, ValueError) as problem:
            return Check(name, UNKNOWN, f"the API server's answer cannot be used: {problem}", "look at its log")

    # ---- the API server

    async def _version(self) -> Check:
        body = await self._client.request("GET", "/version")
        found = msgspec.json.decode(body, type=dict[str, Any])
        text = f"Kubernetes {str(found.get('gitVersion') or '').removeprefix('v') or 'of unknown version'}"
        try:
            check_version(self._client.server, body)
        except ConfigProblem as problem:
            return Check("version", FAILS, text, problem.message)
        return Check("version", WORKS, text)

    async def _skew(self) -> Check:
        headers = await self._client.response_headers("/version")
        now = self._clock.now()
        if "date" not in headers:
            return Check("clock", UNKNOWN, "the API server sends no Date", "something on the way removes it")
        skew = abs(parsedate_to_datetime(headers["date"]).timestamp() + 0.5 - now)  # whole seconds
        if skew > SKEW_SECONDS:
            text = f"this machine and the API server differ by {skew:.0f} s"
            return Check("clock", FAILS, text, "set both by NTP: start times, backoffs and time limits are off by that")
        return Check("clock", WORKS, f"less than {SKEW_SECONDS:.0f} s apart from the API server")

    async def _groups(self) -> Check:
        api = GroupApi(self._client)
        group = await api.decide()
        if not group:
            todo = "kubectl apply -k deploy/overlays/custom-resources, or switch the gate GenericWorkload on (1.37)"
            return Check("groups", FAILS, "no PodGroups are served", todo)
        outdated = await self._outdated(api)
        if outdated:
            await asyncio.sleep(PUBLISHED_AFTER)  # they may just have been applied
            outdated = await self._outdated(api)
        if outdated:
            todo = "kubectl apply -k deploy/ (the custom resources of this version)"
            return Check("groups", FAILS, f"custom resources are outdated: {'; '.join(outdated)}", todo)
        where = {
            SCHEDULING_API: f"Kubernetes serves them ({SCHEDULING_API})",
            PHALANX_API: f"custom resources ({PHALANX_API})",
        }[group]
        return Check("groups", WORKS, f"PodGroups: {where}")

    async def _outdated(self, api: GroupApi) -> list[str]:
        return await outdated_resources(lambda path: self._client.request("GET", path), native=api.native)

    async def _gates(self) -> Check:
        text = (await self._client.request("GET", "/metrics", plain=True)).decode(errors="replace")
        known = {name: on == "1" for name, on in _GATE.findall(text)}
        found = {name: known[name] for name in GATES if name in known}
        if not found:
            return Check("gates", WORKS, "this API server knows none of ours: groups are custom resources")
        on = [name for name, value in found.items() if value]
        off = [name for name, value in found.items() if not value]
        shown = "; ".join(f"{word}: {', '.join(names)}" for word, names in (("on", on), ("off", off)) if names)
        if "GenericWorkload" in off and on:
            todo = "switch GenericWorkload on, or these off: they need it"
            return Check("gates", FAILS, shown, todo)
        return Check("gates", WORKS, shown)

    # ---- rights

    async def _rights(self) -> Check:
        user = await self._user()
        prefix = f"system:serviceaccount:{self._namespace}:phalanx-"
        part = user.removeprefix(prefix)
        if user.startswith(prefix) and part in PARTS:
            missing = await missing_rights(self._client, rights_of(part, self._namespace))
            return self._of_rights(f"phalanx-{part}, as which this runs", missing)
        if not await self._exists("/api/v1/namespaces/" + self._namespace):
            missing = await missing_rights(self._client, _INSTALL)
            if missing:
                return Check("rights", FAILS, f"you may not {listed(missing, 3)}", "install as a cluster administrator")
            return Check("rights", WORKS, "you may install; Phalanx is not installed yet")
        missing = []
        for part in PARTS:
            missing += await self._denied(f"{prefix}{part}", rights_of(part, self._namespace))
        return self._of_rights("the accounts phalanx-scheduler and phalanx-controllers", missing)

    def _of_rights(self, accounts: str, missing: Sequence[RequiredRight]) -> Check:
        if not missing:
            return Check("rights", WORKS, f"{accounts}: all rights of their roles")
        todo = "kubectl apply -k deploy/ (its roles), and run the parts as the service accounts it names"
        return Check("rights", FAILS, f"{accounts} may not {listed(missing, 3)}", todo)

    async def _user(self) -> str:
        body = {"apiVersion": _SELF.api_version, "kind": _SELF.kind}
        found = msgspec.json.decode(await self._client.create(_SELF, body), type=dict[str, Any])
        return str(((found.get("status") or {}).get("userInfo") or {}).get("username") or "")

    async def _denied(self, user: str, rights: Sequence[RequiredRight]) -> list[RequiredRight]:
        groups = ["system:serviceaccounts", f"system:serviceaccounts:{self._namespace}", "system:authenticated"]
        slots = asyncio.Semaphore(REVIEWS_AT_ONCE)

        async def denied(right: RequiredRight) -> bool:
            resource, _, subresource = right.resource.partition("/")
            about = {"verb": right.verb, "group": right.group, "resource": resource, "subresource": subresource,
                     "namespace": right.namespace, "name": right.name}  # fmt: skip
            spec = {"user": user, "groups": groups, "resourceAttributes": about}
            body = {"apiVersion": _SUBJECTS.api_version, "kind": _SUBJECTS.kind, "spec": spec}
            async with slots:
                answer = msgspec.json.decode(await self._client.create(_SUBJECTS, body), type=dict[str, Any])
            return not (answer.get("status") or {}).get("allowed")

        answers = await asyncio.gather(*(denied(right) for right in rights))
        return [right for right, no in zip(rights, answers, strict=True) if no]

    # ---- our parts

    async def _webhook(self) -> Check:
        try:
            hooks = msgspec.json.decode(await self._client.get(MUTATING_WEBHOOKS, "phalanx"))["webhooks"]
        except NotFound:
            todo = "without it pods are linked by label a moment after they are created; deploy/ has it"
            return Check("webhook", ABSENT, "there is no MutatingWebhookConfiguration phalanx", todo)
        soon = ""
        renew = (
            f"kubectl -n {self._namespace} delete secret phalanx-webhook-tls, and restart the controllers; with "
            "--tls-dir renew its files"
        )
        for hook in hooks:
            problem, is_soon = _authority_problem(hook["clientConfig"].get("caBundle") or "", self._clock.now())
            if problem and not is_soon:
                todo = renew if problem != NO_AUTHORITY else f"kubectl -n {self._namespace} get pods, and their logs"
                return Check("webhook", FAILS, f"{hook['name']}: {problem}", todo)
            soon = problem or soon
        found = await self._webhook_reached(hooks[0]["clientConfig"])
        if found.state == WORKS and soon:
            return msgspec.structs.replace(found, found=f"{found.found}; {soon}", todo=renew)
        return found

    async def _webhook_reached(self, client_config: dict[str, Any]) -> Check:
        service = client_config.get("service")
        if service is None:
            return Check("webhook", WORKS, f"called at {client_config.get('url')}; not tried")
        home = f"/api/v1/namespaces/{service['namespace']}/services"
        path = f"https:{service['name']}:{service.get('port', 443)}/proxy{service.get('path') or '/'}"
        return await self._behind(home, service["name"], path, "webhook", "phalanx-controllers")

    async def _questions(self) -> Check:
        home = f"/api/v1/namespaces/{self._namespace}/services"
        path = "https:phalanx-scheduler:https/proxy/livez"
        return await self._behind(home, "phalanx-scheduler", path, "questions", "phalanx-scheduler")

    async def _behind(self, home: str, service: str, path: str, name: str, part: str) -> Check:
        """Check that the API server reaches a Service; any response of the part is sufficient."""
        if not await self._exists(f"{home}/{service}"):
            return Check(name, ABSENT, f"there is no Service for {part}", "kubectl apply -k deploy/")
        try:
            await self._client.request("GET", f"{home}/{path}", plain=True)
        except Forbidden:
            raise
        except ApiProblem as problem:
            # An older API server answers 404 itself if the Service has no object Endpoints.
            if problem.http_code >= 500 or f'services "{service}" not found' in str(problem):
                return Check(name, FAILS, f"{part} cannot be reached: {problem}", _reach(self._namespace))
        return Check(name, WORKS, f"the API server reaches {part}")

    async def _leases(self) -> Check:
        shown, todo = [], ""
        for part in PARTS:
            lease = LeaseSettings(f"phalanx-{part}", self._namespace)
            others = await other_holders(self._client, lease, self._clock)
            if others:
                found = f"{lease.name} is also held in namespace {', '.join(home for home, _ in others)}"
                return Check("leases", FAILS, found, "two instances act at the same time: stop one")
            try:
                spec = (
                    msgspec.json.decode(await self._client.get(LEASES, lease.name, self._namespace)).get("spec") or {}
                )
            except NotFound:
                shown.append(f"{part}: no lease")
                continue
            age = self._clock.now() - parse_rfc3339(spec["renewTime"]) if spec.get("renewTime") else float("inf")
            if not spec.get("holderIdentity") or age > float(spec.get("leaseDurationSeconds") or lease.duration):
                shown.append(f"{part}: no leader")
                todo = f"kubectl -n {self._namespace} get pods, and their logs"
            else:
                shown.append(f"{part}: {spec['holderIdentity'].rpartition('_')[0] or spec['holderIdentity']}")
        state = FAILS if todo else ABSENT if all(text.endswith("no lease") for text in shown) else WORKS
        return Check("leases", state, "; ".join(shown), todo)

    async def _schedulers(self) -> Check:
        counts: Counter[str] = Counter()
        query: dict[str, str] = {"limit": str(PAGE)}
        more = False
        while True:
            answer = msgspec.json.decode(await self._client.request("GET", PODS.path(), query=query))
            counts.update((pod.get("spec") or {}).get("schedulerName") or "?" for pod in answer.get("items") or ())
            token = (answer.get("metadata") or {}).get("continue")
            if not token or (more := counts.total() >= MOST_PODS):
                break
            query["continue"] = token
        of = f" of the first {MOST_PODS} pods" if more else ""
        shown = ", ".join(f"{name} {count}" for name, count in sorted(counts.items())) or "there are no pods"
        others = [name for name in counts if name not in ("phalanx", "?")]
        note = (
            "they share nodes with Phalanx; docs/cluster.md says what that means"
            if others and counts["phalanx"]
            else ""
        )
        return Check("schedulers", WORKS, f"pods by scheduler{of}: {shown}", note)

    async def _exists(self, path: str) -> bool:
        try:
            await self._client.request("GET", path)
        except NotFound:
            return False
        return True


def _reach(namespace: str) -> str:
    return f"kubectl -n {namespace} get pods,networkpolicies; the control plane must reach the pods' network"


def _authority_problem(bundle: str, now: float) -> tuple[str, bool]:
    """Return the problem of the CA bundle of a webhook configuration, "" if it is valid; and whether it is only to
    come."""
    if not bundle:
        return NO_AUTHORITY, False
    try:
        found = x509.load_pem_x509_certificates(base64.b64decode(bundle))
    except (binascii.Error, ValueError):
        return "its caBundle is not a certificate in PEM", False
    ends = max(certificate.not_valid_after_utc for certificate in found)
    at = datetime.datetime.fromtimestamp(now, datetime.UTC)
    if ends < at:
        return f"the certificate in its caBundle expired on {ends:%Y-%m-%d}", False
    if ends < at + datetime.timedelta(days=EXPIRES_SOON):
        return f"the certificate in its caBundle expires on {ends:%Y-%m-%d}", True
    return "", False
