// Building the page. Everything that came from the cluster goes in as text, never as HTML: there is no other way here.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, what] of Object.entries(value)) element.style.setProperty(key, what);
    else if (name === "value" || name === "checked" || name === "selected" || name === "disabled")
      element[name] = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  append(element, children);
  return element;
}

function append(element, children) {
  for (const child of children) {
    if (child === undefined || child === null || child === false || child === "") continue;
    if (Array.isArray(child)) append(element, child);
    else element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

/** @type {(tag: string, props?: object, ...children: any[]) => any} An element of the page. */
export const h = (tag, props, ...children) => fill(document.createElement(tag), props, children);
/** @type {(tag: string, props?: object, ...children: any[]) => any} An element of a drawing. */
export const s = (tag, props, ...children) => fill(document.createElementNS(SVG, tag), props, children);
/** @type {(id: string) => any} An element that index.html has. */
export const $ = (id) => document.getElementById(id);

export function show(element, ...children) {
  element.replaceChildren();
  append(element, children);
  return element;
}

// Replaces children only if something changed, and keeps the focus on what stands for the same thing.
export function refresh(element, ...children) {
  const active = /** @type {HTMLElement | null} */ (document.activeElement);
  const focused = active && element.contains(active) ? active.dataset.focus : null;
  /** @type {any} */
  const next = document.createElement(element.tagName);
  append(next, children);
  const value = next.value; // of a select: options that move from one to the other lose which of them was chosen
  // eslint-disable-next-line no-restricted-properties -- compared, never written
  if (next.innerHTML !== element.innerHTML || next.querySelector("[data-live]"))
    element.replaceChildren(...next.childNodes);
  else if (value === element.value) return;
  if (value !== undefined) element.value = value;
  if (focused) element.querySelector(`[data-focus="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
}

// What every view says instead of "there is nothing" where the scheduler has read nothing.
export const knowsNothing = () =>
  h(
    "p",
    { class: "empty" },
    h("b", {}, "This scheduler stands by."),
    " What waits and what runs is known to the one that leads: see above.",
  );

let teller;
export function tell(text) {
  clearTimeout(teller);
  teller = setTimeout(() => ($("said").textContent = text), 60);
}
