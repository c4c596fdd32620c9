// Why it waits, as a picture: constraint by constraint how many nodes are left, how close the best domain comes, and
// changes that were tried, as buttons that open what-if.

import { QUEUE_NAMES } from "./constants.js";
import { freeDevices } from "./devices.js";
import { h, show } from "./dom.js";
import { oneAtATime } from "./feed.js";
import { progress, story } from "./groups.js";
import { age, capital, levelName, middle, number, parts, plural, resourceName, short } from "./words.js";

// "PodGroup name-with-hash" as a short name; the whole one on hovering.
function named(group) {
  const [kind, ...rest] = group.split(" ");
  return [h("span", { class: "kind" }, kind), " ", h("b", { title: group }, short(rest.join(" ")) || group)];
}

const SHORT = "Insufficient ";
const PODS = 100; // rows of the table of pods

const inWords = (reason) =>
  reason.startsWith(SHORT) ? `short of ${resourceName(reason.slice(SHORT.length))}` : reason;

// One bar for each step: how many nodes are left after it.
function funnel(total, steps) {
  let left = total;
  const rows = [h("li", {}, bar(total, total), h("span", {}, h("b", {}, number(total)), " nodes in the cluster"))];
  for (const { text, nodes, evictions } of steps) {
    const before = left;
    left = Math.max(0, left - nodes);
    rows.push(
      h(
        "li",
        {},
        bar(left, total, before),
        h(
          "span",
          {},
          h("b", {}, `−${number(nodes)}`),
          " ",
          text,
          evictions ? h("small", { class: "chip" }, "evictions could help") : "",
        ),
      ),
    );
  }
  rows.push(
    h(
      "li",
      { class: "left" },
      bar(left, total),
      h("span", {}, h("b", {}, number(left)), left === 1 ? " node is left" : " nodes are left"),
    ),
  );
  return h("ol", { class: "funnel", "aria-label": `Of ${plural(total, "node")} ${number(left)} are left` }, rows);
}

const bar = (left, total, before = left) =>
  h(
    "span",
    { class: "funnel-bar" },
    h("i", { style: { width: `${total ? (100 * before) / total : 0}%` }, class: "was" }),
    h("i", { style: { width: `${total ? (100 * left) / total : 0}%` } }),
  );

// Members the best domain has room for, and those that are missing.
function pips(fits, needed) {
  const scale = Math.max(1, Math.ceil(needed / 60));
  const filled = Math.round(fits / scale),
    all = Math.ceil(needed / scale);
  return h(
    "div",
    { class: "pips", role: "img", "aria-label": `${fits} of ${needed} fit` },
    Array.from({ length: all }, (_, index) => h("i", { class: index < filled ? "in" : "out" })),
    scale > 1 ? h("small", { class: "muted" }, `each square is ${scale}`) : "",
  );
}

function proof(found, total, depth = 0) {
  const level = found.key ? levelName(found.key) : "";
  const ruled = (found.ruledOut ?? []).map((out) => ({ text: inWords(out.reason), nodes: out.nodes }));
  return h(
    "div",
    { class: "proof", style: { "--depth": depth } },
    h(
      "p",
      {},
      named(found.group),
      " needs ",
      h("b", {}, number(found.needed)),
      found.together ? " together" : "",
      level ? ` in one ${level}` : "",
      found.domains > 1 || level
        ? h("span", { class: "muted" }, ` · ${plural(found.domains, level || "domain")} looked at`)
        : "",
    ),
    ruled.length && total ? funnel(total, ruled) : "",
    h(
      "div",
      { class: "best" },
      h(
        "p",
        {},
        found.best ? ["best ", level, " ", h("b", {}, found.best), " fits "] : "fits ",
        h("b", {}, number(found.fits)),
        " of ",
        h("b", {}, number(found.needed)),
        found.limiting ? h("span", { class: "wait" }, ` · short of ${resourceName(found.limiting)}`) : "",
        found.pinned ? h("span", { class: "muted" }, ` · tied to ${found.pinned} by members that are placed`) : "",
      ),
      found.inner ? "" : pips(found.fits, found.needed),
      found.best && level ? h("p", {}, `${plural(Math.max(0, found.needed - found.fits), "place")} missing there`) : "",
    ),
    found.inner ? proof(found.inner, 0, depth + 1) : "",
  );
}

// `tried`: what to do with a remedy instead of opening what-if with the root as it waits.
/** @param {((relaxation: any) => any) | null} [tried] */
export function verdict(app, item, root, tried = null) {
  const last = item.now ?? item.last;
  const certificate = item.now?.proof ?? item.last?.proof;
  const total = item.nodes ?? app.cluster.nodes.size;
  const others = (item.blockers ?? []).filter((text) => capital(text) !== item.headline);
  return [
    others.length
      ? [
          h("h3", {}, "Also in the way"),
          h(
            "ul",
            { class: "hints blockers" },
            others.map((blocker) => h("li", {}, capital(blocker))),
          ),
        ]
      : "",
    certificate ? [h("h3", {}, "What is in the way"), proof(certificate, total)] : "",
    item.hints?.length
      ? [
          h("h3", {}, "Hints"),
          h(
            "ul",
            { class: "hints" },
            item.hints.map((hint) => h("li", {}, capital(hint))),
          ),
        ]
      : "",
    item.nodeReasons?.length
      ? [
          h("h3", {}, "Node by node"),
          funnel(
            total,
            item.nodeReasons.map((reason) => ({
              text: inWords(reason.reason),
              nodes: reason.nodes,
              evictions: reason.evictionsHelp,
            })),
          ),
        ]
      : "",
    item.relaxations?.length
      ? [h("h3", {}, "Changes that were tried"), relaxations(app, item.relaxations, root, tried)]
      : "",
    last?.result === "exhausted"
      ? h(
          "p",
          { class: "muted" },
          `The search gave up after ${number(last.expansions ?? 0)} steps: this is not proved.`,
        )
      : "",
  ];
}

// A remedy that changes the cluster, as a question about another cluster; null: it changes the manifest, or nothing
// that can be asked about.
/** @returns {ClusterChange | null} */
export function clusterOf({ change = "", to = "" }) {
  if (change === "nodes") {
    const [count, like] = to.split(" ");
    return { addNodes: [{ count: Number(count), like }], withoutFilters: [] };
  }
  return change === "filter" && to ? { addNodes: [], withoutFilters: [to] } : null;
}

function relaxations(app, found, root, tried) {
  return h(
    "ul",
    { class: "remedies" },
    found.map((relaxation) =>
      h(
        "li",
        {},
        h(
          "button",
          {
            type: "button",
            class: relaxation.fits ? "remedy fits" : "remedy",
            disabled: tried ? !clusterOf(relaxation) : !root,
            onclick: () => (tried ? tried(relaxation) : app.try(root, relaxation)),
          },
          h("span", { "aria-hidden": "true" }, relaxation.fits ? "✓" : relaxation.fits === false ? "✗" : "?"),
          " ",
          relaxation.text,
          relaxation.checked === false ? h("small", {}, " counted, not checked") : "",
        ),
        relaxation.how ? h("p", { class: "how muted small" }, relaxation.how) : "",
      ),
    ),
  );
}

function levels(item) {
  return h(
    "ul",
    { class: "levels" },
    item.levels.map((level) =>
      h(
        "li",
        { style: { "--depth": level.depth ?? 0 } },
        h(
          "div",
          { class: "tree-row" },
          h("span", { class: "kind" }, level.kind),
          h("b", { title: level.name }, short(level.name)),
          progress(level.placed ?? 0, level.minimum ?? 1, level.known ?? 0),
          h("span", { class: "num" }, `${level.placed ?? 0} / ${level.minimum ?? 1}`),
        ),
        h(
          "p",
          { class: "chips" },
          h("span", { class: "chip" }, level.policy ?? "basic"),
          level.topology
            ? h(
                "span",
                { class: "chip" },
                `one ${levelName(level.topology)}${level.domains?.length ? `: ${level.domains.slice(0, 3).join(", ")}` : ""}`,
              )
            : "",
          level.pending ? h("span", { class: "chip" }, `${plural(level.pending, "pod")} pending`) : "",
          level.gated ? h("span", { class: "chip" }, `${level.gated} gated`) : "",
          (level.settings ?? []).map((text) => h("span", { class: "chip", title: text }, middle(text, 30))),
          level.reason ? h("span", { class: "chip", "data-reason": level.reason }, level.reason) : "",
        ),
      ),
    ),
  );
}

function queueLine(queue) {
  if (!queue || queue.place === "none") return "";
  const words = [QUEUE_NAMES[queue.place] ?? queue.place];
  if (queue.position) words.push(`number ${queue.position}`);
  if (queue.attempts) words.push(plural(queue.attempts, "attempt"));
  if (queue.overtaken) words.push(queue.overtaken);
  if (queue.waitsFor?.length)
    words.push(`tried again when ${queue.waitsFor.slice(0, 3).join(", or ")}${queue.waitsFor.length > 3 ? " …" : ""}`);
  if (queue.gate) words.push(`held by ${queue.gate}`);
  return h("p", { class: "muted" }, words.join(" · "));
}

// The plain sentence; on demand the message of the last attempt, as in the condition, with its time.
function said({ headline, summary, last }) {
  if (!headline || summary === headline) return summary;
  const when = last?.at ? `, tried ${age(Date.now() / 1000 - last.at)} ago` : "";
  return [
    headline,
    h("details", { class: "exact" }, h("summary", {}, `The condition's message${when}`), h("span", {}, summary)),
  ];
}

export function whyView(app) {
  let key = "",
    element,
    update;

  function heading() {
    const { kind, namespace, name } = parts(key);
    return [
      h("a", { class: "back", href: "#/queue" }, "‹ Queue"),
      h("h2", {}, short(name)),
      h("p", { class: "muted small" }, `${kind} ${name} in ${namespace}`),
    ];
  }

  // What the queue knows, until the scheduler has answered.
  function known() {
    const root = app.cluster.queue.roots.find((entry) => entry.key === key);
    return root?.headline ? h("p", {}, h("b", {}, "Pending"), " ", root.headline) : "";
  }

  function card(item, devices) {
    const root = item.root;
    const waits = !item.scheduled;
    return h(
      "article",
      { class: "why-card" },
      h(
        "div",
        { class: "verdict", "data-ok": item.scheduled ? "1" : "0" },
        h("b", {}, item.scheduled ? "Scheduled" : "Pending"),
        " ",
        said(item),
      ),
      queueLine(item.queue),
      item.preemption
        ? h(
            "p",
            { class: "plan" },
            `Making room: ${plural(item.preemption.victims.length, "victim")} of ${item.preemption.total} still there. `,
            h("a", { href: `#/plan/${root}` }, "See the plan"),
          )
        : "",
      waits
        ? h(
            "p",
            { class: "actions" },
            h("a", { class: "button", href: `#/plan/${root}` }, "Plan an eviction"),
            h("button", { type: "button", onclick: () => app.try(root, {}) }, "Try it in what-if"),
          )
        : "",
      waits ? freeDevices(devices) : "",
      verdict(app, item, root),
      item.levels?.length ? [h("h3", {}, "Groups"), levels(item)] : "",
      item.story?.length ? [h("h3", {}, "How it got here"), story(item.story)] : "",
      item.pods?.length
        ? [
            h("h3", {}, "Pods"),
            h(
              "table",
              {},
              h(
                "tbody",
                {},
                item.pods
                  .slice(0, PODS)
                  .map((pod) =>
                    h(
                      "tr",
                      {},
                      h("td", {}, pod.name),
                      h("td", { class: pod.state === "pending" ? "wait" : "" }, pod.state),
                      h(
                        "td",
                        {},
                        pod.node
                          ? h("a", { href: `#/node/${pod.node}` }, pod.node)
                          : pod.nominated
                            ? `promised ${pod.nominated}`
                            : "",
                      ),
                    ),
                  ),
              ),
            ),
            item.podCount > PODS
              ? h(
                  "p",
                  { class: "muted small" },
                  `+${number(item.podCount - Math.min(PODS, item.pods.length))} more pods`,
                )
              : "",
          ]
        : "",
    );
  }

  async function question(asked) {
    let report,
      devices,
      problem = "";
    try {
      [report, devices] = await Promise.all([app.ask.why(key), app.ask.devices(key)]);
    } catch (wrong) {
      problem = wrong.message;
    }
    if (asked !== element || !asked.isConnected) return;
    show(
      asked,
      heading(),
      problem ? h("p", { class: "problem" }, problem) : "",
      report?.items.map((item) => card(item, devices)),
    );
  }

  return {
    open(view, argument) {
      key = argument;
      const opened = (element = h("div", {}, heading(), known(), h("p", { class: "muted" }, "asking the scheduler …")));
      update = oneAtATime(() => question(opened));
      show(view, element);
      app.light(key.startsWith("pod/") ? null : key);
      update();
    },
    // Asked again when what the queue says of it changes, not with every pod that moves.
    change(change) {
      if (!change?.queue && !(change?.groups && key in change.groups)) return;
      const root = app.cluster.queue.roots.find((entry) => entry.key === key);
      const state = root ? `${root.place} ${root.attempts} ${root.message}` : "";
      if (state !== this.state) update();
      this.state = state;
    },
  };
}
