"""Write facts that the dashboard's JavaScript shares with Python as a module: `web/static/constants.js`.

A test looks for its values in the other modules of the page.
"""

from __future__ import annotations

import json
from typing import Any

from phalanx.base.well_known import GPU, NODE_LOST_TAINTS, UNSCHEDULABLE_TAINT
from phalanx.engine.preemption.cost import ORDER
from phalanx.engine.preemption.result import COST_FIELDS
from phalanx.engine.scheduling.queue.units import QueueName
from phalanx.model.groups.keys import GROUP_LABEL, HOSTNAME, TOPOLOGY_KEYS
from phalanx.model.names import GENERATED_NAME, HASH_AT_END
from phalanx.model.objects.devices import IMPLICIT_RESOURCE_PREFIX
from phalanx.model.printing.groups import HEALTHY
from phalanx.model.quantity import SUFFIXES
from phalanx.serve.queries.engine_view import ALONE, FLAGS, HIDDEN_RESOURCES, RESOURCE_ORDER
from phalanx.serve.queries.variant import MOST_NODES
from phalanx.serve.recording import FORMAT
from phalanx.web.history import KEPT
from phalanx.web.questions import KINDS, MOST_TEXT

Q = QueueName
# name: (value, comment)
CONSTANTS: dict[str, tuple[Any, str]] = {
    "FLAG": (FLAGS, "Bits of a node's flags."),
    "TOPOLOGY_KEYS": (TOPOLOGY_KEYS, "Node labels that name nested domains, the outermost first."),
    "HOSTNAME": (HOSTNAME, "The node label of its own name."),
    "GPU": (GPU, "The device of the examples."),
    "DEVICE_CLASS_PREFIX": (IMPLICIT_RESOURCE_PREFIX, "Resources that stand for a class of devices begin so."),
    "HEALTHY": (HEALTHY, "The condition of a group that says what its pods do, not why it waits."),
    "GROUP_LABEL": (GROUP_LABEL, "The label by which a pod without the field says its group."),
    "NOT_READY_TAINTS": (NODE_LOST_TAINTS, "Taints of a node that does not answer."),
    "CORDON_TAINT": (UNSCHEDULABLE_TAINT, "The taint of a cordoned node."),
    "KINDS": (KINDS, "Kinds by the first part of a key."),
    "ALONE": (ALONE, "First part of the key of pods without a group."),
    "SUFFIXES": (SUFFIXES, "Suffixes of quantities."),
    "RESOURCE_ORDER": (RESOURCE_ORDER, "Resources that come after devices."),
    "HIDDEN_RESOURCES": (HIDDEN_RESOURCES, "Resources that are not shown."),
    "QUEUE_NAMES": (
        {
            Q.ACTIVE.value: "in line",
            Q.ATTEMPT.value: "being tried",
            Q.SEARCH.value: "being searched for",
            Q.BACKOFF.value: "backing off",
            Q.WAITING.value: "waiting until something changes",
            Q.GATED.value: "held",
        },
        "Where the queue has a unit, and how that is said.",
    ),
    "COST_PARTS": (
        [[part, COST_FIELDS[part]] for part in ORDER if part in COST_FIELDS],
        "Parts of the cost of a preemption, what counts most first: the engine's word, the field of an answer.",
    ),
    "FILTERS": (
        {
            "TaintToleration": "taints",
            "NodeUnschedulable": "cordons",
            "NodeAffinity": "node affinity and selectors",
            "InterPodAffinity": "affinity between pods",
            "PodTopologySpread": "spreading",
        },
        "Filters that a what-if may leave out.",
    ),
    "MOST_ADDED_NODES": (MOST_NODES, "Nodes that one what-if may add."),
    "MOST_MANIFEST_BYTES": (MOST_TEXT, "Size of a manifest in one what-if."),
    "KEPT_SAMPLES": (KEPT, "Samples of the last hour."),
    "RECORDING_FORMAT": (FORMAT, "The format of recordings that can be read."),
    "HASH_AT_END": (HASH_AT_END, "Regular expression: a hash that a controller appended."),
    "GENERATED_NAME": (GENERATED_NAME, "Regular expression: the name of a generated group."),
}


def module() -> str:
    """Return the JavaScript module."""
    lines = ["// Made from Python by `make docs` (tools/pages/constants.py). Do not edit.\n"]
    for name, (value, comment) in CONSTANTS.items():
        lines.append(f"/** {comment} */\nexport const {name} = {json.dumps(value)};\n")
    return "\n".join(lines)
