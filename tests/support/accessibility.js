// Run in the page: what somebody with a screen reader, a keyboard or weak eyes would stumble over. Returns sentences.
() => {
  const problems = [];
  const seen = (element) => element.checkVisibility({ checkOpacity: true, checkVisibilityCSS: true }) && !element.closest("[hidden]");
  const label = (element) => `<${element.tagName.toLowerCase()}${element.id ? ` id=${element.id}` : ""} class="${element.className}">`;

  // ---- names
  const byId = (ids) => ids.split(/\s+/).map((id) => document.getElementById(id)?.textContent ?? "").join(" ").trim();
  const name = (element) =>
    (element.getAttribute("aria-labelledby") && byId(element.getAttribute("aria-labelledby"))) || element.getAttribute("aria-label") ||
    [...(element.labels ?? [])].map((each) => each.textContent).join(" ").trim() ||
    (["BUTTON", "A", "LEGEND", "SUMMARY", "OPTION"].includes(element.tagName) || element.getAttribute("role") === "tab" ? element.textContent.trim() : "") ||
    element.getAttribute("title") || "";
  const hidden = (element) => element.closest("[aria-hidden=true]");
  for (const element of document.querySelectorAll("button, a[href], input, select, textarea, [role=tab], [role=img], [role=application], [tabindex='0']"))
    if (seen(element) && !hidden(element) && !name(element)) problems.push(`${label(element)} has no name`);
  // As axe's label-content-name-mismatch: who says what is written on a button must hit it.
  const spoken = (text) => text.toLowerCase().replace(/[^\p{L}\p{N}]+/gu, " ").trim();
  for (const element of document.querySelectorAll("button[aria-label], a[aria-label], [role=tab][aria-label]")) {
    const written = spoken(element.innerText);
    if (seen(element) && written && !spoken(element.getAttribute("aria-label")).includes(written))
      problems.push(`${label(element)} reads “${element.innerText}” and is called “${element.getAttribute("aria-label")}”`);
  }
  for (const image of document.querySelectorAll("img")) if (!image.hasAttribute("alt")) problems.push(`${label(image)} has no alt`);
  const ids = new Set();
  for (const { id } of document.querySelectorAll("[id]")) {
    if (ids.has(id)) problems.push(`the id ${id} is there twice`);
    ids.add(id);
  }
  for (const attribute of ["aria-labelledby", "aria-describedby", "aria-controls"])
    for (const element of document.querySelectorAll(`[${attribute}]`))
      for (const id of element.getAttribute(attribute).split(/\s+/)) if (!document.getElementById(id)) problems.push(`${label(element)} ${attribute} names ${id}, which is not there`);

  // ---- structure
  if (!document.documentElement.lang) problems.push("the page has no language");
  if (document.querySelectorAll("main").length !== 1) problems.push("there is not exactly one main");
  if (document.querySelectorAll("h1").length !== 1) problems.push("there is not exactly one h1");
  let level = 1;
  for (const heading of document.querySelectorAll("#view h2, #view h3, #view h4")) {
    const next = Number(heading.tagName[1]);
    if (next > level + 1) problems.push(`${label(heading)} “${heading.textContent}” skips a level`);
    level = next;
  }
  for (const tab of document.querySelectorAll("[role=tab]")) if (!tab.hasAttribute("aria-selected")) problems.push("a tab does not say whether it is selected");

  // ---- contrast
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  canvas.canvas.width = canvas.canvas.height = 1;
  const known = new Map();
  const rgba = (text) => {
    if (!known.has(text)) {
      canvas.clearRect(0, 0, 1, 1);
      canvas.fillStyle = text;
      canvas.fillRect(0, 0, 1, 1);
      const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
      known.set(text, [r, g, b, a / 255]);
    }
    return known.get(text);
  };
  const over = (top, below) => [0, 1, 2].map((at) => top[at] * top[3] + below[at] * (1 - top[3])).concat(1);
  const behind = (element) => {
    const layers = [];
    for (let at = element; at; at = at.parentElement) layers.push(rgba(getComputedStyle(at).backgroundColor));
    return layers.reverse().reduce((below, layer) => over(layer, below), [255, 255, 255, 1]);
  };
  const light = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map((value) => ((value /= 255) <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4));
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const checked = new Set();
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || checked.has(element) || !seen(element) || element.closest("noscript, script, option, .sr, :disabled, .skip")) continue;
    checked.add(element);
    const style = getComputedStyle(element);
    const below = behind(element);
    const [a, b] = [light(over(rgba(style.color), below)), light(below)];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    const size = parseFloat(style.fontSize), large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    if (ratio < (large ? 3 : 4.5)) problems.push(`“${walker.currentNode.data.trim().slice(0, 30)}” has a contrast of ${ratio.toFixed(2)} in ${label(element)}`);
  }

  // ---- room
  if (document.documentElement.scrollWidth > innerWidth + 1) problems.push(`the page is ${document.documentElement.scrollWidth} wide in a window of ${innerWidth}`);
  for (const element of document.querySelectorAll("button, select, [role=tab], a.button")) {
    const box = element.getBoundingClientRect();
    if (seen(element) && box.width && (box.width < 24 || box.height < 24)) problems.push(`${label(element)} is only ${Math.round(box.width)} by ${Math.round(box.height)} pixels`);
  }
  return problems;
}
