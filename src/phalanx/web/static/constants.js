// Made from Python by `make docs` (tools/pages/constants.py). Do not edit.

/** Bits of a node's flags. */
export const FLAG = {"cordoned": 1, "notReady": 2, "tainted": 4, "leaving": 8, "binding": 16, "promised": 32};

/** Node labels that name nested domains, the outermost first. */
export const TOPOLOGY_KEYS = ["topology.kubernetes.io/region", "topology.kubernetes.io/zone", "topology.phalanx.dev/block", "topology.phalanx.dev/rack"];

/** The node label of its own name. */
export const HOSTNAME = "kubernetes.io/hostname";

/** The device of the examples. */
export const GPU = "nvidia.com/gpu";

/** Resources that stand for a class of devices begin so. */
export const DEVICE_CLASS_PREFIX = "deviceclass.resource.kubernetes.io/";

/** The condition of a group that says what its pods do, not why it waits. */
export const HEALTHY = "scheduling.phalanx.dev/Healthy";

/** The label by which a pod without the field says its group. */
export const GROUP_LABEL = "scheduling.phalanx.dev/pod-group";

/** Taints of a node that does not answer. */
export const NOT_READY_TAINTS = ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"];

/** The taint of a cordoned node. */
export const CORDON_TAINT = "node.kubernetes.io/unschedulable";

/** Kinds by the first part of a key. */
export const KINDS = {"pod": "Pod", "podgroup": "PodGroup", "compositepodgroup": "CompositePodGroup", "workload": "Workload"};

/** First part of the key of pods without a group. */
export const ALONE = "pods";

/** Suffixes of quantities. */
export const SUFFIXES = {"n": 1e-09, "u": 1e-06, "m": 0.001, "": 1, "k": 1000, "M": 1000000, "G": 1000000000, "T": 1000000000000, "P": 1000000000000000, "E": 1000000000000000000, "Ki": 1024, "Mi": 1048576, "Gi": 1073741824, "Ti": 1099511627776, "Pi": 1125899906842624, "Ei": 1152921504606846976};

/** Resources that come after devices. */
export const RESOURCE_ORDER = {"cpu": 1, "memory": 2, "pods": 3};

/** Resources that are not shown. */
export const HIDDEN_RESOURCES = ["ephemeral-storage"];

/** Where the queue has a unit, and how that is said. */
export const QUEUE_NAMES = {"active": "in line", "attempt": "being tried", "search": "being searched for", "backoff": "backing off", "waiting": "waiting until something changes", "gated": "held"};

/** Parts of the cost of a preemption, what counts most first: the engine's word, the field of an answer. */
export const COST_PARTS = [["budgets", "budgetViolations"], ["priority", "highestPriority"], ["stopped", "stoppedPods"], ["pods", "pods"], ["gangs", "brokenGangs"], ["workloads", "workloads"], ["work", "lostSeconds"]];

/** Filters that a what-if may leave out. */
export const FILTERS = {"TaintToleration": "taints", "NodeUnschedulable": "cordons", "NodeAffinity": "node affinity and selectors", "InterPodAffinity": "affinity between pods", "PodTopologySpread": "spreading"};

/** Nodes that one what-if may add. */
export const MOST_ADDED_NODES = 10000;

/** Size of a manifest in one what-if. */
export const MOST_MANIFEST_BYTES = 262144;

/** Samples of the last hour. */
export const KEPT_SAMPLES = 720;

/** The format of recordings that can be read. */
export const RECORDING_FORMAT = 1;

/** Regular expression: a hash that a controller appended. */
export const HASH_AT_END = "(?:-(?=[a-z]*\\d)(?=\\d*[a-z])(?:[0-9a-f]{5,}|[bcdfghjklmnpqrstvwxz2456789]{5,})|/)$";

/** Regular expression: the name of a generated group. */
export const GENERATED_NAME = "^(.+?)-(?:[0-9a-z]+-\\1|(?=[a-z]*\\d)(?=\\d*[a-z])(?:[0-9a-f]{5,}|[bcdfghjklmnpqrstvwxz2456789]{5,})-[a-z0-9.-]*)-pgt-(\\d+)-[0-9a-z]+$";
