// Login: says what is wrong with the present one and how to get a new one.

import { $, h, show } from "./dom.js";
import { ask } from "./feed.js";

export async function openLogin(feed, text) {
  const dialog = $("login");
  if (dialog.open) return;
  const said = h("p", { class: "problem", role: "alert" }, text ? `${text[0].toUpperCase()}${text.slice(1)}.` : "");
  const field = h("input", {
    id: "login-secret",
    type: "password",
    autocomplete: "off",
    spellcheck: "false",
    "aria-describedby": "login-help",
  });
  const enter = async (event) => {
    event.preventDefault();
    const secret = field.value.trim();
    const once = /#login=([\w-]+)$/.exec(secret)?.[1];
    try {
      await ask.login(once ? { once } : { token: secret, once: secret });
      dialog.close();
      feed.start();
    } catch (problem) {
      said.textContent = `${problem.message}.`;
      field.select();
    }
  };
  show(
    dialog,
    h("h2", { id: "login-title" }, "Log in"),
    said,
    h(
      "form",
      { onsubmit: enter },
      h("label", { for: "login-secret" }, "Login link or token"),
      field,
      h("button", { type: "submit", class: "primary" }, "Log in"),
    ),
    h(
      "div",
      { id: "login-help", class: "muted" },
      h("p", {}, "A local cluster prints a link when it starts, good for one browser. For another one:"),
      h("pre", {}, "phalanx dashboard"),
      h("p", {}, "A scheduler in a cluster takes a token that the API server knows:"),
      h("pre", {}, "kubectl create token NAME -n NAMESPACE"),
    ),
  );
  dialog.addEventListener("cancel", (event) => event.preventDefault());
  dialog.showModal();
}
