// One object: a pod, a group, a Workload or a node as YAML, with its events, owner, node and lines for a terminal.

import { h, show } from "./dom.js";
import { age, clock, parts, short } from "./words.js";

export function copyable(command) {
  const copy = async (event) => {
    try {
      await navigator.clipboard.writeText(command);
      event.target.textContent = "Copied";
    } catch {
      getSelection()?.selectAllChildren(event.target.previousElementSibling); // not allowed: marked, to be copied by hand
    }
  };
  return h(
    "div",
    { class: "command" },
    h("code", {}, command),
    h(
      "button",
      { type: "button", "data-focus": `copy ${command}`, "aria-label": `Copy: ${command}`, onclick: copy },
      "Copy",
    ),
  );
}

export function eventList(events) {
  return h(
    "ul",
    { class: "events" },
    events.map((event) =>
      h(
        "li",
        { "data-type": event.type },
        h("b", {}, event.reason),
        event.count > 1 ? ` ×${event.count}` : "",
        h(
          "span",
          { class: "muted" },
          ` ${age((Date.now() - Date.parse(event.time)) / 1000)} ago, ${clock(Date.parse(event.time) / 1000)}`,
        ),
        h("div", {}, event.message),
      ),
    ),
  );
}

function placed(found, key) {
  if (found.node) return "where it runs, and since when";
  return key.startsWith("pod/") ? "why it is pending" : "its state, or why it is pending";
}

export function objectView(app) {
  let key = "",
    element;

  const settled = async (answer) => {
    try {
      return await answer;
    } catch (wrong) {
      return { problem: wrong.message };
    }
  };

  async function update(asked) {
    const node = key.startsWith("node/");
    const [found, happened] = await Promise.all([
      settled(app.ask.object(key)),
      node ? { events: [] } : settled(app.ask.events(key)),
    ]);
    if (asked !== element || !asked.isConnected) return;
    const { kind, namespace, name } = node ? { kind: "Node", namespace: "", name: key.slice(5) } : parts(key);
    const owner = (found.owners ?? []).find((each) => each.controller) ?? found.owners?.[0];
    show(
      element,
      h(
        "a",
        { class: "back", href: node ? `#/node/${name}` : key.startsWith("pod/") ? "#/queue" : `#/group/${key}` },
        node ? "‹ Node" : key.startsWith("pod/") ? "‹ Queue" : "‹ Group",
      ),
      h("h2", { title: name }, short(name)),
      h("p", { class: "muted small" }, `${kind} ${name}${namespace ? ` in ${namespace}` : ""}`),
      found.problem ? h("p", { class: "problem" }, found.problem) : "",
      h(
        "dl",
        { class: "facts" },
        found.phase ? [h("dt", {}, "Phase"), h("dd", {}, found.phase)] : "",
        found.node ? [h("dt", {}, "Node"), h("dd", {}, h("a", { href: `#/node/${found.node}` }, found.node))] : "",
        owner ? [h("dt", {}, "Owner"), h("dd", {}, `${owner.kind} ${owner.name}`)] : "",
        node ? "" : [h("dt", {}, "Scheduling"), h("dd", {}, h("a", { href: `#/why/${key}` }, placed(found, key)))],
      ),
      h("h3", {}, "In a terminal"),
      (found.kubectl ?? []).map(copyable),
      owner
        ? copyable(
            `kubectl get ${owner.kind.toLowerCase()} ${owner.name}${namespace ? ` -n ${namespace}` : ""} -o yaml`,
          )
        : "",
      node
        ? ""
        : [
            h("h3", {}, "Events"),
            happened.problem ? h("p", { class: "muted" }, happened.problem) : "",
            happened.events?.length
              ? eventList(happened.events)
              : h("p", { class: "muted" }, "No events: they are kept for an hour."),
          ],
      found.yaml
        ? [
            h("h3", {}, "YAML"),
            h(
              "p",
              { class: "muted small" },
              "Environment, commands and arguments are left out; kubectl shows them to users who may read the object.",
            ),
            h("pre", { class: "yaml", tabindex: "0", "aria-label": `YAML of ${name}` }, found.yaml),
          ]
        : "",
    );
  }

  return {
    open(view, argument) {
      key = argument;
      element = h("div", { class: "object" }, h("p", { class: "muted" }, "reading …"));
      show(view, element);
      update(element);
    },
  };
}
