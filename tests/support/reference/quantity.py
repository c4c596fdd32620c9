"""Parse quantities as exact fractions, and compute the requests of a pod."""

from __future__ import annotations

import math
from fractions import Fraction

from phalanx.model import objects as o
from phalanx.model.objects.pod import Container, Resources

SUFFIXES = {
    **{s: Fraction(1024) ** i for i, s in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), start=1)},
    **{s: Fraction(1000) ** i for i, s in enumerate(("k", "M", "G", "T", "P", "E"), start=1)},
    "m": Fraction(1, 1000),
    "u": Fraction(1, 10**6),
    "n": Fraction(1, 10**9),
}
POD_LEVEL = ("cpu", "memory")
DEFAULTS = {"cpu": Fraction(1, 10), "memory": Fraction(200 * 1024 * 1024)}  # a container that asks for nothing


def parse(quantity: str | int | float) -> Fraction:
    text = str(quantity)
    for suffix, factor in SUFFIXES.items():
        if text.endswith(suffix):
            return Fraction(text[: -len(suffix)]) * factor
    return Fraction(text)


def whole(name: str, quantity: Fraction) -> int:
    """Return millicores for cpu, whole units for the rest, rounded up."""
    return math.ceil(quantity * 1000) if name == "cpu" else math.ceil(quantity)


def container_requests(container: Container, defaults: dict[str, Fraction]) -> dict[str, Fraction]:
    asked = {name: parse(q) for name, q in (container.resources.requests or {}).items()}
    return {**defaults, **asked}


def pod_level_requests(pod: o.Pod) -> dict[str, Fraction]:
    requests: Resources = (pod.spec.resources.requests if pod.spec.resources else None) or {}
    return {n: parse(q) for n, q in requests.items() if n in POD_LEVEL or n.startswith("hugepages-")}


def requests_with(pod: o.Pod, defaults: dict[str, Fraction]) -> dict[str, Fraction]:
    """Sum containers and sidecars, at least the peak of the init phase; pod-level values win; plus overhead."""
    total: dict[str, Fraction] = {}
    for container in pod.spec.containers:
        total = add(total, container_requests(container, defaults))
    sidecars: dict[str, Fraction] = {}
    peak: dict[str, Fraction] = {}
    for container in pod.spec.init_containers or []:
        asked = container_requests(container, defaults)
        if container.restart_policy == "Always":
            total = add(total, asked)
            sidecars = add(sidecars, asked)
            peak = highest(peak, sidecars)
        else:
            peak = highest(peak, add(sidecars, asked))
    total = highest(total, peak)
    total.update(pod_level_requests(pod))
    return add(total, {name: parse(q) for name, q in (pod.spec.overhead or {}).items()})


def pod_requests(pod: o.Pod) -> dict[str, int]:
    """Return the actual requests of the pod."""
    return {name: whole(name, q) for name, q in requests_with(pod, {}).items()}


def nonzero_requests(pod: o.Pod) -> dict[str, int]:
    """Return the requests used in scores: containers without a request count 100m and 200Mi.

    kube-scheduler leaves those defaults out for placed pods with pod-level requests, which makes a pod weigh less once
    it is placed. API defaulting hides the difference (it fills in the pod level), so here both are the same.
    """
    return {name: whole(name, q) for name, q in requests_with(pod, DEFAULTS).items()}


def allocatable(node: o.Node, name: str) -> int:
    found = node.status.allocatable.get(name)
    return 0 if found is None else whole(name, parse(found))


def add(a: dict[str, Fraction], b: dict[str, Fraction]) -> dict[str, Fraction]:
    return {name: a.get(name, Fraction(0)) + b.get(name, Fraction(0)) for name in [*a, *(n for n in b if n not in a)]}


def highest(a: dict[str, Fraction], b: dict[str, Fraction]) -> dict[str, Fraction]:
    """Return the greater of both for every resource that either names."""
    return {
        name: max(q for q in (a.get(name), b.get(name)) if q is not None)
        for name in [*a, *(n for n in b if n not in a)]
    }
