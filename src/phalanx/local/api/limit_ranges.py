"""LimitRanges: what containers get when they say nothing, and how little or much pods and claims may ask for."""

from __future__ import annotations

from collections.abc import Iterator

from phalanx.local.api.view import decode
from phalanx.local.store.contract import StoreProtocol
from phalanx.model.kinds import Json
from phalanx.model.pod_amounts import Amounts, amounts, pod_amounts
from phalanx.model.quantity import canonical, nanos

TABLE = "limitranges"
_ANNOTATION = "kubernetes.io/limit-ranger"


def fill_pod(store: StoreProtocol, pod: Json, namespace: str) -> None:
    """Give containers the requests and limits they lack."""
    announced: list[str] = []
    for item in _items(store, namespace, "Container"):
        for field, defaults in (("limits", item.get("default")), ("requests", item.get("defaultRequest"))):
            for place, word in (("containers", "container"), ("initContainers", "init container")):
                for container in pod["spec"].get(place) or ():
                    given = _set_defaults(container, field, defaults or {})
                    if given:
                        announced.append(f"{', '.join(given)} {field[:-1]} for {word} {container.get('name')}")
    if announced:
        metadata = pod["metadata"]
        text = "LimitRanger plugin set: " + "; ".join(sorted(announced))
        metadata["annotations"] = {**(metadata.get("annotations") or {}), _ANNOTATION: text}


def _set_defaults(container: Json, field: str, defaults: Json) -> list[str]:
    resources = container.get("resources")
    if resources is None:
        resources = container["resources"] = {}
    held = resources.get(field) or {}
    missing = [name for name in sorted(defaults) if name not in held]
    if missing:
        resources[field] = {**held, **{name: defaults[name] for name in missing}}
    return missing


def pod_complaints(store: StoreProtocol, pod: Json, namespace: str) -> list[str]:
    found: list[str] = []
    spec = pod["spec"]
    for item in _items(store, namespace, "Container"):
        for container in (*(spec.get("containers") or ()), *(spec.get("initContainers") or ())):
            found += _beyond(item, "Container", amounts(container, "requests"), amounts(container, "limits"))
    for item in _items(store, namespace, "Pod"):
        found += _beyond(item, "Pod", pod_amounts(spec, "requests"), pod_amounts(spec, "limits"))
    return found


def claim_complaints(store: StoreProtocol, claim: Json, namespace: str) -> list[str]:
    asked = {name: nanos(text) for name, text in ((claim["spec"].get("resources") or {}).get("requests") or {}).items()}
    found: list[str] = []
    for item in _items(store, namespace, "PersistentVolumeClaim"):
        for name, text in (item.get("min") or {}).items():
            found += _too_little(name, "PersistentVolumeClaim", text, asked)
        for name, text in (item.get("max") or {}).items():
            if asked.get(name, 0) > nanos(text):
                shown = canonical(claim["spec"]["resources"]["requests"][name])
                found.append(
                    f"maximum {name} usage per PersistentVolumeClaim is {canonical(text)}, but request is {shown}"
                )
    return found


def _beyond(item: Json, what: str, requests: Amounts, limits: Amounts) -> list[str]:
    found: list[str] = []
    for name, text in (item.get("min") or {}).items():
        found += _too_little(name, what, text, requests)
    for name, text in (item.get("max") or {}).items():
        most, begin = nanos(text), f"maximum {name} usage per {what} is {canonical(text)}"
        if name not in limits:
            found.append(f"{begin}.  No limit is specified")
        elif limits[name] > most:
            found.append(f"{begin}, but limit is {_text(limits[name])}")
        if requests.get(name, 0) > most:
            found.append(f"{begin}, but request is {_text(requests[name])}")
    for name, text in (item.get("maxLimitRequestRatio") or {}).items():
        begin = f"{name} max limit to request ratio per {what} is {canonical(text)}"
        if not requests.get(name):
            found.append(f"{begin}, but no request is specified or request is 0")
        elif name not in limits:
            found.append(f"{begin}, but no limit is specified")
        elif limits[name] * 10**9 > nanos(text) * requests[name]:
            found.append(f"{begin}, but provided ratio is {limits[name] / requests[name]:.6f}")
    return found


def _too_little(name: str, what: str, text: str, requests: Amounts) -> list[str]:
    begin = f"minimum {name} usage per {what} is {canonical(text)}"
    if name not in requests:
        return [f"{begin}.  No request is specified"]
    return [f"{begin}, but request is {_text(requests[name])}"] if requests[name] < nanos(text) else []


def _text(amount: int) -> str:
    return canonical(f"{amount}n")


def _items(store: StoreProtocol, namespace: str, type_: str) -> Iterator[Json]:
    for entry in store.list(TABLE, namespace):
        for item in (decode(entry.value).get("spec") or {}).get("limits") or ():
            if item.get("type") == type_:
                yield item
