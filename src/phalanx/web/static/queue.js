// The queue: pending units in the order in which they will be tried, why each is pending, and what would help.

import { QUEUE_NAMES } from "./constants.js";
import { h, knowsNothing, refresh, show } from "./dom.js";
import { choice, Table } from "./table.js";
import { age, middle, number, ownerBeside, plural, short } from "./words.js";

const CARDS = 8; // so few units are also explained one by one: every question costs the scheduler a few trials

export function queueView(app) {
  const { cluster } = app;
  const picked = { namespace: "", owner: "", reason: "" };
  const answers = new Map(); // unit -> {state, why}
  let element,
    table,
    cards,
    foot,
    asking = false;

  const stateOf = (root) => `${root.place} ${root.attempts} ${root.message}`;
  const ownerOf = (root) => root.owner || (root.workload ? `Workload ${root.workload}` : "");
  const roots = () =>
    cluster.queue.roots.filter(
      (root) =>
        (!picked.namespace || root.namespace === picked.namespace) &&
        (!picked.owner || ownerOf(root) === picked.owner) &&
        (!picked.reason || root.words === picked.reason),
    );

  const orderOf = (root) => cluster.queue.roots.indexOf(root);
  const columns = [
    { name: "order", head: "#", num: true, roomy: true, by: orderOf, cell: (root) => number(orderOf(root) + 1) },
    {
      name: "name",
      head: "Name",
      by: (root) => root.name,
      cell: (root) =>
        h("a", { href: `#/why/${root.key}`, title: root.name, tabindex: "-1" }, middle(short(root.name), 24)),
    },
    {
      name: "namespace",
      head: "Namespace",
      roomy: true,
      by: (root) => root.namespace,
      cell: (root) => middle(root.namespace, 18),
    },
    {
      name: "owner",
      head: "Owner",
      roomy: true,
      by: ownerOf,
      cell: (root) => h("span", { title: ownerOf(root) }, ownerBeside(ownerOf(root), root.name)),
    },
    {
      name: "priority",
      head: "Priority",
      num: true,
      roomy: true,
      largest: true,
      by: (root) => root.priority,
      cell: (root) => number(root.priority),
    },
    {
      name: "pods",
      head: "Pods",
      num: true,
      largest: true,
      by: (root) => root.of,
      cell: (root) => `${number(root.placed)}/${number(root.of)}`,
    },
    {
      name: "since",
      head: "Pending",
      num: true,
      largest: true,
      by: (root) => -root.asked,
      cell: (root) => age(cluster.now - root.asked),
    },
    {
      name: "attempts",
      head: "Tries",
      num: true,
      roomy: true,
      largest: true,
      by: (root) => root.attempts,
      cell: (root) => number(root.attempts),
    },
    {
      name: "reason",
      head: "Reason",
      wide: true,
      by: (root) => root.words,
      cell: (root) => h("span", { title: root.headline }, root.words),
    },
  ];

  function card(root) {
    const answer = answers.get(root.key)?.why;
    const helps = (answer?.relaxations ?? []).filter((relaxation) => relaxation.fits);
    const waits = answer?.queue?.waitsFor ?? [];
    return h(
      "li",
      { class: "card waits", "data-root": root.key },
      h(
        "a",
        { class: "card-title", href: `#/why/${root.key}`, "data-focus": root.key },
        h("span", { class: "order" }, orderOf(root) + 1),
        h("b", { title: root.name }, middle(short(root.name), 40)),
      ),
      h(
        "p",
        { class: "why gist", title: root.message },
        root.headline,
        root.tried ? h("span", { class: "muted" }, ` · tried ${age(cluster.now - root.tried)} ago`) : "",
      ),
      helps.length
        ? h(
            "p",
            { class: "help" },
            "Would help: ",
            h("b", {}, helps[0].text),
            helps.length > 1 ? ` and ${helps.length - 1} more` : "",
          )
        : "",
      waits.length ? h("p", { class: "muted small" }, "Tried again when ", waits.slice(0, 2).join(", or ")) : "",
      h(
        "p",
        { class: "chips" },
        h(
          "span",
          { class: "chip", "data-place": root.place, title: QUEUE_NAMES[root.place] ?? root.place },
          root.place === "waiting" ? "waiting" : (QUEUE_NAMES[root.place] ?? root.place),
        ),
        h("span", { class: "chip" }, plural(root.pods, "pod")),
        root.priority ? h("span", { class: "chip" }, `priority ${number(root.priority)}`) : "",
        h("span", { class: "chip" }, `for ${age(cluster.now - root.asked)}`),
      ),
    );
  }

  function update() {
    const all = cluster.queue.roots,
      found = roots();
    const few = all.length <= CARDS;
    element.classList.toggle("few", few);
    document.body.toggleAttribute("data-dense", !few);
    table.update(found);
    refresh(cards, few ? found.map(card) : []);
    const more = cluster.queue.total - all.length;
    refresh(
      foot,
      cluster.standby !== null
        ? knowsNothing()
        : !cluster.queue.total
          ? h(
              "p",
              { class: "empty" },
              h("b", {}, "Nothing is pending."),
              " Everything that asked for a place has one. Try what would happen next in ",
              h("a", { href: "#/whatif" }, "What-if"),
              ".",
            )
          : !found.length
            ? h("p", { class: "empty" }, "Nothing is pending that matches these filters.")
            : more > 0
              ? h(
                  "p",
                  { class: "muted" },
                  `+${number(more)} more behind these; \`phalanx top -n NAMESPACE\` lists them`,
                )
              : "",
    );
    if (few) help(found);
  }

  // One question at a time, and only about units whose state changed since the last answer.
  async function help(first) {
    if (asking) return;
    asking = true;
    try {
      for (const root of first) {
        if (answers.get(root.key)?.state === stateOf(root)) continue;
        let why = null;
        try {
          why = (await app.ask.why(root.key)).items[0];
        } catch {
          // gone meanwhile
        }
        answers.set(root.key, { state: stateOf(root), why });
        if (answers.size > 4 * CARDS) answers.delete(answers.keys().next().value);
        if (cards.isConnected && cluster.queue.roots.length <= CARDS) refresh(cards, roots().map(card));
      }
    } finally {
      asking = false;
    }
  }

  return {
    open(view) {
      table ??= new Table({
        label: "Pending, in the order in which they will be tried",
        columns,
        key: (root) => root.key,
        placeholder: "Search name, namespace, owner or reason",
        text: (root) => `${root.key} ${ownerOf(root)} ${root.words} ${root.headline} priority ${root.priority}`,
        open: (key) => app.go("why", key),
        filters: () => {
          const all = cluster.queue.roots;
          const pick = (name) => (value) => ((picked[name] = value), update());
          return [
            choice(
              "Namespace",
              all.map((root) => root.namespace),
              picked.namespace,
              pick("namespace"),
            ),
            choice("Owner", all.map(ownerOf), picked.owner, pick("owner")),
            choice(
              "Reason",
              all.map((root) => root.words),
              picked.reason,
              pick("reason"),
            ),
          ];
        },
      });
      cards = h("ol", { class: "cards", "aria-label": "Pending units, explained" });
      foot = h("div", {});
      element = h("div", { class: "queue" }, h("h2", {}, "Queue"), table.element, cards, foot);
      show(view, element);
      update();
    },
    change: (change) => (!change || change.queue || change.sample) && element?.isConnected && update(),
  };
}
