// Free room by topology level: the largest gang of a shape that fits in one node, rack, block, zone and in all.

import { h, refresh } from "./dom.js";
import { number, plural, resourceName } from "./words.js";

export class Room {
  constructor(element, cluster, map) {
    this.map = map;
    this.amounts = null;
    this.element = element;
    this.fields = h("div", { class: "room-shape" });
    this.bars = h("ul", { class: "room-bars" });
    element.append(
      h("div", { class: "room-head" }, h("h2", {}, "Largest gang that fits"), this.fields),
      this.bars,
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
      this.inputs = shown.map((name, index) => h("input", {
        type: "number", min: 0, step: "any", value: start(index), id: `room-${index}`, oninput: () => this.update(),
      }));
      const unit = (name) => (name === "memory" ? "GiB" : resourceName(name));
      this.fields.replaceChildren(h("span", {}, "of pods with"),
        ...shown.flatMap((name, index) => [h("label", { for: `room-${index}` }, this.inputs[index], unit(name))]));
    }
    return shown.map((name, index) => {
      const value = Math.max(0, Number(this.inputs[index].value) || 0);
      return [resources.indexOf(name), name === "cpu" ? value * 1000 : name === "memory" ? value * 2 ** 30 : value];
    });
  }

  update() {
    if (!this.map.cluster.nodes.size) return;
    const found = this.map.cluster.room(this.shape());
    const most = Math.max(1, found.at(-1).fits);
    refresh(this.bars, found.map(({ name, best, fits }) => h("li", {},
      h("span", { class: "room-name" }, name === "cluster" ? "anywhere" : `one ${name}`),
      h("span", { class: "gauge" }, h("i", { style: { width: `${(100 * Math.sqrt(fits / most)).toFixed(1)}%` } })),
      h("span", { class: "num" }, h("b", {}, number(fits)), best && fits ? ` in ${best}` : ""))));
    this.bars.title = "Counted from free room on nodes that take pods; rules of pods about each other are not looked at.";
    this.bars.setAttribute("aria-label", `Largest gang of this shape that fits: ${found.map((f) => `${plural(f.fits, "pod")} in one ${f.name}`).join("; ")}`);
  }
}

