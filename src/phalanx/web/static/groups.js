// The group tree: Workload > composites > groups > pods, with counts against minimums, constraints, conditions, events.

import { freeDevices } from "./devices.js";
import { h, knowsNothing, refresh, show } from "./dom.js";
import { gang } from "./colours.js";
import { choice, Table } from "./table.js";
import { age, clock, levelName, middle, number, ownerBeside, parts, plural, short } from "./words.js";

const FEW = 12; // so few roots are also shown as a tree, without one being chosen

export function progress(placed, min, known) {
  const most = Math.max(min, known, 1);
  return h(
    "span",
    {
      class: "progress",
      role: "img",
      "aria-label": `${placed} of ${most} placed, minimum ${min}`,
      "data-met": placed >= min ? "1" : "0",
    },
    h("i", { style: { width: `${Math.min(100, (100 * placed) / most)}%` } }),
    h("em", { style: { left: `${Math.min(100, (100 * min) / most)}%` } }),
  );
}

// What happened to it, oldest first: the same lines as `phalanx why --story`.
export function story(lines) {
  return h(
    "ol",
    { class: "events story" },
    lines.map((line) =>
      h(
        "li",
        {},
        h("time", { datetime: line.time, class: "muted" }, clock(Date.parse(line.time) / 1000)),
        " ",
        h("b", {}, line.what),
        line.detail ? ` ${line.detail}` : "",
        line.times > 1 ? h("span", { class: "muted" }, ` ×${line.times}`) : "",
      ),
    ),
  );
}

export function groupsView(app) {
  const { cluster } = app;
  const open = new Set();
  const details = new Map(); // group -> {members, events}
  const picked = { namespace: "", status: "" };
  let element,
    list,
    table,
    foot,
    chosen = "",
    several = false; // several namespaces: then each line names its own

  // One row for each root: what is below it is in its details.
  const columns = [
    {
      name: "name",
      head: "Name",
      by: (row) => row.name,
      cell: (row) =>
        h(
          "a",
          { href: `#/group/${row.key}`, title: row.name, tabindex: "-1" },
          h("i", { class: "dot", style: { background: gang(cluster.hue(row.key)) } }),
          row.revision ? middle(row.name, 30) : middle(short(row.name), 22),
        ),
    },
    {
      name: "namespace",
      head: "Namespace",
      roomy: true,
      by: (row) => row.namespace,
      cell: (row) => middle(row.namespace, 18),
    },
    {
      name: "owner",
      head: "Owner",
      roomy: true,
      by: (row) => row.owner,
      cell: (row) => h("span", { title: row.owner }, ownerBeside(row.owner, row.name)),
    },
    {
      name: "priority",
      head: "Priority",
      roomy: true,
      num: true,
      largest: true,
      by: (row) => row.priority,
      cell: (row) => number(row.priority),
    },
    {
      name: "pods",
      head: "Pods",
      num: true,
      by: (row) => row.placed / Math.max(1, row.pods),
      cell: (row) => `${number(row.placed)}/${number(row.pods)}`,
    },
    {
      name: "status",
      head: "Status",
      by: (row) => row.status,
      cell: (row) => h("span", { "data-reason": row.status, class: "status-word" }, row.status),
    },
    {
      name: "since",
      head: "Pending",
      roomy: true,
      num: true,
      largest: true,
      by: (row) => -(row.since ?? Infinity),
      cell: (row) => (row.since ? age(cluster.now - row.since) : ""),
    },
    {
      name: "attempts",
      head: "Tries",
      roomy: true,
      num: true,
      largest: true,
      by: (row) => row.attempts,
      cell: (row) => (row.attempts ? number(row.attempts) : ""),
    },
    {
      name: "reason",
      head: "Reason",
      wide: true,
      by: (row) => row.words,
      cell: (row) => h("span", { title: row.headline }, row.words),
    },
  ];

  function rows() {
    const pending = new Map(cluster.queue.roots.map((root) => [root.key, root]));
    const found = [];
    for (const [key, group] of cluster.groups) {
      if (group.parent && cluster.groups.has(group.parent)) continue;
      const { namespace, name } = parts(key);
      const root = pending.get(key);
      const row = {
        key,
        namespace,
        name,
        owner: group.owner ?? "",
        revision: group.revision ?? "",
        priority: group.priority ?? 0,
        placed: group.pods?.[0] ?? 0,
        pods: group.pods?.[1] ?? 0,
        status: group.reason ?? "",
        since: root?.asked,
        attempts: root?.attempts ?? 0,
        words: root?.words ?? "",
        headline: root?.headline ?? "",
      };
      if ((!picked.namespace || row.namespace === picked.namespace) && (!picked.status || row.status === picked.status))
        found.push(row);
    }
    // What is pending comes first, the longest first.
    return found.sort((a, b) => (a.since ?? Infinity) - (b.since ?? Infinity) || (a.key < b.key ? -1 : 1));
  }

  function* tree(only) {
    const workloads = new Map();
    const children = new Map();
    for (const [key, group] of cluster.groups) {
      if (group.parent && cluster.groups.has(group.parent)) {
        if (!children.has(group.parent)) children.set(group.parent, []);
        children.get(group.parent).push(key);
      } else if (!only || key === only) {
        const name = group.workload ? `${parts(key).namespace}/${group.workload}` : "";
        if (!workloads.has(name)) workloads.set(name, []);
        workloads.get(name).push(key);
      }
    }
    // What waits comes first, then what runs, then what is over.
    const rank = (key) => {
      const group = cluster.groups.get(key);
      return !group.known || (group.done && group.done >= group.placed)
        ? 2
        : group.pending || group.placed < group.min
          ? 0
          : 1;
    };
    const sorted = (keys) => keys.map((key) => [rank(key), key]).sort((a, b) => a[0] - b[0] || (a[1] < b[1] ? -1 : 1));
    const order = [...workloads].flatMap(([name, keys]) =>
      name ? [[Math.min(...keys.map(rank)), name]] : keys.map((key) => [rank(key), name, key]),
    );
    order.sort((a, b) => a[0] - b[0] || ((a[2] ?? a[1]) < (b[2] ?? b[1]) ? -1 : 1));
    for (const [, name, one] of order) {
      const roots = one ? [one] : sorted(workloads.get(name)).map(([, key]) => key);
      if (name && roots.length > 1)
        yield {
          kind: "Workload",
          name: name.split("/")[1],
          namespace: name.split("/")[0],
          depth: 0,
          many: roots.length,
        };
      const stack = roots.reverse().map((key) => [key, name && roots.length > 1 ? 1 : 0]);
      while (stack.length) {
        const [key, depth] = stack.pop();
        yield { key, depth, group: cluster.groups.get(key), below: children.get(key) ?? [] };
        for (const child of (children.get(key) ?? []).sort().reverse()) stack.push([child, depth + 1]);
      }
    }
  }

  function head({ kind, name, namespace, many }) {
    return h(
      "li",
      { class: "workload", style: { "--depth": 0 } },
      h("span", { class: "kind" }, kind),
      h("b", {}, name),
      h("span", { class: "muted" }, namespace, " · ", plural(many, "group")),
    );
  }

  function line({ key, depth, group, below }) {
    const { kind, name, namespace } = parts(key);
    const shown = open.has(key);
    const what = kind === "CompositePodGroup" ? "groups" : "pods";
    const met = group.placed >= group.min;
    return h(
      "li",
      { style: { "--depth": depth }, class: chosen === key ? "chosen" : "", "data-group": key },
      h(
        "div",
        { class: "tree-row" },
        h(
          "button",
          {
            type: "button",
            class: "fold",
            "aria-expanded": shown,
            "aria-label": `Details of ${name}`,
            "data-focus": `fold ${key}`,
            onclick: () => fold(key),
          },
          shown ? "▾" : "▸",
        ),
        h("i", { class: "dot", style: { background: gang(cluster.hue(key)) } }),
        h(
          "a",
          { href: `#/group/${key}`, title: name, "data-focus": `group ${key}` },
          h("b", {}, group.revision ? name : short(name)),
        ),
        progress(group.placed, group.min, group.known),
        h(
          "span",
          { class: "num" },
          h("b", { class: met ? "good" : "wait" }, group.placed),
          ` / ${group.min}`,
          h("span", { class: "muted" }, group.known > group.min ? ` of ${group.known}` : "", " ", what),
        ),
      ),
      h(
        "div",
        { class: "chips indent" },
        kind === "CompositePodGroup"
          ? h("span", { class: "chip" }, `composite of ${below.length}`)
          : several
            ? h("span", { class: "chip" }, namespace)
            : "",
        h(
          "span",
          { class: "chip" },
          group.gang ? (group.known > group.min ? `gang, at least ${group.min}` : "gang") : "basic",
        ),
        group.topology ? h("span", { class: "chip" }, `one ${levelName(group.topology)}`) : "",
        group.settings.map((text) => h("span", { class: "chip", title: text }, middle(text, 30))),
        group.ringCost !== undefined
          ? h(
              "span",
              { class: "chip", title: "Hops between consecutive ranks: 0 if all are on one node" },
              `ring cost ${number(group.ringCost)}`,
            )
          : "",
        group.priority ? h("span", { class: "chip" }, `priority ${group.priority}`) : "",
        group.done ? h("span", { class: "chip" }, `${group.done} finished`) : "",
        !met && group.known
          ? h(
              "a",
              {
                class: "chip link",
                href: `#/why/${key}`,
                "aria-label": `${group.reason ? `${group.reason} · ` : ""}why? (${name})`,
              },
              group.reason ? `${group.reason} · ` : "",
              h("u", {}, "why?"),
            )
          : group.reason
            ? h("span", { class: "chip", "data-reason": group.reason }, group.reason)
            : "",
      ),
      shown ? detail(key) : "",
    );
  }

  function detail(key) {
    const known = details.get(key);
    if (!known?.members) return h("p", { class: "muted indent" }, "looking …");
    const { members, events, items } = known;
    const item = items?.[0];
    return h(
      "div",
      { class: "indent detail" },
      short(parts(key).name) !== parts(key).name ? h("p", { class: "muted small" }, parts(key).name) : "",
      h("p", {}, h("a", { class: "button", href: `#/object/${key}` }, "YAML and kubectl")),
      item && !item.scheduled && item.headline ? h("p", { class: "why gist" }, item.headline) : "",
      (known.conditions ?? []).map((each) =>
        h(
          "p",
          { class: "condition small", "data-ok": each.status === "True" ? "1" : "0" },
          h("b", {}, `${each.type}=${each.status}`),
          each.reason ? ` ${each.reason}` : "",
          each.message ? `: ${each.message}` : "",
        ),
      ),
      cluster.groups.get(key)?.pending ? freeDevices(known.free) : "",
      item?.story?.length ? [h("h3", {}, "Story"), story(item.story)] : "",
      events?.length || known.problem ? h("h3", {}, "Events") : "",
      known.problem ? h("p", { class: "muted" }, known.problem) : "",
      h(
        "ul",
        { class: "events" },
        (events ?? [])
          .slice(0, 20)
          .map((event) =>
            h(
              "li",
              { "data-type": event.type },
              h("b", {}, event.reason),
              event.count > 1 ? ` ×${event.count}` : "",
              h("span", { class: "muted" }, ` ${age((Date.now() - Date.parse(event.time)) / 1000)} ago`),
              h("div", {}, event.message),
            ),
          ),
      ),
      h(
        "table",
        {},
        h("caption", {}, plural(members.length, "pod")),
        h(
          "thead",
          {},
          h(
            "tr",
            {},
            ["Rank", "Pod", "Node", "State"].map((text) => h("th", { scope: "col" }, text)),
          ),
        ),
        h(
          "tbody",
          {},
          members
            .slice(0, 200)
            .map((member) =>
              h(
                "tr",
                {},
                h("td", { class: "num" }, member.rank),
                h(
                  "td",
                  {},
                  h("a", { href: `#/object/pod/${parts(member.group).namespace}/${member.name}` }, member.name),
                ),
                h("td", {}, member.node ? h("a", { href: `#/node/${member.node}` }, member.node) : "–"),
                h("td", { class: member.state === "pending" ? "wait" : "" }, member.state),
              ),
            ),
        ),
      ),
    );
  }

  async function fold(key) {
    if (open.delete(key)) return update();
    open.add(key);
    update();
    await read(key);
  }

  async function read(key) {
    const known = details.get(key) ?? { members: null, events: null };
    details.set(key, known);
    const take = async (part, answer) => {
      try {
        const found = await answer;
        known[part] = found[part];
        if (part === "events") known.problem = found.problem;
        if (part === "members") known.conditions = found.conditions;
      } catch {
        known[part] ??= part === "free" ? null : []; // it is gone, or may not be read
      }
      if (open.has(key)) update();
    };
    await Promise.all([
      take("members", app.ask.members(key)),
      take("events", app.ask.events(key)),
      take("items", app.ask.why(key, false)),
      take(
        "free",
        app.ask.devices(key).then((free) => ({ free })),
      ),
    ]);
  }

  function update() {
    if (!list?.isConnected) return;
    for (const key of open) if (!cluster.groups.has(key)) open.delete(key);
    for (const key of details.keys()) if (!open.has(key)) details.delete(key);
    several = new Set([...cluster.groups.keys()].map((key) => parts(key).namespace)).size > 1;
    const all = rows();
    table.chosen = chosen ? cluster.rootOf(chosen) : "";
    table.update(all);
    const few = all.length <= FEW && !picked.namespace && !picked.status && !table.sought;
    refresh(list, few ? [...tree()].map(entryLine) : chosen ? [...tree(table.chosen)].map(entryLine) : []);
    element.classList.toggle("split", !few && Boolean(chosen));
    document.body.toggleAttribute("data-dense", !few);
    refresh(
      foot,
      cluster.standby !== null
        ? knowsNothing()
        : !cluster.groups.size
          ? h(
              "p",
              { class: "empty" },
              h("b", {}, "No groups yet."),
              " Apply a Job, JobSet or LeaderWorkerSet with a gang policy, or try one in ",
              h("a", { href: "#/whatif" }, "What-if"),
              ".",
            )
          : "",
    );
  }

  const entryLine = (entry) => (entry.key ? line(entry) : head(entry));

  return {
    open(view, argument) {
      const same = list?.isConnected;
      chosen = argument;
      if (chosen && !open.has(chosen)) {
        open.add(chosen);
        read(chosen);
      }
      app.light(chosen || null);
      table ??= new Table({
        label: "Groups",
        columns,
        key: (row) => row.key,
        placeholder: "Search name, namespace, owner, status or reason",
        text: (row) => `${row.key} ${row.owner} ${row.status} ${row.words} ${row.headline}`,
        open: (key) => app.go("group", key),
        filters: () => {
          const pick = (name) => (value) => ((picked[name] = value), update());
          const keys = [...cluster.groups.keys()].filter((key) => !cluster.groups.get(key).parent);
          return [
            choice(
              "Namespace",
              keys.map((key) => parts(key).namespace),
              picked.namespace,
              pick("namespace"),
            ),
            choice(
              "Status",
              keys.map((key) => cluster.groups.get(key).reason),
              picked.status,
              pick("status"),
            ),
          ];
        },
      });
      if (!same) {
        list = h("ul", { class: "tree", "aria-label": "Details" });
        foot = h("div", {});
        element = h("div", { class: "groups" }, h("h2", {}, "Groups"), table.element, list, foot);
        show(view, element);
      }
      update();
      list.querySelector(".chosen")?.scrollIntoView({ block: "start" });
    },
    change(change) {
      if (!change || change.groups || change.queue || change.sample) update();
      if (change?.groups) for (const key of open) if (key in change.groups) read(key);
    },
  };
}
