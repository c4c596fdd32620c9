"""Defaults of pod specs, as in `kubectl get -o yaml`. Pod templates get most of them."""

from __future__ import annotations

from phalanx.model.kinds import Json

_MODE = 0o644


def pod_spec(spec: Json, *, pod: bool) -> None:
    """Set the defaults of a pod spec.

    `pod`: a real pod, not a template; only a pod gets requests from limits and service links.
    """
    setdefault = spec.setdefault
    setdefault("restartPolicy", "Always")
    setdefault("dnsPolicy", "ClusterFirst")
    setdefault("schedulerName", "default-scheduler")
    if not spec["schedulerName"]:
        spec["schedulerName"] = "default-scheduler"
    setdefault("terminationGracePeriodSeconds", 30)
    if spec.get("securityContext") is None:
        spec["securityContext"] = {}
    if pod:
        setdefault("enableServiceLinks", True)
    if spec.get("serviceAccountName") and not spec.get("serviceAccount"):
        spec["serviceAccount"] = spec["serviceAccountName"]
    elif spec.get("serviceAccount") and not spec.get("serviceAccountName"):
        spec["serviceAccountName"] = spec["serviceAccount"]
    host_network = bool(spec.get("hostNetwork"))
    for field in ("containers", "initContainers", "ephemeralContainers"):
        for item in spec.get(field) or ():
            container(item, pod=pod, host_network=host_network)
    if pod and spec.get("resources"):
        _requests_from_limits(spec["resources"])
    for item in spec.get("volumes") or ():
        _volume(item)


def _pull_policy(image: str) -> str:
    """Return the default pull policy: Always for `latest` or no tag, else IfNotPresent."""
    if "@" in image:
        return "IfNotPresent"
    name = image.rpartition("/")[2]
    _, colon, tag = name.partition(":")
    return "IfNotPresent" if colon and tag != "latest" else "Always"


def container(item: Json, *, pod: bool, host_network: bool = False) -> None:
    if not item.get("imagePullPolicy"):
        item["imagePullPolicy"] = _pull_policy(item.get("image") or "")
    if not item.get("terminationMessagePath"):
        item["terminationMessagePath"] = "/dev/termination-log"
    if not item.get("terminationMessagePolicy"):
        item["terminationMessagePolicy"] = "File"
    resources = item.get("resources")
    if resources is None:
        item["resources"] = {}
    elif pod and resources:
        _requests_from_limits(resources)
    if item.get("ports"):
        _ports(item["ports"], host_network)
    for field in ("livenessProbe", "readinessProbe", "startupProbe"):
        if item.get(field):
            _probe(item[field])
    for hook in (item.get("lifecycle") or {}).values():
        if isinstance(hook, dict):
            _request(hook)
    for variable in item.get("env") or ():
        _reference(variable.get("valueFrom"))


def _ports(ports: list[Json], host_network: bool) -> None:
    for port in ports:
        if not port.get("protocol"):
            port["protocol"] = "TCP"
        if host_network and not port.get("hostPort"):
            port["hostPort"] = port.get("containerPort")


def _reference(source: Json | None) -> None:
    """Set the default apiVersion of a reference to a field of the pod."""
    reference = (source or {}).get("fieldRef")
    if reference:
        reference.setdefault("apiVersion", "v1")


def _requests_from_limits(resources: Json) -> None:
    limits = resources.get("limits")
    if not limits:
        return
    requests = resources.get("requests")
    if requests is None:
        requests = resources["requests"] = {}
    for name, value in limits.items():
        requests.setdefault(name, value)


def _probe(probe: Json) -> None:
    for field, value in (
        ("timeoutSeconds", 1),
        ("periodSeconds", 10),
        ("successThreshold", 1),
        ("failureThreshold", 3),
    ):
        if not probe.get(field):
            probe[field] = value
    _request(probe)


def _request(handler: Json) -> None:
    get = handler.get("httpGet")
    if get:
        get.setdefault("scheme", "HTTP")
        get.setdefault("path", "/")


_SOURCES_WITH_MODE = ("secret", "configMap", "downwardAPI", "projected")


def _volume(volume: Json) -> None:
    if set(volume) <= {"name"}:
        volume["emptyDir"] = {}
        return
    for field in _SOURCES_WITH_MODE:
        source = volume.get(field)
        if source is not None:
            source.setdefault("defaultMode", _MODE)
    host = volume.get("hostPath")
    if host is not None:
        host.setdefault("type", "")
    for source in (volume.get("projected") or {}).get("sources") or ():
        token = source.get("serviceAccountToken")
        if token:
            token.setdefault("expirationSeconds", 3600)
        for item in (source.get("downwardAPI") or {}).get("items") or ():
            _reference(item)
    for item in (volume.get("downwardAPI") or {}).get("items") or ():
        _reference(item)
    claim = (volume.get("ephemeral") or {}).get("volumeClaimTemplate")
    if claim:
        claim.setdefault("spec", {}).setdefault("volumeMode", "Filesystem")


def template(holder: Json) -> None:
    """Set the defaults of the `template` of a workload object."""
    found: Json = holder.setdefault("template", {})
    if found.get("metadata") is None:
        found["metadata"] = {}
    if found.get("spec") is None:
        found["spec"] = {}
    pod_spec(found["spec"], pod=False)
