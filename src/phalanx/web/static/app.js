// Puts the page together: feed, map, views and the address bar. Which view is open stands behind the #.

import { $, h, refresh, show } from "./dom.js";
import { Cluster } from "./cluster.js";
import { ask, Feed } from "./feed.js";
import { ClusterMap } from "./map.js";
import { legend } from "./legend.js";
import { Guide } from "./guide.js";
import { Room } from "./room.js";
import { openLogin } from "./welcome.js";
import { amount, number, percent, plural, resourceName } from "./words.js";
import { groupsView } from "./groups.js";
import { nodeView } from "./node.js";
import { objectView } from "./object.js";
import { planView } from "./plan.js";
import { queueView } from "./queue.js";
import { timeView } from "./time.js";
import { useView } from "./use.js";
import { whatifView } from "./whatif.js";
import { whyView } from "./why.js";

const MODES = [
  ["gang", "Gang"],
  ["namespace", "Namespace"],
  ["owner", "Owner"],
  ["use", "Use"],
  ["priority", "Priority"],
  ["state", "State"],
];
const MANY_GANGS = 30; // from here on their colours cannot be distinguished: the map starts with namespaces
const TABS = [
  ["map", "Map"],
  ["queue", "Queue"],
  ["groups", "Groups"],
  ["use", "Use"],
  ["whatif", "What-if"],
  ["plan", "Plan"],
  ["time", "Time"],
];
const UNDER = { why: "queue", group: "groups", node: "map", object: "groups" }; // views without a tab of their own

const cluster = new Cluster();
const feed = new Feed(cluster);
const map = new ClusterMap($("stage"), cluster);
const room = new Room($("room"), cluster, map);
const app = { cluster, feed, map, room, ask, go, members: new Map() };
const groups = groupsView(app); // with and without one that is chosen: search and order stay
const views = {
  queue: queueView(app),
  groups,
  group: groups,
  why: whyView(app),
  whatif: whatifView(app),
  use: useView(app),
  plan: planView(app),
  time: timeView(app),
  node: nodeView(app),
  object: objectView(app),
};
const guide = new Guide(app);
room.ask = app.tryGang;
let current,
  themePicked = false;

const detailOf = (event) => /** @type {CustomEvent} */ (event).detail;

// ---- where we are

export function go(name, argument = "") {
  const to = `#/${name}${argument ? `/${argument.split("/").map(encodeURIComponent).join("/")}` : ""}`;
  if (location.hash === to) route();
  else location.hash = to;
}

const wide = () => matchMedia("(min-width: 1000px)").matches; // then the map is always there, and has no tab
app.wide = wide;

function route() {
  const [, name = "", ...rest] = location.hash.split("/");
  const argument = rest.map(decodeURIComponent).join("/");
  const chosen = name in views ? name : name === "map" && !wide() ? "map" : "queue";
  if (current && current.view !== views[chosen]) current.view?.close?.();
  if (app.recorded() && !["time", "map", "use", "node"].includes(chosen)) app.backToLive(); // never both on one screen
  map.lay(null);
  map.mark(chosen === "node" ? argument : null);
  document.body.dataset.view = chosen;
  document.body.removeAttribute("data-dense"); // views with long tables set it: they get more room beside the map
  const tab = UNDER[chosen] ?? chosen;
  for (const button of $("tabs").children) {
    const on = button.dataset.tab === tab || (tab === "map" && wide() && button.dataset.tab === "queue");
    button.setAttribute("aria-selected", on);
    button.tabIndex = on ? 0 : -1;
    if (on) $("view").setAttribute("aria-labelledby", button.id);
  }
  if (chosen === "map") {
    current = null;
    show($("view"));
    return map.resize();
  }
  if (!["group", "why", "node", "plan", "object"].includes(chosen)) light(null);
  current = { view: views[chosen], argument };
  const inside = $("view").contains(document.activeElement); // the keyboard goes on where the new view begins
  $("view").scrollTop = 0;
  current.view.open($("view"), argument);
  if (inside && [document.body, $("view")].includes(document.activeElement))
    ($("view").querySelector("tr.chosen") ?? $("view")).focus({ preventScroll: true });
}

// A group lights up on the map, with its ranks as soon as they are known.
export async function light(key) {
  app.lit = key;
  if (!key) return map.choose(null);
  map.choose(key);
  try {
    const { members, shape } = await ask.members(key);
    if (app.lit !== key) return;
    map.choose(key, members);
    room.take(shape, key);
  } catch {
    // it is gone; the feed will say so
  }
}
app.light = light;

function tabs() {
  show(
    $("tabs"),
    TABS.map(([name, text]) =>
      h(
        "button",
        {
          type: "button",
          role: "tab",
          id: `tab-${name}`,
          "data-tab": name,
          "aria-controls": "view",
          class: name === "map" ? "narrow" : "",
          onclick: () => go(name),
        },
        text,
      ),
    ),
  );
  $("tabs").addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    const shown = [...$("tabs").children].filter((button) => button.offsetParent);
    const at = shown.indexOf(document.activeElement);
    shown[(at + by + shown.length) % shown.length].focus();
    shown[(at + by + shown.length) % shown.length].click();
  });
}

// ---- above and beside the map

function toolbar() {
  $("modes").append(
    ...MODES.map(([mode, text]) =>
      h(
        "label",
        {},
        h("input", {
          type: "radio",
          name: "mode",
          value: mode,
          checked: mode === map.mode,
          onchange: () => ((app.modePicked = true), recolour(mode)),
        }),
        h("span", {}, text),
      ),
    ),
  );
  $("resource").addEventListener("change", () => recolour(map.mode));
  let width = 0; // the legend has as many entries as there is room for
  new ResizeObserver(([{ contentRect }]) => {
    if (contentRect.width === width) return;
    width = contentRect.width;
    legend($("legend"), map);
  }).observe($("legend"));
  $("zoom-in").addEventListener("click", () => map.zoom(1.5));
  $("zoom-out").addEventListener("click", () => map.zoom(1 / 1.5));
  $("zoom-all").addEventListener("click", () => map.whole());
  $("skip").addEventListener("click", () => $("view").focus());
  document.addEventListener("keydown", (event) => {
    const target = /** @type {Element} */ (event.target);
    const search = /** @type {HTMLInputElement | null} */ ($("view").querySelector("input[type=search]"));
    if (event.key !== "/" || !search || target.closest("input, select, textarea, dialog")) return;
    search.focus();
    event.preventDefault();
  });
  $("view").addEventListener("keydown", (event) => event.key === "Escape" && $("view").querySelector(".back")?.click());
  $("logout").addEventListener("click", () => feed.leave());
  $("theme").addEventListener("click", () =>
    theme(document.documentElement.dataset.theme === "light" ? "dark" : "light", true),
  );
  map.addEventListener("open", (event) => go("node", detailOf(event)));
  map.addEventListener("nothing", () => {
    light(null);
    if (["node", "why", "group"].includes(document.body.dataset.view ?? "")) go("queue");
  });
}

function recolour(mode) {
  document.body.dataset.mode = mode;
  for (const input of $("modes").querySelectorAll("input")) input.checked = input.value === mode;
  map.colourBy(mode, Math.max(0, map.cluster.resources.indexOf($("resource").value)));
  legend($("legend"), map);
}
app.recolour = () => {
  recolour(map.mode);
  title();
  sums();
  room.update();
};
// Live views are about another cluster than a recording on the map: while one is open, the others say so.
app.recorded = () => !map.cluster.live;

// `chosen`: by the button. Until then the page follows the system, also when that changes.
function theme(name, chosen = false) {
  document.documentElement.dataset.theme = name;
  if (chosen) {
    try {
      localStorage.setItem("theme", name);
    } catch {
      // a browser that keeps nothing: fine
    }
    themePicked = true;
  }
  map.recolour();
  legend($("legend"), map);
}

function sums() {
  const { nodes, resources, queue, live } = map.cluster;
  if (live && cluster.standby !== null) return refresh($("sums"), h("li", {}, "standing by")); // it knows no numbers
  /** @type {[string, string, string, number?][]} */
  const items = [["nodes", plural(nodes.size, "node"), ""]];
  resources.slice(0, 3).forEach((name, index) => {
    if (name === "pods") return;
    let used = 0,
      all = 0;
    for (const node of nodes.values()) [used, all] = [used + node.used[index], all + node.alloc[index]];
    items.push([
      name,
      `${amount(name, used)} of ${amount(name, all)} ${resourceName(name)}`,
      all ? percent(used / all) : "",
      all ? used / all : 0,
    ]);
  });
  if (live)
    items.splice(1, 0, [
      "waiting",
      queue.total ? `${number(queue.total)} waiting` : "nothing waits",
      queue.pods ? plural(queue.pods, "pod") : "",
    ]);
  refresh(
    $("sums"),
    items.map(([key, text, more, share]) =>
      h(
        "li",
        { "data-sum": key, class: key === "waiting" && queue.total ? "waits" : "" },
        h("span", {}, text),
        more ? h("b", {}, more) : "",
        share !== undefined
          ? h("span", { class: "gauge" }, h("i", { style: { width: `${Math.round(share * 100)}%` } }))
          : "",
      ),
    ),
  );
}

// The cluster's name, in the header and in the tab; of a recording its file.
function title() {
  const name = map.cluster.name;
  $("cluster").textContent = name;
  document.title = name ? `${name} · Phalanx` : "Phalanx";
}
app.title = title;

// A scheduler that stands by has read nothing: said, with the way to the one that leads.
function standby() {
  const leader = cluster.standby;
  $("standby").hidden = leader === null;
  if (leader !== null)
    refresh(
      $("standby"),
      h(
        "span",
        {},
        "This scheduler stands by and has read nothing, so the map is empty. ",
        leader
          ? [h("b", {}, leader), " leads; look there:"]
          : "No scheduler leads at the moment; this page continues by itself when this one does.",
      ),
      leader ? h("code", {}, `kubectl -n phalanx-system port-forward pod/${leader} ${location.port || 80}`) : "",
    );
}

// Changes are gathered and shown once per picture; a tab in the background shows nothing and gathers little.
let later = 0;
/** @type {any} null: everything may have changed */
let gathered = {};
const MOST_GATHERED = 2000;

function gather(change) {
  if (!change || !gathered) return (gathered = null); // null: everything may have changed
  for (const part of ["nodes", "groups"])
    if (change[part]) gathered[part] = Object.assign(gathered[part] ?? {}, change[part]);
  for (const part of ["queue", "sample"]) if (change[part]) gathered[part] = change[part];
  if (Object.keys(gathered.groups ?? {}).length + Object.keys(gathered.nodes ?? {}).length > MOST_GATHERED)
    gathered = null;
}

function changed(change) {
  gather(change);
  if (later) return;
  later = requestAnimationFrame(() => {
    later = 0;
    const news = gathered;
    gathered = {};
    const names = map.cluster.resources;
    if ([...$("resource").options].map((option) => option.value).join() !== names.join())
      show(
        $("resource"),
        names.map((name) => h("option", { value: name }, resourceName(name))),
      );
    title();
    if (!app.modePicked && map.mode === "gang" && map.cluster.gangs() > MANY_GANGS) recolour("namespace");
    current?.view.change?.(news ?? undefined);
    guide.change();
    sums();
    standby();
    if (!news || news.nodes || news.groups) {
      room.update();
      legend($("legend"), map);
      $("map-summary").textContent = map.summary();
    }
  });
}

// ---- start

async function start() {
  let kept;
  try {
    kept = localStorage.getItem("theme");
  } catch {
    // as above
  }
  themePicked = Boolean(kept);
  const prefersLight = matchMedia("(prefers-color-scheme: light)");
  theme(kept ?? (prefersLight.matches ? "light" : "dark"));
  prefersLight.addEventListener("change", () => themePicked || theme(prefersLight.matches ? "light" : "dark"));
  tabs();
  toolbar();
  document.body.dataset.mode = map.mode;
  cluster.addEventListener("change", (event) => changed(detailOf(event)));
  feed.addEventListener("state", (event) => {
    const detail = detailOf(event);
    const words = { live: "live", away: "reconnecting", login: "logged out", starting: "starting" };
    $("state").dataset.state = detail.state;
    $("state").textContent = words[detail.state];
    $("state").title = detail.text;
    if (detail.state === "login") openLogin(feed, detail.text);
    // What could not be asked meanwhile is asked again, but not what a person is typing.
    const asks = document.body.dataset.view !== "whatif" && $("view").querySelector(".problem");
    if (detail.state === "live" && asks) current?.view.open($("view"), current.argument);
  });
  const link = /^#login=([\w-]+)$/.exec(location.hash);
  if (link) {
    history.replaceState(null, "", location.pathname); // the secret shall not stay in the address bar
    try {
      await ask.login({ once: link[1] });
    } catch (problem) {
      route();
      return openLogin(feed, problem.message);
    }
  }
  window.addEventListener("hashchange", () => {
    if (location.hash.startsWith("#login=")) return location.reload();
    route();
  });
  matchMedia("(min-width: 1000px)").addEventListener("change", route);
  await feed.start();
  route();
}

Object.assign(globalThis, { phalanx: app }); // for the curious, and for the tests
start();
