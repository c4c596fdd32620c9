"""The events.k8s.io Event as a view of the stored core Event: same facts, other field names."""

from __future__ import annotations

from phalanx.model.kinds import Json

# core name -> events.k8s.io name; every other field has the same name in both
_NAMES = {
    "involvedObject": "regarding",
    "message": "note",
    "source": "deprecatedSource",
    "firstTimestamp": "deprecatedFirstTimestamp",
    "lastTimestamp": "deprecatedLastTimestamp",
    "count": "deprecatedCount",
    "reportingComponent": "reportingController",
}
_BACK = {new: old for old, new in _NAMES.items()}


def from_core(event: Json) -> Json:
    view = {_NAMES.get(name, name): value for name, value in event.items()}
    view["apiVersion"] = "events.k8s.io/v1"
    return view


def to_core(view: Json) -> Json:
    event = {_BACK.get(name, name): value for name, value in view.items()}
    event["apiVersion"] = "v1"
    return event
