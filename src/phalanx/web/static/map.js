// The map: two canvases (cells, and what lies over them), mouse, touch and keys. 5,000 nodes are drawn only on change.

import { h, tell } from "./dom.js";
import { lay } from "./layout.js";
import { isAlone } from "./cluster.js";
import { paintBars, paintBoxes, paintCells, paintOver, shareColour, SHARES } from "./paint.js";
import { readColours, stateOf } from "./colours.js";
import { amount, middle, parts, percent, plural, resourceName, short } from "./words.js";

const EDGE = 14;
const MANY = 600,
  SPECK = 14; // nodes; pixels

export class ClusterMap extends EventTarget {
  constructor(stage, cluster) {
    super();
    this.stage = stage;
    this.live = this.cluster = cluster;
    this.mode = "gang";
    this.resource = 0;
    this.scale = 1;
    this.shift = [0, 0]; // pixels
    this.width = this.height = 0;
    this.ratio = 1;
    /** @type {any} Names of nodes. */
    this.hover = this.focus = this.opened = null;
    /** @type {Map<string, number> | null} */
    this.chosen = null;
    /** @type {any[]} */
    this.members = [];
    this.overlay = null;
    this.hue = 0;
    /** @type {{boxes: any[], cells: Map<string, any>, w: number, h: number, cell: number}} */
    this.layout = { boxes: [], cells: new Map(), w: 1, h: 1, cell: 10 };
    this.still = matchMedia("(prefers-reduced-motion: reduce)").matches;
    this.cells = h("canvas", { class: "cells", "aria-hidden": "true" });
    this.over = h("canvas", {
      class: "over",
      id: "map",
      tabindex: "0",
      role: "application",
      "aria-label":
        "Map of the cluster. Arrow keys move from node to node, Enter opens one, plus and minus zoom, 0 shows all.",
      "aria-describedby": "map-summary",
    });
    this.tip = h("div", { class: "tip", hidden: true, "aria-hidden": "true" });
    stage.append(this.cells, this.over, this.tip);
    readColours();
    new ResizeObserver(() => this.resize()).observe(stage);
    this.onchange = (event) => this.changed(event.detail);
    cluster.addEventListener("change", this.onchange);
    this.listen();
    this.resize();
  }

  // Show another cluster: that of a recording, or the live one again.
  look(cluster) {
    this.cluster.removeEventListener("change", this.onchange);
    this.cluster = cluster;
    cluster.addEventListener("change", this.onchange);
    this.choose(null);
    this.arrange();
    this.whole();
  }

  changed(change) {
    if (this.version !== this.cluster.version || this.of !== this.cluster) this.arrange();
    if (this.key && (!change || change.nodes || change.groups)) this.choose(this.key, this.members);
    this.draw();
  }

  arrange() {
    this.version = this.cluster.version;
    this.of = this.cluster;
    const depth = this.cluster.keys.length;
    this.layout = lay(this.cluster.tree(), Math.max(1, depth), this.width - 2 * EDGE, this.height - 2 * EDGE);
    this.draw();
  }

  resize() {
    const { width, height } = this.stage.getBoundingClientRect();
    if (!width || !height) return;
    const ratio = Math.min(window.devicePixelRatio || 1, 2);
    this.width = width;
    this.height = height;
    this.ratio = ratio;
    for (const canvas of [this.cells, this.over]) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
    }
    this.arrange();
    this.whole();
  }

  // ---- what is shown

  whole() {
    const { w, h: high } = this.layout;
    this.scale = Math.min(1, (this.width - 2 * EDGE) / w, (this.height - 2 * EDGE) / high);
    this.shift = [(this.width - w * this.scale) / 2, Math.max(EDGE, (this.height - high * this.scale) / 2)];
    this.draw();
  }

  zoom(by, x = this.width / 2, y = this.height / 2) {
    const next = Math.min(12, Math.max(0.2, this.scale * by));
    this.shift = this.shift.map((at, axis) => [x, y][axis] - (([x, y][axis] - at) * next) / this.scale);
    this.scale = next;
    this.draw();
  }

  colourBy(mode, resource = this.resource) {
    this.mode = mode;
    this.resource = resource;
    this.draw();
  }

  recolour() {
    readColours();
    this.draw();
  }

  // A group lights up; members come with their ranks when they are known.
  choose(key, members = []) {
    this.key = key;
    this.members = members;
    this.chosen = key ? this.cluster.nodesOf(key) : null;
    if (this.chosen && !this.chosen.size) this.chosen = null;
    this.hue = key ? this.cluster.hue(key) : 0;
    this.draw();
  }

  // The node whose details are open is ringed.
  mark(name) {
    this.opened = name;
    this.drawOver();
  }

  // Marks: node -> {tone, text, goes}. null takes them away.
  lay(marks) {
    this.overlay = marks && marks.size ? { marks } : null;
    this.draw();
  }

  // Many nodes that would be specks: racks are bars until one zooms in, or something is marked on nodes.
  get bars() {
    return (
      this.cluster.nodes.size > MANY &&
      this.cluster.keys.length > 0 &&
      !this.overlay &&
      this.layout.cell * this.scale < SPECK
    );
  }

  draw() {
    if (this.drawing || !this.width) return;
    this.drawing = requestAnimationFrame((now) => {
      this.drawing = 0;
      const ctx = this.ready(this.cells);
      paintBoxes(ctx, this.layout, this.scale);
      const glowing = this.bars ? paintBars(ctx, this) : paintCells(this.inPixels(ctx), this.pixels(), now);
      this.paintOver();
      if (!this.painted && this.cluster.nodes.size) {
        this.painted = true;
        performance.mark("map"); // the first picture of the cluster; a test reads it
      }
      if (glowing) this.draw();
      else this.cluster.fresh.clear();
    });
  }

  drawOver() {
    if (this.drawing || this.overing) return;
    this.overing = requestAnimationFrame(() => {
      this.overing = 0;
      this.paintOver();
    });
  }

  paintOver() {
    paintOver(this.inPixels(this.ready(this.over)), this.pixels());
  }

  // Cells and what lies over them are drawn in pixels of the screen, so that zooming in shows names and devices.
  inPixels(ctx) {
    ctx.setTransform(this.ratio, 0, 0, this.ratio, this.shift[0] * this.ratio, this.shift[1] * this.ratio);
    return ctx;
  }

  pixels() {
    const { layout, scale, shift, width, height } = this;
    if (scale === 1) return this;
    const cells = new Map();
    for (const [name, cell] of layout.cells) {
      const [x, y, size] = [cell.x * scale, cell.y * scale, cell.size * scale];
      const off = x + size + shift[0] < 0 || y + size + shift[1] < 0 || x + shift[0] > width || y + shift[1] > height;
      cells.set(name, { name, x, y, size, off });
    }
    const { cluster, mode, resource, chosen, members, overlay, hover, focus, opened, hue, still } = this;
    const seen = { cluster, mode, resource, chosen, members, overlay, hover, focus, opened, hue, still };
    return { ...seen, layout: { cells }, scale: 1 };
  }

  ready(canvas) {
    const ctx = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    ctx.setTransform(1, 0, 0, 1, 0, 0);
    ctx.clearRect(0, 0, canvas.width, canvas.height);
    const by = this.ratio * this.scale;
    ctx.setTransform(by, 0, 0, by, this.shift[0] * this.ratio, this.shift[1] * this.ratio);
    return ctx;
  }

  // ---- where a node is on the page, for tests and for the tip

  /** @returns {any} */
  at(name) {
    const cell = this.layout.cells.get(name);
    if (!cell) return null;
    return [cell.x + cell.size / 2, cell.y + cell.size / 2].map((v, axis) => v * this.scale + this.shift[axis]);
  }

  find(x, y) {
    const [mx, my] = [(x - this.shift[0]) / this.scale, (y - this.shift[1]) / this.scale];
    for (const box of this.layout.boxes) {
      if (box.boxes.length || mx < box.x || my < box.y || mx > box.x + box.w || my > box.y + box.h) continue;
      const step = box.cell + box.gap;
      const column = Math.floor((mx - box.x - box.pad) / step),
        row = Math.floor((my - box.y - box.pad - box.head) / step);
      const node = column >= 0 && column < box.columns && row >= 0 ? box.tree.nodes[row * box.columns + column] : null;
      return node?.name ?? null;
    }
    return null;
  }

  // ---- mouse, touch, keys

  listen() {
    const over = this.over;
    const place = (event) => {
      const box = over.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };
    let from,
      moved = false;
    const fingers = new Map();
    over.addEventListener("pointerdown", (event) => {
      fingers.set(event.pointerId, place(event));
      from = place(event);
      moved = false;
      over.setPointerCapture(event.pointerId);
    });
    over.addEventListener("pointermove", (event) => {
      const at = place(event);
      if (fingers.size === 2 && fingers.has(event.pointerId)) {
        const [other] = [...fingers].filter(([id]) => id !== event.pointerId).map(([, where]) => where);
        const was = fingers.get(event.pointerId);
        this.zoom(
          Math.hypot(at[0] - other[0], at[1] - other[1]) /
            Math.max(1, Math.hypot(was[0] - other[0], was[1] - other[1])),
          ...other,
        );
        fingers.set(event.pointerId, at);
        moved = true;
        return;
      }
      if (from && Math.hypot(at[0] - from[0], at[1] - from[1]) > 4) {
        moved = true;
        this.shift = [this.shift[0] + at[0] - from[0], this.shift[1] + at[1] - from[1]];
        from = at;
        over.style.cursor = "grabbing";
        this.hint(null);
        return this.draw();
      }
      if (!from) this.point(this.find(...at), at);
    });
    const up = (event) => {
      fingers.delete(event.pointerId);
      over.style.cursor = "";
      if (from && !moved && event.type === "pointerup") {
        const name = this.find(...place(event));
        if (this.bars && name) this.zoom((SPECK * 1.3) / (this.layout.cell * this.scale), ...place(event));
        else if (name) this.open(name);
        else this.dispatchEvent(new Event("nothing"));
      }
      from = null;
    };
    over.addEventListener("pointerup", up);
    over.addEventListener("pointercancel", up);
    over.addEventListener("pointerleave", () => this.point(null));
    over.addEventListener(
      "wheel",
      (event) => {
        event.preventDefault();
        this.zoom(Math.exp(-event.deltaY * 0.0016), ...place(event));
      },
      { passive: false },
    );
    over.addEventListener("keydown", (event) => this.press(event));
    over.addEventListener("blur", () => {
      this.focus = null;
      this.hint(null);
      this.drawOver();
    });
  }

  open(name) {
    this.dispatchEvent(new CustomEvent("open", { detail: name }));
  }

  point(name, at) {
    if (name !== this.hover) {
      this.hover = name;
      this.over.style.cursor = name ? "pointer" : "";
      this.drawOver();
    }
    this.hint(name, at);
  }

  press(event) {
    const steps = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] };
    if (event.key in steps) this.step(...steps[event.key]);
    else if (event.key === "Enter" && this.focus) this.open(this.focus);
    else if (event.key === "+" || event.key === "=") this.zoom(1.4);
    else if (event.key === "-") this.zoom(1 / 1.4);
    else if (event.key === "0") this.whole();
    else if (event.key === "Escape") this.dispatchEvent(new Event("nothing"));
    else return;
    event.preventDefault();
  }

  // To the nearest cell in a direction; straight ahead counts more than sideways.
  step(dx, dy) {
    const cells = this.layout.cells;
    const here = this.focus ? cells.get(this.focus) : null;
    let best = here ? null : cells.keys().next().value,
      least = Infinity;
    if (here)
      for (const cell of cells.values()) {
        const x = cell.x - here.x,
          y = cell.y - here.y;
        const ahead = x * dx + y * dy,
          aside = Math.abs(x * dy) + Math.abs(y * dx);
        if (ahead > 0.5 && ahead + aside * 3 < least) [best, least] = [cell.name, ahead + aside * 3];
      }
    if (!best) return;
    this.focus = best;
    const [x, y] = this.at(best);
    if (x < 20 || y < 20 || x > this.width - 20 || y > this.height - 20)
      this.shift = [this.shift[0] + this.width / 2 - x, this.shift[1] + this.height / 2 - y];
    this.hint(best, this.at(best));
    tell(this.sentence(this.cluster.nodes.get(best)));
    this.draw();
  }

  sentence(node) {
    const where = [...node.domains].reverse().filter(Boolean).join(", ");
    const used = this.cluster.resources
      .slice(0, 1)
      .map(
        (name, index) =>
          `${amount(name, node.used[index])} of ${amount(name, node.alloc[index])} ${resourceName(name)} in use`,
      );
    const gangs = Object.keys(node.shares)
      .filter((key) => !isAlone(key))
      .map((key) => parts(key).name);
    return `${node.name}, ${where}: ${used.join()}, ${stateOf(node)[0]}${gangs.length ? `, ${gangs.slice(0, 3).join(", ")}` : ""}`;
  }

  // A rack in bars: what is in use of it, and how much of that by the largest users.
  rackHint(node) {
    const inside = [...this.cluster.nodes.values()].filter((each) => each.domains.join() === node.domains.join());
    const mode = SHARES.includes(this.mode) ? this.mode : "namespace";
    const sums = new Map();
    let used = 0,
      all = 0;
    for (const each of inside) {
      [used, all] = [used + (each.used[0] ?? 0), all + (each.alloc[0] ?? 0)];
      for (const [key, [pods]] of Object.entries(each.shares)) {
        const of = this.cluster.category(mode, key) || "without a group";
        sums.set(of, (sums.get(of) ?? 0) + pods);
      }
    }
    const first = this.cluster.resources[0] ?? "";
    const largest = [...sums].sort((a, b) => b[1] - a[1]);
    return [
      h("b", {}, node.domains.at(-1) || "no domain"),
      h(
        "div",
        { class: "muted" },
        `${plural(inside.length, "node")} · ${amount(first, used)} of ${amount(first, all)} ${resourceName(first)} in use`,
      ),
      ...largest
        .slice(0, 6)
        .map(([of, pods]) =>
          h(
            "div",
            { class: "tip-gang" },
            h("span", {}, middle(short(mode === "gang" ? parts(of).name || of : of))),
            h("span", { class: "num" }, plural(pods, "pod")),
          ),
        ),
      largest.length > 6 ? h("div", { class: "muted" }, `+${largest.length - 6} more`) : "",
      h("div", { class: "muted" }, "click to zoom in"),
    ];
  }

  hint(name, at) {
    const node = name && this.cluster.nodes.get(name);
    this.tip.hidden = !node || !at;
    if (this.tip.hidden) return;
    if (this.bars) {
      this.tip.replaceChildren(...this.rackHint(node));
      return this.placeTip(at);
    }
    const lines = this.cluster.resources.map((resource, index) => {
      const share = node.alloc[index] ? node.used[index] / node.alloc[index] : 0;
      return h(
        "div",
        { class: "tip-row" },
        h("span", {}, resourceName(resource)),
        h("span", { class: "gauge" }, h("i", { style: { width: `${Math.min(100, share * 100)}%` } })),
        h("span", { class: "num" }, `${amount(resource, node.used[index])} / ${amount(resource, node.alloc[index])}`),
      );
    });
    const gangs = Object.entries(node.shares)
      .slice(0, 6)
      .map(([key, [pods]]) =>
        h(
          "div",
          { class: "tip-gang" },
          h("i", {
            class: "dot",
            style: { background: shareColour(this.cluster, SHARES.includes(this.mode) ? this.mode : "gang", key) },
          }),
          h("span", {}, isAlone(key) ? `without a group, ${parts(key).namespace}` : middle(short(parts(key).name))),
          h("span", { class: "num" }, plural(pods, "pod")),
        ),
      );
    const more = Object.keys(node.shares).length - gangs.length;
    const mark = this.overlay?.marks.get(name);
    this.tip.replaceChildren(
      h("b", {}, node.name),
      h("div", { class: "muted" }, [...node.domains].filter(Boolean).join(" › "), " · ", stateOf(node)[0]),
      ...lines,
      ...gangs,
      more > 0 ? h("div", { class: "muted" }, `and ${more} more`) : "",
      mark?.why ? h("div", { class: "tip-mark" }, mark.why) : "",
    );
    this.placeTip(at);
  }

  placeTip(at) {
    const { width, height } = this.tip.getBoundingClientRect();
    const x = at[0] + 16 + width > this.width ? at[0] - width - 12 : at[0] + 16;
    const y = at[1] + 16 + height > this.height ? Math.max(4, this.height - height - 4) : at[1] + 16;
    this.tip.style.transform = `translate(${Math.max(4, x)}px, ${y}px)`;
  }

  // One sentence for people who cannot see the map.
  summary() {
    const { nodes, resources, queue } = this.cluster;
    const sums = resources.slice(0, 2).map((name, index) => {
      let used = 0,
        all = 0;
      for (const node of nodes.values()) [used, all] = [used + node.used[index], all + node.alloc[index]];
      return `${all ? percent(used / all) : "0 %"} of ${resourceName(name)}`;
    });
    return `${plural(nodes.size, "node")}; in use: ${sums.join(", ")}; ${queue.total} pending.`;
  }
}
