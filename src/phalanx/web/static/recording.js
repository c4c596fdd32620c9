// A recording made with --record, read in the browser: the cluster as of any decision, forwards and backwards.
//
// Every line becomes a small change that knows its inverse, so moving by one decision costs what changed in it.

import { Cluster } from "./cluster.js";
import {
  ALONE,
  CORDON_TAINT,
  FLAG,
  GROUP_LABEL,
  HEALTHY,
  HIDDEN_RESOURCES,
  NOT_READY_TAINTS,
  RECORDING_FORMAT,
  RESOURCE_ORDER,
  SUFFIXES,
  TOPOLOGY_KEYS,
} from "./constants.js";
import { parts } from "./words.js";

export function quantity(text) {
  const found = /^([+-]?[\d.]+(?:[eE][+-]?\d+)?)([a-zA-Z]*)$/.exec(String(text));
  return found ? Number(found[1]) * (SUFFIXES[found[2]] ?? 1) : 0;
}

const measure = (name, text) => Math.round(quantity(text) * (name === "cpu" ? 1000 : 1));

function requests(pod) {
  const sum = {};
  for (const container of pod.spec?.containers ?? [])
    for (const [name, text] of Object.entries({ ...container.resources?.limits, ...container.resources?.requests }))
      sum[name] = (sum[name] ?? 0) + measure(name, text);
  return sum;
}

// As the scheduler reads it: the field, else KEP-4671's reference (an implicit group, of which there is no object), else our label.
const groupOf = ({ metadata, spec }) => {
  const from = spec?.workloadRef;
  const name = spec?.schedulingGroup?.podGroupName ?? (from?.name ? "" : metadata.labels?.[GROUP_LABEL]);
  if (name) return `podgroup/${metadata.namespace}/${name}`;
  return from?.name
    ? `workload/${metadata.namespace}/${from.name}/${from.podGroup ?? ""}/${from.podGroupReplicaKey ?? ""}`
    : "";
};

export class Recording {
  constructor() {
    this.cluster = new Cluster();
    this.cluster.live = false;
    this.changes = []; // [apply, revert] in order
    this.moments = []; // {upto, now, kind, text, why}
    this.at = 0;
    this.done = 0; // changes applied
    this.nodes = new Map();
    this.pods = new Map();
    this.groups = new Map();
    this.reasons = new Map(); // root or group -> why it waits, as last reported
    /** @type {Map<string, [string, number, number]>} */
    this.evicted = new Map(); // namespace, priority, pods evicted up to this moment
    this.placed = this.waiting = 0;
  }

  get moment() {
    return this.at ? this.moments[this.at - 1] : null;
  }

  static async read(file, tell) {
    const recording = new Recording();
    const reader = file.stream().pipeThrough(new TextDecoderStream()).getReader();
    let rest = "",
      bytes = 0,
      number = 0,
      now = 0,
      said = 0;
    for (;;) {
      const { value, done } = await reader.read();
      const lines = (rest + (value ?? "")).split("\n");
      rest = done ? "" : (lines.pop() ?? "");
      for (const line of lines) {
        number++;
        if (!line) continue;
        let entry;
        try {
          entry = JSON.parse(line);
        } catch {
          if (done) break; // cut off in the middle of its last line
          throw new Error(`line ${number} is not of a recording: it is not JSON`);
        }
        if (number === 1) {
          if (!entry.head)
            throw new Error(
              "this is not a recording: its first line has no head. Make one with phalanx up --record FILE",
            );
          if (entry.head.format !== RECORDING_FORMAT)
            throw new Error(`recordings of format ${entry.head.format} are not known here`);
        } else if (entry.step) now = entry.step[0];
        else if (entry.in) recording.event(entry.in);
        else if (entry.out) recording.decision(entry.out, now);
      }
      bytes += value?.length ?? 0;
      if (bytes - said > 1 << 20) {
        said = bytes;
        tell(bytes / file.size);
      }
      if (done) break;
    }
    if (!number) throw new Error("this file is empty");
    recording.begin();
    return recording;
  }

  // ---- reading: what is known is followed to the end, so that every change can say what was before it

  event(event) {
    const object = event.object;
    if (event.event === "NodeChanged") {
      const name = object.metadata.name;
      this.swap(this.nodes, name, this.node(object), "node");
    } else if (event.event === "PodChanged") {
      const key = `${object.metadata.namespace}/${object.metadata.name}`;
      const over = ["Succeeded", "Failed"].includes(object.status?.phase);
      const before = this.pods.get(key);
      this.swap(
        this.pods,
        key,
        over
          ? undefined
          : {
              node: object.spec?.nodeName || (before?.uid === object.metadata.uid ? before.node : ""),
              uid: object.metadata.uid,
              namespace: object.metadata.namespace,
              group: groupOf(object),
              needs: before?.uid === object.metadata.uid ? before.needs : requests(object),
              priority: object.spec?.priority ?? 0,
              leaving: Boolean(object.metadata.deletionTimestamp),
              evicted: before?.uid === object.metadata.uid && Boolean(before.evicted),
              asked: object.metadata.creationTimestamp ?? "",
              gated: Boolean(object.spec?.schedulingGates?.length),
            },
        "pod",
      );
    } else if (event.event === "PodGroupChanged") {
      const key = `podgroup/${object.metadata.namespace}/${object.metadata.name}`;
      const parent = object.spec?.parentCompositePodGroupName;
      this.swap(
        this.groups,
        key,
        { parent: parent ? `compositepodgroup/${object.metadata.namespace}/${parent}` : "" },
        "group",
      );
    } else if (event.event === "CompositePodGroupChanged") {
      const key = `compositepodgroup/${object.metadata.namespace}/${object.metadata.name}`;
      this.swap(
        this.groups,
        key,
        {
          parent: object.spec?.parentCompositePodGroupName
            ? `compositepodgroup/${object.metadata.namespace}/${object.spec.parentCompositePodGroupName}`
            : "",
        },
        "group",
      );
    } else if (event.event === "Gone") {
      if (event.kind === "Node") this.swap(this.nodes, event.name, undefined, "node");
      if (event.kind === "Pod") this.swap(this.pods, `${event.namespace}/${event.name}`, undefined, "pod");
      if (event.kind === "PodGroup" || event.kind === "CompositePodGroup")
        this.swap(this.groups, `${event.kind.toLowerCase()}/${event.namespace}/${event.name}`, undefined, "group");
    }
  }

  node(object) {
    const labels = object.metadata.labels ?? {};
    let flags = object.spec?.unschedulable ? FLAG.cordoned : 0;
    for (const taint of object.spec?.taints ?? []) {
      if (NOT_READY_TAINTS.includes(taint.key)) flags |= FLAG.notReady;
      else if (taint.effect !== "PreferNoSchedule" && taint.key !== CORDON_TAINT) flags |= FLAG.tainted;
    }
    const alloc = {};
    for (const [name, text] of Object.entries(object.status?.allocatable ?? {})) alloc[name] = measure(name, text);
    return { labels: Object.fromEntries(TOPOLOGY_KEYS.map((key) => [key, labels[key] ?? ""])), alloc, flags };
  }

  swap(table, key, after, what) {
    const before = table.get(key);
    if (JSON.stringify(before) === JSON.stringify(after)) return; // a heartbeat
    if (after === undefined) table.delete(key);
    else table.set(key, after);
    this.changes.push({ what, key, before, after });
  }

  tell(key, { status = "False", message }) {
    this.swap(this.reasons, key, status === "False" ? message : undefined, "reason");
  }

  decision(decision, now) {
    const of = `${decision.namespace}/${decision.name}`;
    const words = {
      Bind: () => {
        const pod = this.pods.get(of);
        if (pod) this.swap(this.pods, of, { ...pod, node: decision.node }, "pod");
        return [`${decision.name} goes to ${decision.node}`, ""];
      },
      Nominate: () => [
        decision.node
          ? `${decision.name} is promised ${decision.node}`
          : `the promise to ${decision.name} is taken back`,
        "",
      ],
      Evict: () => {
        const pod = this.pods.get(of);
        if (pod) this.swap(this.pods, of, { ...pod, leaving: true, evicted: true }, "pod");
        return [`${decision.name} is evicted`, decision.message];
      },
      SetPodCondition: () => {
        const group = this.pods.get(of)?.group;
        if (!group || group.startsWith("workload/")) this.tell(group || `pod/${of}`, decision);
        return [`${decision.name}: ${decision.reason}`, decision.message];
      },
      SetGroupCondition: () => {
        if (decision.type !== HEALTHY) this.tell(`${(decision.kind ?? "PodGroup").toLowerCase()}/${of}`, decision);
        return [`${decision.kind ?? "PodGroup"} ${decision.name}: ${decision.reason}`, decision.message];
      },
    }[decision.decision];
    if (!words) return this.sentence(decision, of); // events repeat what conditions say, as a plain sentence
    const [text, why] = words();
    this.moments.push({ upto: this.changes.length, now, kind: decision.decision, text, why: why ?? "" });
  }

  // The event of a condition comes right after it and belongs to the same moment.
  sentence({ decision, reason, kind = "Pod", message }, of) {
    if (decision !== "RecordEvent" || reason !== "FailedScheduling") return;
    const key = kind === "Pod" ? `pod/${of}` : `${kind.toLowerCase()}/${of}`;
    if (!this.reasons.has(key) || !this.moments.length) return;
    this.tell(key, { message });
    this.moments.at(-1).upto = this.changes.length;
  }

  // ---- playing

  begin() {
    const offered = new Set();
    /** @type {Map<string, Set<string>>} */
    const domains = new Map(TOPOLOGY_KEYS.map((key) => [key, new Set()]));
    for (const { what, after } of this.changes)
      if (what === "node" && after) {
        for (const [name, value] of Object.entries(after.alloc))
          if (value > 0 && !HIDDEN_RESOURCES.includes(name) && !name.startsWith("hugepages")) offered.add(name);
        for (const key of TOPOLOGY_KEYS) if (after.labels[key]) domains.get(key)?.add(after.labels[key]);
      }
    this.cluster.resources = [...offered].sort(
      (a, b) => (RESOURCE_ORDER[a] ?? 0) - (RESOURCE_ORDER[b] ?? 0) || (a < b ? -1 : 1),
    );
    this.cluster.keys = TOPOLOGY_KEYS.filter((key) => (domains.get(key)?.size ?? 0) > 1);
    if (!this.cluster.keys.length) this.cluster.keys = TOPOLOGY_KEYS.filter((key) => domains.get(key)?.size).slice(-1);
    this.nodes = new Map();
    this.pods = new Map();
    this.reasons = new Map();
    this.evicted = new Map();
    this.placed = this.waiting = 0;
    this.done = 0;
  }

  seek(index) {
    this.at = index;
    const upto = index ? this.moments[index - 1].upto : this.moments[0] ? this.first() : 0;
    const far = Math.abs(upto - this.done) > 40;
    while (this.done < upto) this.turn(this.changes[this.done], this.changes[this.done++].after);
    while (this.done > upto) this.turn(this.changes[--this.done], this.changes[this.done].before);
    if (far) this.cluster.fresh.clear(); // a jump is no news of each node
    this.cluster.now = this.moment?.now ?? 0;
    this.sums();
    this.cluster.dispatchEvent(new Event("change"));
  }

  // Before the first decision: all that was there already.
  first() {
    return Math.max(0, this.moments[0].upto - 1);
  }

  turn({ what, key }, value) {
    if (what === "node") return this.setNode(key, value);
    if (what === "reason") return value === undefined ? this.reasons.delete(key) : this.reasons.set(key, value);
    if (what === "group") {
      if (value) this.cluster.groups.set(key, value);
      else this.cluster.groups.delete(key);
      return this.cluster.paint();
    }
    if (value?.group.startsWith("workload/") && !this.cluster.groups.has(value.group)) {
      this.cluster.groups.set(value.group, { parent: "" });
      this.cluster.paint();
    }
    const before = this.pods.get(key);
    if (Boolean(before?.evicted) !== Boolean(value?.evicted) && before && value)
      this.evict(value, value.evicted ? 1 : -1);
    if (before) this.count(before, -1);
    if (value) {
      this.pods.set(key, value);
      this.count(value, 1);
    } else this.pods.delete(key);
  }

  // The same sums as of the live cluster, for the view of use.
  sums() {
    const by = new Map();
    for (const root of this.queue()) {
      const { namespace } = parts(root.key);
      const sum = by.get(`${namespace} ${root.priority}`) ?? [namespace, root.priority, 0, 0];
      sum[2] += 1;
      sum[3] += root.pods;
      by.set(`${namespace} ${root.priority}`, sum);
    }
    this.cluster.queue = { ...this.cluster.queue, by: [...by.values()] };
    this.cluster.evicted = [...this.evicted.values()];
  }

  evict(pod, sign) {
    const key = `${pod.namespace} ${pod.priority}`;
    const sum = this.evicted.get(key) ?? [pod.namespace, pod.priority, 0];
    sum[2] += sign;
    this.evicted.set(key, sum);
  }

  // What waits at this moment: roots by priority, then by when they came; what is held at a gate comes last.
  queue() {
    const found = new Map();
    for (const [name, pod] of this.pods) {
      if (pod.node || pod.leaving) continue;
      const key = pod.group ? this.cluster.rootOf(pod.group) : `pod/${name}`;
      const root = found.get(key) ?? {
        key,
        pods: 0,
        priority: pod.priority,
        asked: pod.asked,
        gated: pod.gated,
        message: this.reasons.get(key) ?? "",
      };
      root.pods++;
      if (pod.asked < root.asked) root.asked = pod.asked;
      found.set(key, root);
    }
    return [...found.values()].sort(
      (a, b) =>
        a.gated - b.gated ||
        b.priority - a.priority ||
        (a.asked < b.asked ? -1 : a.asked > b.asked ? 1 : a.key < b.key ? -1 : 1),
    );
  }

  setNode(name, value) {
    const { cluster } = this;
    cluster.version++;
    if (!value) {
      this.nodes.delete(name);
      cluster.nodes.delete(name);
      return;
    }
    this.nodes.set(name, value);
    const before = cluster.nodes.get(name);
    cluster.nodes.set(name, {
      name,
      domains: cluster.keys.map((key) => value.labels[key]),
      alloc: cluster.resources.map((resource) => value.alloc[resource] ?? 0),
      used: before?.used ?? cluster.resources.map(() => 0),
      flags: value.flags | ((before?.flags ?? 0) & FLAG.leaving),
      priority: before?.priority ?? null,
      shares: before?.shares ?? {},
    });
    if (!before) for (const pod of this.pods.values()) if (pod.node === name) this.count(pod, 1, true);
  }

  count(pod, sign, again = false) {
    if (!again) {
      if (pod.node) this.placed += sign;
      else this.waiting += sign;
    }
    const node = pod.node && this.cluster.nodes.get(pod.node);
    if (!node) return;
    this.cluster.resources.forEach(
      (name, index) => (node.used[index] += sign * (name === "pods" ? 1 : (pod.needs[name] ?? 0))),
    );
    const of = pod.group || `${ALONE}/${pod.namespace}/${pod.priority}`;
    const share = node.shares[of] ?? [0, 0];
    share[0] += sign;
    share[1] += sign * (pod.needs[this.cluster.resources[0]] ?? 0);
    if (share[0] > 0) node.shares[of] = share;
    else delete node.shares[of];
    node.leaving = (node.leaving ?? 0) + (pod.leaving ? sign : 0);
    node.flags = (node.flags & ~FLAG.leaving) | (node.leaving > 0 ? FLAG.leaving : 0);
    node.priority = Object.keys(node.shares).length ? Math.max(node.priority ?? pod.priority, pod.priority) : null;
    this.cluster.fresh.set(pod.node, performance.now());
  }
}
