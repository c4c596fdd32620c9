// Where everything stands on the map: nodes are cells of one size, racks hold cells, blocks racks, zones blocks.
// The largest cell with which all fits is found by halving; below a smallest size the map is panned instead.

const SMALLEST = 5,
  LARGEST = 118;

// How much room a level takes around what it holds, in pixels; a little less where cells are small.
function frame(level, depth, cell) {
  const inner = depth - 1 - level; // 0: holds nodes
  const small = cell < 9;
  return {
    pad: inner === 0 ? (small ? 3 : 6) : small ? 4 : 8,
    gap: inner === 0 ? (cell > 40 ? 6 : cell > 14 ? 3 : 1) : small ? 4 : 10,
    head: inner === 0 ? (cell < 7 ? 9 : 15) : 17,
  };
}

function grid(items, target, gap) {
  let best;
  const most = items.length;
  const step = most > 200 ? Math.ceil(most / 200) : 1;
  for (let columns = 1; columns <= most; columns += step) {
    let width = 0,
      height = 0;
    for (let at = 0; at < most; at += columns) {
      let row = 0,
        tall = 0;
      for (let k = at; k < Math.min(at + columns, most); k++) {
        row += items[k].w + (k > at ? gap : 0);
        tall = Math.max(tall, items[k].h);
      }
      width = Math.max(width, row);
      height += tall + (at ? gap : 0);
    }
    const off = Math.abs(Math.log(width / height / target)) + (most % columns ? 0.12 : 0);
    if (!best || off < best.off) best = { columns, width, height, off };
  }
  return best;
}

function measure(tree, depth, cell, target, wide, rack) {
  if (!tree.children.length) {
    const { pad, gap, head } = frame(depth - 1, depth, cell);
    const count = Math.max(1, tree.nodes.length);
    const wished = Math.max(1, Math.min(count, Math.round(Math.sqrt(count * target))));
    // Full rows look like a rack: eight nodes stand as four and four rather than three, three and two. Of many nodes
    // this cannot be seen, and racks with one node more or less should be as wide as their neighbours.
    const even = (each) => each > 0 && count % each === 0;
    const columns = count > 32 ? wished : ([wished, wished + 1, wished - 1].find(even) ?? wished);
    const rows = Math.ceil(count / columns);
    return {
      tree,
      cell,
      columns,
      pad,
      gap,
      head,
      boxes: [],
      w: Math.max(columns * cell + (columns - 1) * gap, 34) + 2 * pad,
      h: rows * cell + (rows - 1) * gap + 2 * pad + head,
    };
  }
  const level = tree.level ?? -1;
  const { pad, gap, head } = level < 0 ? { pad: 0, gap: 14, head: 0 } : frame(level, depth, cell);
  const boxes = tree.children.map((child) =>
    measure(child, depth, cell, child.children.length ? wide : rack, wide, rack),
  );
  if (tree.nodes.length)
    boxes.push(
      measure(
        { name: "", level: depth - 1, children: [], nodes: tree.nodes, count: tree.nodes.length },
        depth,
        cell,
        rack,
        wide,
        rack,
      ),
    );
  const best = grid(boxes, target, gap);
  return {
    tree,
    cell,
    boxes,
    columns: best.columns,
    pad,
    gap,
    head,
    w: best.width + 2 * pad,
    h: best.height + 2 * pad + head,
  };
}

function place(box, x, y, out) {
  box.x = x;
  box.y = y;
  out.boxes.push(box);
  if (!box.boxes.length) {
    box.tree.nodes.forEach((node, index) => {
      const column = index % box.columns,
        row = Math.floor(index / box.columns);
      out.cells.set(node.name, {
        name: node.name,
        size: box.cell,
        x: x + box.pad + column * (box.cell + box.gap),
        y: y + box.pad + box.head + row * (box.cell + box.gap),
      });
    });
    return;
  }
  let top = y + box.pad + box.head;
  for (let at = 0; at < box.boxes.length; at += box.columns) {
    let left = x + box.pad,
      tall = 0;
    for (const inner of box.boxes.slice(at, at + box.columns)) {
      place(inner, left, top, out);
      left += inner.w + box.gap;
      tall = Math.max(tall, inner.h);
    }
    top += tall + box.gap;
  }
}

// How wide blocks and racks are for their height is free: the proportions with the largest cells win.
const PROPORTIONS = [
  [1.5, 0.78],
  [1, 0.78],
  [1, 0.5],
  [2.2, 0.78],
  [0.7, 0.78],
  [1.5, 1.4],
  [0.7, 1.4],
  [2.2, 0.5],
  [1, 1],
  [1.5, 1],
  [2.2, 1],
  [0.7, 0.5],
  [1.5, 0.5],
  [3.2, 0.78],
  [0.45, 1],
  [1, 1.4],
];

export function lay(tree, depth, width, height) {
  const target = width / Math.max(1, height);
  let best;
  for (const [inner, leaf] of tree.children.length ? PROPORTIONS : PROPORTIONS.slice(0, 1)) {
    const make = (cell) => measure(tree, depth, cell, target, inner, leaf);
    let low = SMALLEST,
      high = LARGEST,
      found = make(SMALLEST);
    // Not worth a search if it cannot beat what is there.
    if (best && found.w <= width && found.h <= height) {
      const same = make(best.cell + 0.6);
      if (same.w > width || same.h > height) continue;
      [low, found] = [best.cell + 0.6, same];
    }
    for (let turn = 0; turn < 12 && high - low > 0.4; turn++) {
      const middle = (low + high) / 2;
      const tried = make(middle);
      if (tried.w <= width && tried.h <= height) [low, found] = [middle, tried];
      else high = middle;
    }
    const whole = make(Math.max(SMALLEST, Math.floor(low)));
    if (whole.w <= width && whole.h <= height) found = whole;
    // Where even the smallest cells are too many, what is shrunk least wins.
    found.seen = found.cell * Math.min(1, width / found.w, height / found.h);
    if (!best || found.seen > best.seen) best = found;
  }
  const out = { boxes: [], cells: new Map(), w: best.w, h: best.h, cell: best.cell };
  place(best, 0, 0, out);
  return out;
}
