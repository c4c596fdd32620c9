// Draws the map on a canvas: boxes of domains, cells of nodes, and what is laid over them. Knows nothing of the mouse.

import { FLAG } from "./constants.js";
import { middle } from "./words.js";
import { colour, gang, isDark, LONE, priorityColour, stateOf, use } from "./colours.js";

const LARGEST_LABEL = 18; // pixels on the screen, however far one zooms in
const GLOW = 900; // milliseconds a change stays visible

export function paintBoxes(ctx, layout, scale) {
  for (const box of layout.boxes) {
    const level = box.tree.level;
    if (level === undefined || level < 0) continue;
    const leaf = !box.boxes.length;
    ctx.fillStyle = colour(leaf ? "box-2" : "box");
    round(ctx, box.x, box.y, box.w, box.h, leaf ? 5 : 8);
    ctx.fill();
    if (!leaf) {
      ctx.strokeStyle = colour("line");
      ctx.lineWidth = 1 / scale;
      ctx.stroke();
    }
    const size = Math.min(leaf ? 10.5 : 11.5, box.head - 2, LARGEST_LABEL / scale);
    if (size * scale < 6.5) continue;
    ctx.fillStyle = colour("muted");
    ctx.font = `${leaf ? 500 : 600} ${size}px system-ui, sans-serif`;
    ctx.textAlign = "left";
    ctx.textBaseline = "middle";
    const text = box.tree.name || "no domain";
    const room = box.w - 2 * box.pad;
    ctx.fillText(fit(ctx, text, room), box.x + box.pad + 1, box.y + box.pad / 2 + box.head / 2 + 1);
  }
}

// A name that is too wide loses its middle; a short one its beginning, for neighbours differ at the end (rack-10, rack-11).
function fit(ctx, text, room) {
  const fits = (tried) => ctx.measureText(tried).width <= room;
  if (fits(text)) return text;
  for (let most = text.length - 1; most > 8; most--) if (fits(middle(text, most))) return middle(text, most);
  for (let from = 1; from < text.length; from++) {
    const startsPart = /[-_.]/.test(text[from - 1]);
    if (startsPart && fits(`…${text.slice(from)}`)) return `…${text.slice(from)}`;
    if (startsPart && fits(text.slice(from))) return text.slice(from);
  }
  for (let from = 1; from < text.length; from++) if (fits(text.slice(from))) return text.slice(from);
  return "";
}

export function paintCells(ctx, view, now) {
  const { cluster, layout, mode, resource, chosen, overlay } = view;
  const priorities = mode === "priority" ? levels(cluster) : [];
  let glowing = false;
  for (const cell of layout.cells.values()) {
    const node = cell.off ? null : cluster.nodes.get(cell.name);
    if (!node) continue;
    const dim = (chosen && !chosen.has(cell.name)) || (overlay && !overlay.marks.has(cell.name));
    ctx.globalAlpha = dim ? (isDark() ? 0.28 : 0.34) : 1;
    base(ctx, cell);
    if (SHARES.includes(mode)) gangs(ctx, cell, node, cluster, mode);
    else if (mode === "priority") byPriority(ctx, cell, node, priorities);
    else if (mode === "state") byState(ctx, cell, node);
    else byUse(ctx, cell, node, resource);
    if (node.flags & (FLAG.cordoned | FLAG.notReady))
      hatch(ctx, cell, node.flags & FLAG.notReady ? colour("bad") : colour("muted"));
    ctx.globalAlpha = 1;
    const since = now - (cluster.fresh.get(cell.name) ?? -1e9);
    if (since < GLOW && !view.still) {
      glowing = true;
      ctx.strokeStyle = colour("accent");
      ctx.globalAlpha = 1 - since / GLOW;
      ctx.lineWidth = Math.max(1, cell.size / 34);
      round(ctx, cell.x - 1, cell.y - 1, cell.size + 2, cell.size + 2, radius(cell));
      ctx.stroke();
      ctx.globalAlpha = 1;
    }
    if (cell.size * view.scale > 46 && !dim) caption(ctx, cell, node);
  }
  return glowing;
}

// A rack as one bar: how much of its first resource is in use, by what it belongs to. For clusters whose nodes would
// be specks; zooming in shows the nodes.
export function paintBars(ctx, view) {
  const { cluster, layout, mode, resource, chosen, key } = view;
  const leaves = chosen && key ? new Set(cluster.leavesOf(key)) : null;
  for (const box of layout.boxes) {
    if (box.boxes.length) continue;
    const nodes = box.tree.nodes.map(({ name }) => cluster.nodes.get(name)).filter(Boolean);
    const parts = barParts(cluster, nodes, mode, resource, leaves);
    const total = parts.total || 1;
    const x = box.x + box.pad,
      y = box.y + box.pad + box.head,
      w = box.w - 2 * box.pad,
      high = box.h - 2 * box.pad - box.head;
    ctx.fillStyle = colour("cell");
    round(ctx, x, y, w, high, 3);
    ctx.fill();
    ctx.save();
    ctx.clip();
    let at = 0;
    for (const [style, amount, dim] of parts.list) {
      ctx.globalAlpha = dim ? 0.25 : 1;
      ctx.fillStyle = style;
      ctx.fillRect(x + (w * at) / total, y, (w * amount) / total + 0.5, high);
      at += amount;
    }
    ctx.globalAlpha = 1;
    ctx.restore();
    if (nodes.some((node) => node.flags & FLAG.notReady)) {
      ctx.strokeStyle = colour("bad");
      ctx.lineWidth = 2 / view.scale;
      round(ctx, x, y, w, high, 3);
      ctx.stroke();
    }
  }
}

// [[colour, amount, dim]] of some nodes, largest first, and the total they have.
function barParts(cluster, nodes, mode, resource, leaves) {
  const sums = new Map();
  const index = mode === "use" ? resource : 0;
  let total = 0;
  const add = (style, amount, dim) => {
    const of = `${style} ${dim}`;
    const known = sums.get(of) ?? [style, 0, dim];
    known[1] += amount;
    sums.set(of, known);
  };
  const priorities = mode === "priority" ? levels(cluster) : [];
  for (const node of nodes) {
    const has = node.alloc[index] || 0;
    total += has;
    if (mode === "use") add(use(shareOf(node, index)), node.used[index], false);
    else if (mode === "state") stateOf(node)[0] === "free" || add(stateOf(node)[1], has, false);
    else if (mode === "priority")
      node.priority === null ||
        add(priorityColour(priorities.indexOf(node.priority), priorities.length), node.used[0], false);
    else
      for (const [key, [, amount]] of Object.entries(node.shares))
        if (amount) add(shareColour(cluster, mode, key), amount, leaves ? !leaves.has(key) : false);
  }
  return { total, list: [...sums.values()].sort((a, b) => a[2] - b[2] || b[1] - a[1]) };
}

const radius = (cell) => (cell.size > 30 ? 6 : cell.size > 12 ? 3 : cell.size > 7 ? 1.5 : 0.5);

// Below this many pixels a cell is a plain square: corners would cost more than they show.
const PLAIN = 14;
const NAMED = 56; // from here on a cell bears the name of its node, and what is shown stands below it

function below(cell) {
  const edge = cell.size * 0.1,
    top = cell.size * 0.3;
  return { x: cell.x + edge, y: cell.y + top, w: cell.size - 2 * edge, h: cell.size - top - edge };
}

const SEEN = 7; // pixels from the middle of a node to the ring around it, at least
const PIPS = 26; // and from here on devices are shown one by one

function base(ctx, cell) {
  ctx.fillStyle = colour("cell");
  if (cell.size < PLAIN) return ctx.fillRect(cell.x, cell.y, cell.size, cell.size);
  round(ctx, cell.x, cell.y, cell.size, cell.size, radius(cell));
  ctx.fill();
  ctx.strokeStyle = colour("cell-edge");
  ctx.lineWidth = 0.75;
  ctx.stroke();
}

// A part of a cell, filled from the bottom.
function part(ctx, cell, from, to, style) {
  if (to <= from) return;
  if (cell.size < PLAIN) {
    ctx.fillStyle = style;
    return ctx.fillRect(cell.x, cell.y + cell.size * (1 - to), cell.size, cell.size * (to - from));
  }
  ctx.save();
  round(ctx, cell.x, cell.y, cell.size, cell.size, radius(cell));
  ctx.clip();
  ctx.fillStyle = style;
  ctx.fillRect(cell.x, cell.y + cell.size * (1 - to), cell.size, cell.size * (to - from));
  ctx.restore();
}

function whole(ctx, cell, style) {
  ctx.fillStyle = style;
  if (cell.size < PLAIN) return ctx.fillRect(cell.x, cell.y, cell.size, cell.size);
  round(ctx, cell.x, cell.y, cell.size, cell.size, radius(cell));
  ctx.fill();
}

const shareOf = (node, resource) =>
  node.alloc[resource] > 0 ? Math.min(1, node.used[resource] / node.alloc[resource]) : 0;

function byUse(ctx, cell, node, resource) {
  const share = shareOf(node, resource);
  const units = node.alloc[resource];
  if (cell.size >= PIPS && units > 1 && units <= 16) return pips(ctx, cell, units, [[node.used[resource], use(share)]]);
  if (share <= 0) return;
  if (cell.size < 16) return whole(ctx, cell, use(share));
  part(ctx, cell, 0, Math.max(share, 0.06), use(share));
}

// Modes in which the parts of a node are coloured by what their pods belong to.
export const SHARES = ["gang", "namespace", "owner"];

export function shareColour(cluster, mode, key) {
  const category = cluster.category(mode, key);
  return category ? gang(cluster.hueOfCategory(mode, category)) : LONE();
}

function gangs(ctx, cell, node, cluster, mode) {
  const entries = Object.entries(node.shares).sort();
  const total = node.alloc[0] || 0;
  const style = (key) => shareColour(cluster, mode, key);
  const holding = entries.filter(([, [, amount]]) => amount > 0);
  const others = entries.filter(([, [, amount]]) => !amount);
  if (cell.size >= PIPS && total > 1 && total <= 16)
    pips(
      ctx,
      cell,
      total,
      holding.map(([key, [, amount]]) => [amount, style(key)]),
    );
  else if (cell.size < 12 && holding.length === 1 && holding[0][1][1] >= total) whole(ctx, cell, style(holding[0][0]));
  else {
    let at = 0;
    for (const [key, [, amount]] of holding) {
      const share = total ? amount / total : 1 / holding.length;
      part(ctx, cell, at, Math.min(1, at + share), style(key));
      at += share;
    }
  }
  // Pods that hold nothing of the first resource: a strip at the foot, by number of pods.
  const pods = others.reduce((sum, [, [count]]) => sum + count, 0);
  let left = cell.x;
  const high = Math.max(2, cell.size * 0.1),
    inset = cell.size >= PLAIN ? cell.size * 0.06 : 0;
  for (const [key, [count]] of others) {
    const wide = ((cell.size - 2 * inset) * count) / pods;
    ctx.fillStyle = style(key);
    round(ctx, left + inset, cell.y + cell.size - high - inset, wide, high, cell.size >= PLAIN ? high / 3 : 0);
    ctx.fill();
    left += wide;
  }
}

// One little square for each device.
function pips(ctx, cell, units, parts) {
  const columns =
    [4, 3, 2, 5].find((wide) => units % wide === 0 && units / wide <= wide) ?? Math.ceil(Math.sqrt(units));
  const rows = Math.ceil(units / columns);
  const named = cell.size >= NAMED;
  const edge = cell.size * 0.1,
    top = named ? cell.size * 0.3 : edge;
  const room = Math.min((cell.size - 2 * edge) / columns, (cell.size - top - edge) / rows);
  const size = room * 0.8;
  const left = cell.x + edge + (cell.size - 2 * edge - columns * room) / 2 + (room - size) / 2;
  const head = cell.y + top + (cell.size - top - edge - rows * room) / 2 + (room - size) / 2;
  const styles = [];
  for (const [count, style] of parts) for (let n = 0; n < count && styles.length < units; n++) styles.push(style);
  for (let n = 0; n < units; n++) {
    ctx.fillStyle = styles[n] ?? colour("cell-edge");
    const fade = styles[n] ? 1 : 0.55;
    const before = ctx.globalAlpha;
    ctx.globalAlpha = before * fade;
    round(ctx, left + (n % columns) * room, head + Math.floor(n / columns) * room, size, size, size * 0.24);
    ctx.fill();
    ctx.globalAlpha = before;
  }
}

function byPriority(ctx, cell, node, priorities) {
  if (node.priority === null) return;
  const share = Math.max(
    ...node.alloc.map((_, index) => (index < node.alloc.length - 1 ? shareOf(node, index) : 0)),
    0.12,
  );
  const style = priorityColour(priorities.indexOf(node.priority), priorities.length);
  if (cell.size < NAMED) return part(ctx, cell, 0, cell.size < 12 ? 1 : share, style);
  const box = below(cell);
  ctx.fillStyle = style;
  round(ctx, box.x, box.y + box.h * (1 - share), box.w, box.h * share, 5);
  ctx.fill();
}

export const levels = (cluster) =>
  [...new Set([...cluster.nodes.values()].map((node) => node.priority).filter((p) => p !== null))].sort(
    (a, b) => a - b,
  );

function byState(ctx, cell, node) {
  const [name, style] = stateOf(node);
  if (name === "free") return;
  if (cell.size < NAMED) return whole(ctx, cell, style);
  const box = below(cell);
  ctx.fillStyle = style;
  round(ctx, box.x, box.y, box.w, box.h, 5);
  ctx.fill();
}

function hatch(ctx, cell, style) {
  ctx.save();
  const head = cell.size >= NAMED ? cell.size * 0.27 : 0; // the name stays readable
  round(ctx, cell.x, cell.y + head, cell.size, cell.size - head, head ? 0 : radius(cell));
  ctx.clip();
  ctx.strokeStyle = style;
  ctx.lineWidth = Math.max(0.8, cell.size / 26);
  ctx.globalAlpha *= 0.6;
  ctx.beginPath();
  const step = Math.max(3, cell.size / 6);
  for (let at = -cell.size; at < cell.size; at += step) {
    ctx.moveTo(cell.x + at, cell.y + cell.size);
    ctx.lineTo(cell.x + at + cell.size, cell.y);
  }
  ctx.stroke();
  ctx.restore();
}

function caption(ctx, cell, node) {
  if (cell.size < NAMED) return;
  ctx.fillStyle = colour("muted");
  ctx.font = `500 ${Math.min(10.5, cell.size / 7)}px system-ui, sans-serif`;
  ctx.textAlign = "center";
  ctx.textBaseline = "middle";
  ctx.fillText(fit(ctx, node.name, cell.size - 8), cell.x + cell.size / 2, cell.y + cell.size * 0.155);
}

// ---- laid over

export function paintOver(ctx, view) {
  const { layout, chosen, members, overlay, hover, focus, opened, hue } = view;
  if (chosen && members.length) ranks(ctx, layout, members, gang(hue), view.scale);
  if (overlay) marks(ctx, layout, overlay, view.scale);
  const cell = layout.cells.get(opened);
  if (cell) ring(ctx, cell, colour("ink"), 3 / view.scale, Math.max(1.5, SEEN / view.scale - cell.size / 2));
  if (hover) ring(ctx, layout.cells.get(hover), colour("ink"), 1.5 / view.scale);
  if (focus) ring(ctx, layout.cells.get(focus), colour("accent"), 2.5 / view.scale, 3);
}

function ring(ctx, cell, style, width, away = 1.5) {
  if (!cell) return;
  ctx.strokeStyle = style;
  ctx.lineWidth = width;
  round(ctx, cell.x - away, cell.y - away, cell.size + 2 * away, cell.size + 2 * away, radius(cell) + away);
  ctx.stroke();
}

// Where a rank or a mark stands: at the foot of a cell that shows its devices, else in the middle.
const centre = (cell) => [
  cell.x + cell.size / 2,
  cell.size >= NAMED ? cell.y + cell.size - 10 : cell.y + cell.size / 2,
];

// Members of a gang, joined rank by rank: how far apart neighbours are can be seen at once.
function ranks(ctx, layout, members, style, scale) {
  const at = new Map();
  let last;
  ctx.strokeStyle = style;
  ctx.lineWidth = 1.6 / scale;
  ctx.lineJoin = "round";
  ctx.globalAlpha = 0.75;
  ctx.beginPath();
  for (const member of members) {
    const cell = layout.cells.get(member.node);
    if (!cell) continue;
    if (!at.has(member.node)) at.set(member.node, []);
    at.get(member.node).push(member.rank);
    const [x, y] = centre(cell);
    if (last && last.group === member.group) {
      if (last.node !== member.node) {
        const [fromX, fromY] = centre(layout.cells.get(last.node));
        const bend = Math.hypot(x - fromX, y - fromY) * 0.12;
        const along = Math.atan2(y - fromY, x - fromX) - Math.PI / 2;
        ctx.moveTo(fromX, fromY);
        ctx.quadraticCurveTo((fromX + x) / 2 + bend * Math.cos(along), (fromY + y) / 2 + bend * Math.sin(along), x, y);
      }
    }
    last = member;
  }
  ctx.stroke();
  ctx.globalAlpha = 1;
  for (const [name, numbers] of at) {
    const cell = layout.cells.get(name);
    ring(ctx, cell, style, Math.max(1.5, cell.size / 32) / Math.sqrt(scale), 1.5);
    label(ctx, cell, span(numbers), style, scale);
  }
}

export function span(numbers) {
  numbers.sort((a, b) => a - b);
  if (numbers.length > 2 && numbers.at(-1) - numbers[0] === numbers.length - 1)
    return `${numbers[0]}–${numbers.at(-1)}`;
  return numbers.length > 3 ? `${numbers.slice(0, 2).join(",")}…` : numbers.join(",");
}

function label(ctx, cell, text, style, scale) {
  let size = Math.min(12, Math.max(cell.size * 0.42, 7));
  if (size * scale < 6 || cell.size * scale < 11) return;
  ctx.font = `700 ${size}px system-ui, sans-serif`;
  const over = (ctx.measureText(text).width + size * 0.7) / cell.size;
  if (over > 1) {
    size = Math.max(6.5, size / over);
    ctx.font = `700 ${size}px system-ui, sans-serif`;
  }
  ctx.textAlign = "center";
  ctx.textBaseline = "middle";
  const [x, y] = centre(cell);
  const wide = Math.max(size * 1.5, ctx.measureText(text).width + size * 0.7);
  ctx.fillStyle = colour("stage");
  round(ctx, x - wide / 2, y - size * 0.75, wide, size * 1.5, size * 0.75);
  ctx.fill();
  ctx.strokeStyle = style;
  ctx.lineWidth = 1.2 / scale;
  ctx.stroke();
  ctx.fillStyle = colour("ink");
  ctx.fillText(text, x, y + size * 0.04);
}

// What would happen: pods that would come (a, b), go (bad) or be moved to (good).
function marks(ctx, layout, overlay, scale) {
  for (const [name, mark] of overlay.marks) {
    const cell = layout.cells.get(name);
    if (!cell) continue;
    const style = colour(mark.tone);
    ctx.save();
    ctx.globalAlpha = 0.2;
    whole(ctx, cell, style);
    ctx.restore();
    if (mark.goes) hatch(ctx, cell, style);
    ctx.setLineDash(mark.goes ? [] : [4 / scale, 2.5 / scale]);
    ring(ctx, cell, style, Math.max(1.5, cell.size / 36) / Math.sqrt(scale), 1.5);
    ctx.setLineDash([]);
    if (mark.text) label(ctx, cell, mark.text, style, scale);
  }
}

export function round(ctx, x, y, w, h, r) {
  ctx.beginPath();
  if (r < 1) ctx.rect(x, y, w, h);
  else ctx.roundRect(x, y, w, h, Math.min(r, w / 2, h / 2));
}
