// Free room by topology level: the largest gang of a shape that fits in one node, rack, block, zone and in all.

import { h, refresh } from "./dom.js";
import { levelName, number, parts, percent, plural, resourceName, short } from "./words.js";

export class Room {
  constructor(element, cluster, map) {
    this.map = map;
    this.ask = undefined; // (manifest, note): tries such a gang
    this.element = element;
    this.fields = h("div", { class: "room-shape" });
    this.bars = h("ul", { class: "room-bars" });
    this.of = h("span", {}, "of pods with");
    this.table = h("div", {});
    this.more = h("details", { ontoggle: () => this.update() }, h("summary", {}, "The map as a table"), this.table);
    element.append(
      h("div", { class: "room-head" }, h("h2", {}, "Largest gang that fits"), this.fields),
      this.bars,
      this.more,
    );
  }

  // The shape of a group that was chosen; what people type afterwards is their own again.
  take(shape, key) {
    this.shape();
    if (!Object.keys(shape ?? {}).length) return;
    this.names.forEach((name, index) => {
      const value = shape[name] ?? 0;
      this.inputs[index].value =
        name === "cpu" ? value / 1000 : name === "memory" ? Math.round((value / 2 ** 30) * 100) / 100 : value;
    });
    this.of.textContent = `of pods like those of ${short(parts(key).name)}:`;
    this.update();
  }

  // Every innermost domain in a row: the same as the map, for those who read it.
  rows() {
    const { nodes, keys, resources } = this.map.cluster;
    const found = new Map();
    for (const node of nodes.values()) {
      const where = node.domains.join(" › ") || "no domain";
      const row = found.get(where) ?? { nodes: 0, free: 0, used: 0, all: 0 };
      row.nodes++;
      row.free += Object.keys(node.shares).length ? 0 : 1;
      row.used += node.used[0] ?? 0;
      row.all += node.alloc[0] ?? 0;
      found.set(where, row);
    }
    const order = new Intl.Collator("en", { numeric: true });
    const list = [...found].sort((a, b) => order.compare(a[0], b[0]));
    return h(
      "table",
      {},
      h(
        "caption",
        {},
        `${plural(list.length, keys.length ? levelName(keys.at(-1)) : "domain")}${list.length > 200 ? ", the first 200" : ""}`,
      ),
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          ["Where", "Nodes", "Without pods", `${resourceName(resources[0] ?? "cpu")} in use`].map((text) =>
            h("th", { scope: "col" }, text),
          ),
        ),
      ),
      h(
        "tbody",
        {},
        list
          .slice(0, 200)
          .map(([where, row]) =>
            h(
              "tr",
              {},
              h("td", {}, where),
              h("td", { class: "num" }, row.nodes),
              h("td", { class: "num" }, row.free),
              h("td", { class: "num" }, row.all ? percent(row.used / row.all) : "–"),
            ),
          ),
      ),
    );
  }

  // One field for each of the first three resources; devices start with what a whole node has.
  shape() {
    const { resources, nodes } = this.map.cluster;
    const shown = resources.filter((name) => name !== "pods").slice(0, 3);
    if (this.names?.join() !== shown.join()) {
      this.names = shown;
      const first = nodes.values().next().value;
      const start = (index) => {
        const device = !["cpu", "memory"].includes(resources[0]);
        if (index > 0 || !first) return device ? 0 : index === 0 ? 1 : 0;
        return device ? first.alloc[0] : 1;
      };
      this.inputs = shown.map((name, index) =>
        h("input", {
          type: "number",
          min: 0,
          step: "any",
          value: start(index),
          id: `room-${index}`,
          oninput: () => {
            this.of.textContent = "of pods with";
            this.update();
          },
        }),
      );
      const unit = (name) => (name === "memory" ? "GiB" : resourceName(name));
      this.fields.replaceChildren(
        this.of,
        ...shown.flatMap((name, index) => [h("label", { for: `room-${index}` }, this.inputs[index], unit(name))]),
      );
    }
    return shown.map((name, index) => {
      const value = Math.max(0, Number(this.inputs[index].value) || 0);
      return [resources.indexOf(name), name === "cpu" ? value * 1000 : name === "memory" ? value * 2 ** 30 : value];
    });
  }

  // A gang of so many pods of the shape in the fields, held together on a level.
  manifest(key, pods) {
    const limits = this.names
      .map((name, index) => [name, Number(this.inputs[index].value) || 0])
      .filter(([, value]) => value > 0)
      .map(
        ([name, value]) =>
          `${name}: ${JSON.stringify(name === "memory" ? `${Math.round(value * 1024)}Mi` : String(value))}`,
      );
    return `apiVersion: batch/v1
kind: Job
metadata: {name: largest}
spec:
  parallelism: ${pods}
  completions: ${pods}
  scheduling:
    schedulingPolicy: {gang: {}}
${key ? `    schedulingConstraints: {topology: [{key: ${key}}]}\n` : ""}  template:
    spec:
      restartPolicy: Never
      containers:
      - name: main
        image: example/train:1
        resources: {limits: {${limits.join(", ")}}}
`;
  }

  update() {
    if (!this.map.cluster.nodes.size) return;
    if (this.more.open) refresh(this.table, this.rows());
    const found = this.map.cluster.room(this.shape());
    const most = Math.max(1, found.at(-1).fits);
    refresh(
      this.bars,
      found.map(({ name, key, best, fits }) =>
        h(
          "li",
          {},
          h("span", { class: "room-name" }, name === "cluster" ? "anywhere" : `one ${name}`),
          h("span", { class: "gauge" }, h("i", { style: { width: `${(100 * Math.sqrt(fits / most)).toFixed(1)}%` } })),
          fits && this.ask
            ? h(
                "button",
                {
                  type: "button",
                  class: "num ask",
                  "data-focus": `room ${name}`,
                  title: "Ask the scheduler: opens what-if with such a gang",
                  onclick: () =>
                    this.ask(
                      this.manifest(key, fits),
                      `A gang of ${plural(fits, "such pod")}${key ? ` in one ${name}` : ""}`,
                    ),
                },
                h("b", {}, number(fits)),
                best ? ` in ${best}` : "",
              )
            : h("span", { class: "num" }, h("b", {}, number(fits))),
        ),
      ),
    );
    this.bars.title = "Counted from free room on nodes that take pods. Click a number to ask the scheduler itself.";
    this.bars.setAttribute(
      "aria-label",
      `Largest gang of this shape that fits: ${found.map((f) => `${plural(f.fits, "pod")} in one ${f.name}`).join("; ")}`,
    );
  }
}
