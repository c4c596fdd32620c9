// The cluster as this page knows it: one snapshot, kept current by changes. A recording gives the same face.

import { ALONE, FLAG, HOSTNAME, KEPT_SAMPLES } from "./constants.js";
import { levelName, parts } from "./words.js";

// Pods without a group are counted together by namespace and priority: "ALONE/NAMESPACE/PRIORITY".
export const isAlone = (key) => key.startsWith(`${ALONE}/`);

export function nodeOf([name, domains, alloc, used, flags, priority, shares]) {
  return { name, domains, alloc, used, flags, priority, shares };
}

// Not red: that is for what goes wrong. Every nine the same hues come again, lighter or darker (colours.js).
const hueOf = (index) => 50 + ((index * 122.23) % 320) + 1000 * (Math.floor(index / 9) % 3);

export class Cluster extends EventTarget {
  /** @type {string[]} Topology keys, outermost first. */
  keys = [];
  /** @type {string[]} */
  resources = [];
  /** @type {Map<string, PageNode>} */
  nodes = new Map();
  /** @type {Map<string, PageGroup>} */
  groups = new Map();
  /** @type {PageQueue} */
  queue = { roots: [], total: 0, pods: 0, counts: {}, oldest: 0 };
  /** @type {any[]} */
  samples = [];
  /** @type {[string, number, number][]} Namespace, priority, pods evicted in the last day. */
  evicted = [];
  name = "";
  /** @type {string | null} null: this scheduler leads; else the name of the one that does, "" if none is known. */
  standby = null;
  now = 0;
  version = 0; // of the set of nodes and where they stand
  /** @type {Map<string, number>} Node -> when it last changed, for a short glow. */
  fresh = new Map();
  /** @type {Map<string, number>} */
  hues = new Map();
  /** @type {Record<string, Map<string, number>>} Category -> its number, for its hue. */
  numbers = { namespace: new Map(), owner: new Map() };
  live = true;

  load(snapshot) {
    this.keys = snapshot.keys;
    this.resources = snapshot.resources;
    this.nodes = new Map(snapshot.nodes.map((row) => [row[0], nodeOf(row)]));
    this.groups = new Map(Object.entries(snapshot.groups));
    this.queue = snapshot.queue;
    this.samples = snapshot.samples ?? [];
    this.evicted = snapshot.evicted ?? [];
    this.name = snapshot.cluster ?? "";
    this.standby = snapshot.standby ?? null;
    this.now = snapshot.now;
    this.version++;
    this.fresh.clear();
    this.paint();
    this.dispatchEvent(new Event("change"));
  }

  apply(change) {
    this.now = change.now;
    const time = performance.now();
    for (const [name, row] of Object.entries(change.nodes ?? {})) {
      const before = this.nodes.get(name);
      if (row === null) this.nodes.delete(name);
      else this.nodes.set(name, nodeOf(row));
      if (row === null || !before || before.domains.join() !== row[1].join()) this.version++;
      if (row !== null) this.fresh.set(name, time);
      else this.fresh.delete(name);
    }
    for (const [key, group] of Object.entries(change.groups ?? {})) {
      if (group === null) this.groups.delete(key);
      else this.groups.set(key, group);
    }
    if (change.queue) this.queue = change.queue;
    if (change.evicted) this.evicted = change.evicted;
    if (change.standby !== undefined) this.standby = change.standby;
    if (change.sample) {
      this.samples.push(change.sample);
      if (this.samples.length > KEPT_SAMPLES) this.samples.splice(0, this.samples.length - KEPT_SAMPLES);
    }
    if (change.groups) this.paint();
    this.dispatchEvent(new CustomEvent("change", { detail: change }));
  }

  rootOf(key) {
    const seen = new Set();
    for (let group = this.groups.get(key); group?.parent && this.groups.has(group.parent) && !seen.has(key);) {
      seen.add(key);
      key = group.parent;
      group = this.groups.get(key);
    }
    return key;
  }

  childrenOf(key) {
    return [...this.groups].filter(([, group]) => group.parent === key).map(([child]) => child);
  }

  leavesOf(key) {
    const below = this.childrenOf(key);
    return below.length ? below.flatMap((child) => this.leavesOf(child)) : [key];
  }

  // Hues by the golden angle, in the order in which roots appear; those of roots that are gone are given back.
  paint() {
    const roots = new Set([...this.groups.keys()].map((key) => this.rootOf(key)));
    for (const key of this.hues.keys()) if (!roots.has(key)) this.hues.delete(key);
    const taken = new Set(this.hues.values());
    let next = 0;
    for (const key of roots) {
      if (this.hues.has(key)) continue;
      while (taken.has(next)) next++;
      taken.add(next);
      this.hues.set(key, next);
    }
  }

  hue(key) {
    return hueOf(this.hues.get(this.rootOf(key)) ?? 0);
  }

  // What a share of a node belongs to, for the way the map is coloured: its gang, namespace or owner; "": no colour.
  category(mode, key) {
    if (mode === "namespace") return parts(key).namespace;
    if (isAlone(key)) return "";
    const root = this.rootOf(key);
    return mode === "owner" ? this.groups.get(root)?.owner || "" : root;
  }

  hueOfCategory(mode, category) {
    if (mode === "gang") return this.hue(category);
    const known = this.numbers[mode];
    if (!known.has(category)) known.set(category, known.size);
    return hueOf(known.get(category));
  }

  // How many gangs have pods on nodes or wait for them: from about thirty on their colours look alike.
  gangs() {
    return this.hues.size;
  }

  // Pods and amount of the first resource by namespace and priority: running, pending, evicted in the last day.
  use() {
    const found = new Map();
    const row = (namespace, priority) => {
      const key = `${namespace} ${priority}`;
      if (!found.has(key)) found.set(key, { namespace, priority, pods: 0, amount: 0, pending: 0, evicted: 0 });
      return found.get(key);
    };
    for (const node of this.nodes.values())
      for (const [key, [pods, amount]] of Object.entries(node.shares)) {
        const alone = isAlone(key) ? key.split("/") : null;
        const each = alone
          ? row(alone[1], Number(alone[2]))
          : row(parts(key).namespace, this.groups.get(key)?.priority ?? 0);
        each.pods += pods;
        each.amount += amount;
      }
    for (const [namespace, priority, , pods] of this.queue.by ?? []) row(namespace, priority).pending += pods;
    for (const [namespace, priority, pods] of this.evicted) row(namespace, priority).evicted += pods;
    return [...found.values()];
  }

  // Which nodes hold a group, with the number of its pods there.
  nodesOf(key) {
    const leaves = new Set(this.leavesOf(key));
    const found = new Map();
    for (const node of this.nodes.values())
      for (const [of, [pods]] of Object.entries(node.shares))
        if (leaves.has(of)) found.set(node.name, (found.get(node.name) ?? 0) + pods);
    return found;
  }

  // Domains as a tree, outermost first; nodes that lack a label stand beside the others without a name.
  tree() {
    /** @type {any} */
    const root = { name: "", children: new Map(), nodes: [] };
    for (const node of this.nodes.values()) {
      let at = root;
      node.domains.forEach((domain, level) => {
        if (!at.children.has(domain)) at.children.set(domain, { name: domain, level, children: new Map(), nodes: [] });
        at = at.children.get(domain);
      });
      at.nodes.push(node);
    }
    const order = new Intl.Collator("en", { numeric: true });
    const tidy = (at) => {
      at.children = [...at.children.values()].sort((a, b) => order.compare(a.name, b.name));
      at.children.forEach(tidy);
      at.nodes.sort((a, b) => order.compare(a.name, b.name));
      at.count = at.nodes.length + at.children.reduce((sum, child) => sum + child.count, 0);
    };
    tidy(root);
    return root;
  }

  // How many pods of a shape fit, by domain of each level, counting room alone. Shape: amounts by index of resource.
  room(shape) {
    const levels = this.keys.map((key, level) => ({ name: levelName(key), level, domains: new Map() }));
    let all = 0,
      most = 0,
      best = "";
    for (const node of this.nodes.values()) {
      let slots = Infinity;
      if (node.flags & (FLAG.cordoned | FLAG.notReady | FLAG.tainted)) slots = 0;
      else
        for (const [index, wants] of shape)
          if (wants > 0) slots = Math.min(slots, Math.floor((node.alloc[index] - node.used[index]) / wants));
      slots = Number.isFinite(slots) ? Math.max(0, slots) : 0;
      all += slots;
      if (slots > most) [most, best] = [slots, node.name];
      for (const level of levels) {
        const domain = node.domains[level.level] || "(none)";
        level.domains.set(domain, (level.domains.get(domain) ?? 0) + slots);
      }
    }
    const found = [{ name: "node", key: HOSTNAME, best, fits: most }];
    for (const level of levels.reverse()) {
      let name = "",
        fits = -1;
      for (const [domain, slots] of level.domains) if (slots > fits) [name, fits] = [domain, slots];
      found.push({ name: level.name, key: this.keys[level.level], best: name, fits: Math.max(0, fits) });
    }
    found.push({ name: "cluster", key: "", best: "", fits: all });
    return found;
  }
}
