// Devices of resource claims: those of one node, and what is free of the classes that a pending unit asks for.

import { h } from "./dom.js";
import { levelName, middle, number, plural } from "./words.js";

const TONES = { "in use": "", shared: "", tainted: "bad", blocked: "wait", free: "good" };
const MOST_ATTRIBUTES = 6;

// The object a name such as "default/train-0" stands for.
const podLink = (key) => h("a", { href: `#/object/pod/${key}`, title: key }, middle(key.split("/")[1] ?? key));

// Which attribute of a driver tells its devices apart is not known here: all are shown on hovering, few beside the name.
function attributes(device) {
  const all = Object.entries(device.attributes);
  const text = (list) => list.map(([name, value]) => `${levelName(name)} ${value}`).join(", ");
  return h("div", { class: "muted small", title: text(all) }, text(all.slice(0, MOST_ATTRIBUTES)));
}

function shares(device) {
  return device.shares.map(([name, used, of]) => h("div", { class: "small" }, `${levelName(name)} ${used} of ${of}`));
}

function row(device) {
  return h(
    "tr",
    { "data-device": device.name, "data-state": device.state },
    h("td", { title: `${device.driver}/${device.pool}/${device.name}` }, h("b", {}, device.name), attributes(device)),
    h("td", {}, device.classes.join(", ") || "–"),
    h(
      "td",
      { class: TONES[device.state] },
      device.state,
      device.taints.map((taint) => h("div", { class: "small" }, taint)),
      device.state === "blocked" ? h("div", { class: "muted small" }, device.why) : "",
      shares(device),
    ),
    h(
      "td",
      {},
      device.claims.map((claim) => h("div", { title: claim }, middle(claim.split("/")[1] ?? claim, 34))),
      device.pods.map((pod) => h("div", { class: "small" }, podLink(pod))),
    ),
  );
}

// The devices that a node can use, by driver and pool.
export function nodeDevices(devices) {
  if (!devices?.length) return "";
  const pools = new Map();
  for (const device of devices) {
    const key = `${device.driver}, pool ${device.pool}${device.local ? "" : ", also used by other nodes"}`;
    pools.set(key, [...(pools.get(key) ?? []), device]);
  }
  const free = devices.filter((device) => device.state === "free").length;
  return [
    h("h3", {}, `${plural(devices.length, "device")}, ${number(free)} free`),
    [...pools].map(([pool, listed]) =>
      h(
        "table",
        { class: "devices" },
        h("caption", {}, pool),
        h(
          "thead",
          {},
          h(
            "tr",
            {},
            ["Device", "Class", "State", "Claim and pod"].map((text) => h("th", { scope: "col" }, text)),
          ),
        ),
        h("tbody", {}, listed.map(row)),
      ),
    ),
  ];
}

// What `phalanx top` lists, of the classes that a pending unit asks for.
export function freeDevices(found) {
  if (!found?.rows.length) return "";
  const level = found.keys.length ? levelName(found.keys.at(-1)) : "node";
  const heads = ["Class", level, "Devices", "In use", "Tainted", "Free", "Most on a node"];
  return [
    h("h3", {}, "Devices it asks for"),
    h(
      "table",
      { class: "free-devices" },
      h("caption", {}, `By class and ${level}`),
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          heads.map((text) => h("th", { scope: "col" }, text)),
        ),
      ),
      h(
        "tbody",
        {},
        found.rows.map((each) =>
          h(
            "tr",
            { "data-class": each.deviceClass },
            h("td", {}, each.deviceClass),
            h("td", {}, each.path.join(" › ") || "all"),
            [each.devices, each.inUse, each.tainted, each.free, each.mostOnNode].map((count) =>
              h("td", { class: "num" }, number(count)),
            ),
          ),
        ),
      ),
    ),
  ];
}
