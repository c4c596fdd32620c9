// Use by namespace and priority: what runs, what is pending, and what was evicted in the last day.

import { h, show } from "./dom.js";
import { choice, Table } from "./table.js";
import { amount, number, percent, resourceName } from "./words.js";

export function useView(app) {
  let element,
    table,
    by = "both",
    picked = "";

  const first = () => app.map.cluster.resources[0] ?? "";
  function rows() {
    const found = new Map();
    for (const row of app.map.cluster.use()) {
      if (picked && row.namespace !== picked) continue;
      const key = by === "both" ? `${row.namespace} ${row.priority}` : String(row[by]);
      const sum = found.get(key) ?? {
        key,
        namespace: by === "priority" ? "" : row.namespace,
        priority: by === "namespace" ? null : row.priority,
        pods: 0,
        amount: 0,
        pending: 0,
        evicted: 0,
      };
      for (const name of ["pods", "amount", "pending", "evicted"]) sum[name] += row[name];
      found.set(key, sum);
    }
    return [...found.values()].sort((a, b) => b.amount - a.amount || b.pods - a.pods || b.pending - a.pending);
  }

  const total = () => {
    let all = 0;
    for (const node of app.map.cluster.nodes.values()) all += node.alloc[0] ?? 0;
    return all;
  };
  const columns = [
    { name: "namespace", head: "Namespace", by: (row) => row.namespace, cell: (row) => row.namespace || "all" },
    {
      name: "priority",
      head: "Priority",
      num: true,
      largest: true,
      by: (row) => row.priority ?? 0,
      cell: (row) => (row.priority === null ? "all" : number(row.priority)),
    },
    { name: "pods", head: "Running", num: true, largest: true, by: (row) => row.pods, cell: (row) => number(row.pods) },
    {
      name: "amount",
      head: "In use",
      num: true,
      largest: true,
      by: (row) => row.amount,
      cell: (row) => `${amount(first(), row.amount)} ${resourceName(first())}`,
    },
    {
      name: "share",
      head: "Share",
      num: true,
      largest: true,
      by: (row) => row.amount,
      cell: (row) => (total() ? percent(row.amount / total()) : ""),
    },
    {
      name: "pending",
      head: "Pending",
      num: true,
      largest: true,
      by: (row) => row.pending,
      cell: (row) => h("span", { class: row.pending ? "wait" : "" }, number(row.pending)),
    },
    {
      name: "evicted",
      head: "Evicted",
      num: true,
      wide: true,
      largest: true,
      by: (row) => row.evicted,
      cell: (row) => h("span", { class: row.evicted ? "bad" : "" }, number(row.evicted)),
    },
  ];

  function update() {
    if (!element?.isConnected) return;
    document.body.toggleAttribute("data-dense", true);
    table.update(rows());
  }

  return {
    open(view) {
      const choose = (value) => () => ((by = value), update());
      table ??= new Table({
        label: "Use by namespace and priority",
        columns,
        key: (row) => row.key,
        placeholder: "Search a namespace",
        text: (row) => `${row.namespace} priority ${row.priority}`,
        open: () => undefined,
        filters: () => [
          choice(
            "Namespace",
            app.map.cluster.use().map((row) => row.namespace),
            picked,
            (value) => ((picked = value), update()),
          ),
        ],
      });
      element = h(
        "div",
        { class: "use" },
        h("h2", {}, "Use"),
        h(
          "p",
          { class: "muted small" },
          app.recorded()
            ? "Pods on nodes, pods that are pending, and pods evicted, at this moment of the recording."
            : "Pods on nodes, pods that are pending, and pods evicted in the last 24 hours.",
        ),
        h(
          "fieldset",
          { class: "segments", "aria-label": "Rows by" },
          [
            ["both", "Namespace and priority"],
            ["namespace", "Namespace"],
            ["priority", "Priority"],
          ].map(([value, text]) =>
            h(
              "label",
              {},
              h("input", { type: "radio", name: "use-by", value, checked: value === by, onchange: choose(value) }),
              h("span", {}, text),
            ),
          ),
        ),
        table.element,
      );
      show(view, element);
      update();
    },
    change: (change) => (!change || change.nodes || change.queue || change.sample) && update(),
  };
}
