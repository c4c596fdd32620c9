// What the colours of the map mean, for the way it is coloured now.

import { h, refresh } from "./dom.js";
import { colour, gang, LONE, priorityColour, STATES } from "./colours.js";
import { levels } from "./paint.js";
import { middle, number, parts, short } from "./words.js";

const MOST = 10;

const entry = (style, text, props = {}) =>
  h("span", { class: "key", ...props }, h("i", { style: { background: style } }), text);

export function legend(element, map) {
  const { cluster, mode } = map;
  if (mode === "use")
    return refresh(
      element,
      entry(colour("cell"), "free"),
      entry(colour("use-0"), "up to a third"),
      entry(colour("use-1"), "two thirds"),
      entry(colour("use-2"), "nearly full"),
      entry(colour("use-3"), "full"),
    );
  if (mode === "priority") {
    const all = levels(cluster);
    const shown = all.length > 6 ? [...all.slice(0, 3), ...all.slice(-3)] : all;
    return refresh(
      element,
      entry(colour("cell"), "no pods"),
      shown.map((p) => entry(priorityColour(all.indexOf(p), all.length), `priority ${p}`)),
    );
  }
  if (mode === "state")
    return refresh(
      element,
      entry(colour("cell"), "free"),
      entry(colour("use-1"), "in use"),
      STATES.map(([name, , tone]) => entry(colour(tone), name)),
    );
  const sizes = new Map();
  let alone = false;
  for (const node of cluster.nodes.values())
    for (const [key, [pods]] of Object.entries(node.shares)) {
      const category = cluster.category(mode, key);
      if (!category) alone = true;
      else sizes.set(category, (sizes.get(category) ?? 0) + pods);
    }
  const largest = [...sizes].sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1));
  // As many as there is room for, so that "+N more" is always in sight.
  for (let most = MOST; most > 0; most--) {
    const left = largest.length - most;
    refresh(
      element,
      entry(colour("cell"), "free"),
      largest
        .slice(0, most)
        .map(([category, pods]) =>
          mode === "gang"
            ? gangKey(cluster, category, pods)
            : entry(gang(cluster.hueOfCategory(mode, category)), [
                h("span", { title: category }, middle(short(category))),
                h("small", {}, ` ${number(pods)}`),
              ]),
        ),
      left > 0 ? h("a", { class: "key more", href: "#/groups" }, `+${number(left)} more`) : "",
      alone ? entry(LONE(), mode === "owner" ? "without an owner" : "pods without a group") : "",
    );
    if (element.scrollHeight <= element.clientHeight + 1) return;
  }
}

function gangKey(cluster, key, pods) {
  const name = short(parts(key).name);
  return h(
    "button",
    {
      type: "button",
      class: "key",
      "data-focus": `legend ${key}`,
      title: parts(key).name,
      onclick: () => (location.hash = `#/group/${key.split("/").map(encodeURIComponent).join("/")}`),
    },
    h("i", { style: { background: gang(cluster.hue(key)) } }),
    h("span", {}, middle(name)),
    h("small", {}, pods),
  );
}
