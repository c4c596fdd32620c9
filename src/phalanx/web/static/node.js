// One node: what it has, what is on it, for which groups and pods room is reserved there.

import { nodeDevices } from "./devices.js";
import { h, show } from "./dom.js";
import { isAlone } from "./cluster.js";
import { gang, stateOf } from "./colours.js";
import { amount, levelName, parts, plural, resourceName, short } from "./words.js";

export function nodeView(app) {
  let name = "",
    element;

  async function update() {
    const { cluster } = app.map;
    const node = cluster.nodes.get(name);
    const asked = name;
    let found,
      problem = "";
    if (cluster.live)
      try {
        found = await app.ask.node(name);
      } catch (wrong) {
        problem = wrong.message;
      }
    if (asked !== name || !element?.isConnected) return;
    if (!node)
      return show(element, h("h2", {}, name), h("p", { class: "empty" }, problem || "This node is not there."));
    const held = Object.entries(node.shares);
    show(
      element,
      h(
        "a",
        { class: "back", href: app.recorded() ? "#/time" : "#/map" },
        app.recorded() ? "‹ Recording" : app.wide() ? "‹ Queue" : "‹ Map",
      ),
      h("h2", {}, name),
      h(
        "p",
        { class: "muted" },
        node.domains.map((domain, level) => domain || `no ${levelName(cluster.keys[level])}`).join(" › "),
        " · ",
        stateOf(node)[0],
      ),
      h(
        "ul",
        { class: "gauges" },
        cluster.resources.map((resource, index) =>
          h(
            "li",
            {},
            h("span", {}, resourceName(resource)),
            h(
              "span",
              { class: "gauge" },
              h("i", {
                style: {
                  width: `${Math.min(100, node.alloc[index] ? (100 * node.used[index]) / node.alloc[index] : 0)}%`,
                },
              }),
            ),
            h(
              "span",
              { class: "num" },
              `${amount(resource, node.used[index])} of ${amount(resource, node.alloc[index])}`,
            ),
          ),
        ),
      ),
      found ? h("p", {}, h("a", { class: "button", href: `#/object/node/${name}` }, "YAML and kubectl")) : "",
      found?.taints.length
        ? h(
            "p",
            { class: "chips" },
            found.taints.map((taint) => h("span", { class: "chip" }, `taint ${taint}`)),
          )
        : "",
      found?.reserved.length ? h("p", {}, "reserved for ", found.reserved.join(", ")) : "",
      nodeDevices(found?.devices),
      h("h3", {}, held.length ? "Groups here" : "No pods here"),
      h(
        "ul",
        { class: "plain" },
        held.map(([key, [pods]]) =>
          h(
            "li",
            {},
            h("i", { class: "dot", style: { background: isAlone(key) ? "" : gang(cluster.hue(key)) } }),
            isAlone(key)
              ? `without a group, in ${parts(key).namespace}`
              : h("a", { href: `#/group/${key}`, title: parts(key).name }, short(parts(key).name)),
            h("span", { class: "muted" }, ` ${plural(pods, "pod")}`),
          ),
        ),
      ),
      found?.pods.length
        ? h(
            "table",
            {},
            h("caption", {}, plural(found.pods.length, "pod")),
            h(
              "thead",
              {},
              h(
                "tr",
                {},
                ["Pod", "Requests", "Priority", "State"].map((text) => h("th", { scope: "col" }, text)),
              ),
            ),
            h(
              "tbody",
              {},
              found.pods.slice(0, 200).map((pod) =>
                h(
                  "tr",
                  {},
                  h("td", {}, h("a", { href: `#/object/pod/${pod.namespace}/${pod.name}` }, pod.name)),
                  h(
                    "td",
                    {},
                    Object.entries(pod.requests)
                      .filter(([of]) => of !== "pods")
                      .map(([of, much]) => `${amount(of, much)} ${resourceName(of)}`)
                      .join(", ") || "–",
                  ),
                  h("td", { class: "num" }, pod.priority),
                  h("td", {}, pod.state),
                ),
              ),
            ),
          )
        : "",
    );
  }

  return {
    open(view, argument) {
      name = argument;
      app.light(null);
      element = h("div", { class: "node" }, h("h2", {}, name));
      show(view, element);
      update();
    },
    change: (change) => (!change || change.nodes?.[name] !== undefined) && update(),
  };
}
