// Numbers, times and names as people say them.

export const plural = (n, one, many = `${one}s`) => `${number(n)} ${n === 1 ? one : many}`;
export const number = (n) => n.toLocaleString("en-US");
export const percent = (x) => `${x > 0 && x < 0.01 ? "<1" : Math.round(x * 100)} %`;

const UNITS = [["Ti", 2 ** 40], ["Gi", 2 ** 30], ["Mi", 2 ** 20], ["Ki", 2 ** 10]];

export function amount(resource, value) {
  if (resource === "cpu") return trim(value / 1000);
  if (resource === "memory" || resource.endsWith("storage") || resource.startsWith("hugepages")) {
    for (const [unit, size] of UNITS) if (value >= size) return `${trim(value / size)} ${unit}B`;
    return `${value} B`;
  }
  return number(value);
}

const trim = (x) => number(x >= 100 ? Math.round(x) : Math.round(x * 10) / 10);

export function resourceName(name) {
  if (name === "cpu") return "CPU";
  if (name === "memory") return "memory";
  const last = name.split("/").pop();
  return last === "gpu" ? "GPU" : last;
}

export const levelName = (key) => key.split("/").pop();

export function age(seconds) {
  if (seconds < 0) seconds = 0;
  if (seconds < 10) return `${Math.round(seconds * 10) / 10} s`;
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 90 * 60) return `${Math.round(seconds / 60)} min`;
  if (seconds < 36 * 3600) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} days`;
}

export const clock = (seconds) =>
  new Date(seconds * 1000).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });

const KINDS = { pod: "Pod", podgroup: "PodGroup", compositepodgroup: "CompositePodGroup", workload: "Workload" };

export function parts(key) {
  const [kind, namespace, ...rest] = key.split("/");
  return { kind: KINDS[kind] ?? kind, namespace, name: rest.join("/") };
}

// A name without what controllers add to make it unique; the whole name is shown beside it or on hovering.
export const short = (name) =>
  name
    .replace(/-what-if$/, "")
    .replace(/-[0-9a-f]{8,10}-[a-z0-9.-]*-pgt-(\d+)-[0-9a-f]{8,10}$/, (_, number) => (number === "0" ? "" : `-${number}`))
    .replace(/-[0-9a-f]{8,10}$/, "");

// What ruled most of them out, in few words.
function ruledOut(text) {
  const all = [...text.matchAll(/(\d+) \w+ ruled out by ([^,;]+)/g)].sort((a, b) => b[1] - a[1]);
  const why = all[0]?.[2] ?? "";
  const short = /Insufficient ([\w./-]+)/.exec(why);
  if (short) return `short of ${resourceName(short[1])}`;
  if (/node affinity\/selector/.test(why)) return "nodes do not match its node selector";
  if (/taint/.test(why)) return "taints it does not tolerate";
  if (/unschedulable/.test(why)) return "nodes are cordoned";
  return "";
}

// The heart of a message in the scheduler's exact words, as one would say it; "" where it is not of a known form.
export function gist(message) {
  const text = message ?? "";
  const missing = /has (\d+) of (\d+) pods, (\d+) missing/.exec(text);
  if (missing) return `${number(Number(missing[3]))} of its ${number(Number(missing[2]))} pods are not there yet`;
  const room = /(?:PodGroup (\S+) )?needs (\d+) (pods|groups)( together)?(?: in one (\w+))?; (?:best \w+ (\S+) fits|room for) (\d+)(?: \(limited by ([\w./-]+)\))?/.exec(text);
  if (!room) return "";
  const [, who, needed, what, , level, best, fits, limit] = room; // who: the part of a tree that has no place
  const where = level ? ` in one ${level}` : "";
  const none = fits === "0";
  const there = best && !none ? `the best one, ${best}, has room for ${number(Number(fits))}` : none ? "there is room for none" : `there is room for ${number(Number(fits))}`;
  const because = limit ? `short of ${resourceName(limit)}` : ruledOut(text);
  return `${who ? `${short(who)} needs` : "Needs"} ${number(Number(needed))} ${what} at once${where}; ${there}${because ? ` (${because})` : ""}`;
}

// Why a root waits, in a word or two: what the filter of the queue offers.
export function reason(root) {
  const text = root.message ?? "";
  if (/waiting for minCount|to appear|quorum|has \d+ of \d+/.test(text)) return "members missing";
  if (root.place === "gated") return "held at the gate";
  const limit = /limited by ([\w./-]+)|Insufficient ([\w./-]+)/.exec(text);
  if (limit) return `short of ${resourceName((limit[1] ?? limit[2]).replace(/[.;,)]+$/, ""))}`;
  if (/untolerated taint/.test(text)) return "taints";
  if (/node affinity\/selector/.test(text)) return "node selector";
  if (/affinity|selector/.test(text)) return "affinity";
  if (root.place === "active" || root.place === "attempt") return "next to be tried";
  if (root.place === "backoff") return "backing off";
  return "does not fit";
}

export const PLACES = {
  active: "in line", attempt: "being tried", backoff: "backing off", waiting: "waiting until something changes", gated: "held",
};
