// Numbers, times and names as people say them.

import { DEVICE_CLASS_PREFIX, GENERATED_NAME, HASH_AT_END, KINDS, SUFFIXES } from "./constants.js";

export const plural = (n, one, many = `${one}s`) => `${number(n)} ${n === 1 ? one : many}`;
export const number = (n) => n.toLocaleString("en-US");
export const percent = (x) => `${x > 0 && x < 0.01 ? "<1" : Math.round(x * 100)} %`;

const UNITS = ["Ti", "Gi", "Mi", "Ki"];

export function amount(resource, value) {
  if (resource === "cpu") return trim(value / 1000);
  if (resource === "memory" || resource.endsWith("storage") || resource.startsWith("hugepages")) {
    for (const unit of UNITS) if (value >= SUFFIXES[unit]) return `${trim(value / SUFFIXES[unit])} ${unit}B`;
    return `${value} B`;
  }
  return number(value);
}

const trim = (x) => number(x >= 100 ? Math.round(x) : Math.round(x * 10) / 10);

export function resourceName(name) {
  if (name.startsWith(DEVICE_CLASS_PREFIX)) return `${name.slice(DEVICE_CLASS_PREFIX.length)} devices`;
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

export function parts(key) {
  const [kind, namespace, ...rest] = key.split("/");
  return { kind: KINDS[kind] ?? kind, namespace, name: rest.join("/") };
}

// A name without what controllers add to make it unique; the whole name is shown on hovering.
const GENERATED = new RegExp(GENERATED_NAME);
const ENDS_WITH_HASH = new RegExp(HASH_AT_END);

export const short = (name) =>
  name
    .replace(/-what-if$/, "")
    .replace(GENERATED, (_, job, at) => (at === "0" ? job : `${job}-${at}`))
    .replace(ENDS_WITH_HASH, "");

export const capital = (text) => text.slice(0, 1).toUpperCase() + text.slice(1);

// A long name is cut in the middle: what tells it from its like is mostly at its end.
export const middle = (name, most = 26) =>
  name.length <= most ? name : `${name.slice(0, most - 1 - Math.floor(most / 3))}…${name.slice(-Math.floor(most / 3))}`;

// "Job train" in a narrow column: only "Job" beside an object that is called train, or train-0.
export function ownerBeside(owner, name) {
  const [kind, ...rest] = owner.split(" ");
  const of = short(rest.join(" "));
  return short(name) === of || name.startsWith(`${of}-`) ? kind : middle(short(owner), 20);
}
