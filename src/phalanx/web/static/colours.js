// Colours of the map, from the style sheet where it has them, made by hue where there is one per gang.

import { FLAG } from "./constants.js";

let dark = true;
let named = {};

export function readColours() {
  const style = getComputedStyle(document.documentElement);
  const get = (name) => style.getPropertyValue(name).trim();
  dark = get("--is-dark") === "1";
  named = Object.fromEntries(
    [
      "ink",
      "muted",
      "line",
      "cell",
      "cell-edge",
      "box",
      "box-2",
      "accent",
      "good",
      "wait",
      "bad",
      "plan",
      "a",
      "b",
      "use-0",
      "use-1",
      "use-2",
      "use-3",
      "stage",
    ].map((name) => [name, get(`--${name}`)]),
  );
}

export const colour = (name) => named[name];
export const isDark = () => dark;

const made = new Map(); // a text for each hue: they are asked for by the thousand

export function gang(hue) {
  const key = Math.round(hue * 10) + (dark ? 0 : 100000);
  let style = made.get(key);
  if (!style) {
    if (made.size > 4096) made.clear();
    const light = (dark ? [0.75, 0.64, 0.84] : [0.64, 0.54, 0.73])[Math.floor(hue / 1000)];
    made.set(key, (style = `oklch(${light} ${dark ? 0.135 : 0.15} ${(hue % 1000).toFixed(1)})`));
  }
  return style;
}
export const LONE = () => (dark ? "oklch(0.6 0.02 255)" : "oklch(0.66 0.02 255)");

// Four stops, light to deep: how much of a node is in use.
export function use(share) {
  if (share <= 0) return named.cell;
  return named[share < 0.34 ? "use-0" : share < 0.67 ? "use-1" : share < 1 ? "use-2" : "use-3"];
}

export const priorityColour = (rank, of) =>
  `oklch(${dark ? 0.78 - 0.2 * (1 - rank / Math.max(1, of - 1)) : 0.75 - 0.27 * (rank / Math.max(1, of - 1))} ${0.06 + 0.11 * (rank / Math.max(1, of - 1))} ${265 - 235 * (rank / Math.max(1, of - 1))})`;

export const STATES = [
  ["not ready", "notReady", "bad"],
  ["pods leaving", "leaving", "wait"],
  ["reserved", "promised", "plan"],
  ["binding", "binding", "good"],
  ["cordoned", "cordoned", "muted"],
  ["tainted", "tainted", "b"],
];

export function stateOf(node) {
  for (const [name, flag, tone] of STATES) if (node.flags & FLAG[flag]) return [name, named[tone]];
  if (Object.keys(node.shares).length) return ["in use", named["use-1"]];
  return ["free", named.cell];
}
