// The theme switch, links between charts and logs, and event handlers around htmx.
const $ = (selector, root = document) => root.querySelector(selector);
const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];

/* ---------- theme ---------- */

const THEMES = ["system", "light", "dark"];

function theme() {
  return document.documentElement.dataset.theme || "system";
}

function setTheme(next) {
  if (next === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = next;
  try { localStorage.setItem("theme", next); } catch { /* remembered for this page only */ }
  showTheme();
  document.dispatchEvent(new CustomEvent("themechange"));
}

function showTheme() {
  for (const button of $$("[data-theme-switch]")) {
    button.hidden = false;
    button.title = `Theme: ${theme()}`;
    $("[data-theme-label]", button).textContent = `Theme: ${theme()}. Change it.`;
    for (const icon of $$("[data-theme-is]", button)) icon.hidden = icon.dataset.themeIs !== theme();
  }
}

/* ---------- chart <-> log ---------- */

async function showLine({ run, file, line }) {
  const parameters = new URLSearchParams(location.search);
  parameters.set("line", line);
  parameters.set("file", file || 0);
  await htmx.ajax("GET", `/runs/${run}/log?${parameters}`, { target: "#run-tab", swap: "outerHTML" });
  goTo(`L${line}`);
}

document.addEventListener("showline", (event) => showLine(event.detail));

// Scroll the log to its highlighted line, the failure or the first iteration, without moving the page.
function showInside(log) {
  const line = $("li.chosen", log) ?? $('li:has(a[href^="#failure"])', log);
  const shown = line ?? $("li.read", log);
  const above = line ? log.clientHeight / 2 : 60;
  if (shown) log.scrollTop += shown.getBoundingClientRect().top - log.getBoundingClientRect().top - above;
}

function goTo(id) {
  const element = document.getElementById(id);
  if (!element) return;
  element.scrollIntoView({ block: "center" });
  const link = $("a", element);
  link?.focus({ preventScroll: true });
}

/* ---------- around htmx ---------- */

function announce(root) {
  const text = root.dataset?.announce ?? $("[data-announce]", root)?.dataset.announce;
  if (text) $("#announce").textContent = text;
}

// A filter removed by its chip must also leave its select box.
function followAddress() {
  const parameters = new URLSearchParams(location.search);
  for (const form of $$("[data-follows-address]")) {
    for (const control of form.elements) {
      // Hidden fields are part of the new list.
      if (control.name && control.type !== "hidden" && control !== document.activeElement) control.value = parameters.get(control.name) ?? "";
    }
  }
}

function problem(text) {
  const box = $("#problem");
  box.replaceChildren(document.createTextNode(text));
  const close = document.createElement("button");
  close.className = "button quiet";
  close.type = "button";
  close.textContent = "Close";
  close.addEventListener("click", () => { box.hidden = true; });
  box.append(close);
  box.hidden = false;
}

function problemText(request) {
  try { return JSON.parse(request.responseText).detail; } catch { return `The service answered ${request.status}. Reload the page.`; }
}

// Without log-ins, the first change requests the user's name; a cookie remembers it for all forms.
const NAME_COOKIE = "threewalls_name";

function rememberName(name) {
  document.cookie = `${NAME_COOKIE}=${encodeURIComponent(name)}; path=/; max-age=31536000; samesite=lax`;
  fillName(document, name);
  for (const button of $$("[data-name-switch]")) {
    button.textContent = name;
    button.hidden = false;
  }
}

function fillName(root, name = $("[data-name-switch]")?.textContent ?? "") {
  for (const input of $$('form[method="post"] input[name="author"]', root)) input.value = name || input.value;
}

function askName(then = () => {}) {
  const dialog = $("#identity");
  const input = $("input", dialog);
  input.value = $("[data-name-switch]").textContent;
  $("form", dialog).onsubmit = () => {
    rememberName(input.value.trim());
    then();
  };
  dialog.showModal();
  input.select();
}

document.addEventListener("submit", (event) => {
  const author = event.target.elements.author;
  if (!author || author.value?.trim() || author.checkVisibility() || !$("#identity")) return;
  if (event.submitter?.formMethod === "get") return; // it only looks
  event.preventDefault();
  event.stopImmediatePropagation();
  // A click instead of a submit: htmx forgets the button when the dialog takes the focus.
  askName(() => (event.submitter ? event.submitter.click() : event.target.requestSubmit()));
}, { capture: true });

/* ---------- toasts ---------- */

const TOAST_MS = 20_000;

// A toast disappears after a while, but not under the pointer or with the focus.
function fade(toast) {
  setTimeout(() => (toast.matches(":hover, :focus-within") ? fade(toast) : toast.remove()), TOAST_MS);
}

// A decision replaces the part of the page with its button; restore the focus.
function followDecision(root) {
  if (root.id === "decided" && document.activeElement === document.body) $("#decisions .button", root)?.focus();
}

/* ---------- wiring ---------- */

function start(root) {
  showTheme();
  for (const button of $$("[data-copy]", root)) button.hidden = !navigator.clipboard;
  for (const log of $$(".log", root)) showInside(log);
  fillName(root);
}

document.addEventListener("click", (event) => {
  const target = event.target.closest("[data-theme-switch], [data-copy], [data-close], [data-name-switch]");
  if (!target) return;
  if (target.matches(".toast [data-close]")) target.closest(".toast").remove();
  else if (target.matches("[data-close]")) target.closest("dialog").close();
  else if (target.matches("[data-name-switch]")) askName();
  else if (target.matches("[data-theme-switch]")) setTheme(THEMES[(THEMES.indexOf(theme()) + 1) % THEMES.length]);
  else {
    navigator.clipboard.writeText($("code", target.parentElement).textContent).then(() => {
      const label = target.dataset.label ??= target.textContent;
      target.textContent = "Copied";
      $("#announce").textContent = "Copied";
      setTimeout(() => { target.textContent = label; }, 2000);
    }, () => problem("The browser did not allow copying. Select the text instead."));
  }
});

// Leave empty filters out of the URL, so that it stays readable.
document.addEventListener("htmx:configRequest", (event) => {
  const { parameters, verb } = event.detail;
  if (verb !== "get") return;
  for (const name of Object.keys(parameters)) if (parameters[name] === "") delete parameters[name];
});
document.addEventListener("htmx:load", ({ detail: { elt } }) => {
  if (elt === document.body) return;
  if (elt.matches(".toast")) {
    for (const older of $$(".toast", $("#toasts"))) if (older !== elt) older.remove();
    fade(elt);
  }
  start(elt);
  followDecision(elt);
});
// A rejected form returns as HTML with its errors; other errors are JSON.
document.addEventListener("htmx:beforeSwap", ({ detail }) => {
  // htmx inserts the new part before it removes the old one, so close open panels first: they would close the new ones.
  for (const panel of $$("details[name][open]", detail.target)) panel.removeAttribute("name");
  const isForm = [404, 409, 422].includes(detail.xhr.status) && detail.requestConfig.verb === "post"
    && detail.xhr.getResponseHeader("Content-Type")?.startsWith("text/html");
  if (isForm) {
    detail.shouldSwap = true;
    detail.isError = false;
  }
});
document.addEventListener("htmx:afterSwap", (event) => announce(event.detail.elt));
document.addEventListener("htmx:pushedIntoHistory", followAddress);
// An automatic refresh must neither discard typed text nor close an open part.
document.addEventListener("htmx:oobBeforeSwap", (event) => {
  const { target, fragment } = event.detail;
  if (target.contains(document.activeElement) && document.activeElement.matches("input, select, textarea") || $("form.changed", target)) {
    event.preventDefault();
    return;
  }
  for (const opened of $$("details[id][open]", target)) fragment.querySelector(`#${opened.id}`)?.setAttribute("open", "");
});
document.addEventListener("change", ({ target }) => {
  target.closest(".add-filter")?.removeAttribute("open"); // it would cover the chips
  if (!target.matches("[data-submits]")) return;
  const asked = new URLSearchParams([...new FormData(target.form)].filter(([, value]) => value));
  location.assign(`${target.form.getAttribute("action")}?${asked}`);
});
document.addEventListener("click", ({ target }) => {
  const names = target.dataset?.preset?.split(" ");
  for (const box of names ? $$("input[type=checkbox]", target.closest("fieldset")) : [])
    box.checked = names.includes("all") || names.includes(box.value);
});
// A search matches beginnings of words: "wall" finds "walls", not "Threewalls".
const find = (target) => {
  const words = target.value.toLowerCase().split(/\s+/).filter(Boolean)
    .map((word) => new RegExp("(?<![a-z0-9])" + word.replace(/[^a-z0-9]/g, "\\$&")));
  const rows = $$(target.dataset.finds);
  for (const row of rows) row.hidden = !words.every((word) => word.test(row.textContent.toLowerCase()));
  const matching = rows.filter((row) => !row.hidden);
  $("#announce").textContent = `${matching.length} of ${rows.length}`;
  $("[data-no-match]", target.parentElement).hidden = matching.length > 0;
  if (!target.value) return;
  for (const row of matching) {
    for (let fold = row.parentElement.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
    if (matching.length < 10) for (const fold of [row, ...$$("details", row)]) if (fold.localName === "details") fold.open = true;
  }
};
document.addEventListener("input", ({ target }) => target.matches("[data-finds]") && find(target));
const finder = $("[data-finds]");
if (finder?.value) find(finder);
document.addEventListener("input", (event) => event.target.form?.classList.add("changed"));
document.addEventListener("htmx:afterSettle", (event) => {
  const cause = event.detail.requestConfig?.elt;
  if (cause?.matches?.("[data-show-line]")) goTo(new URL(cause.href).hash.slice(1));
  if (cause?.matches?.("[data-show-chart]")) $("#chart").scrollIntoView({ block: "start" });
});
document.addEventListener("htmx:responseError", (event) => problem(problemText(event.detail.xhr)));
document.addEventListener("htmx:sendError", () => problem("The service did not answer. Nothing was changed; try again."));
document.addEventListener("htmx:timeout", () => problem("The service took too long to answer. Try again."));

start(document.body);
$('main [aria-invalid="true"]')?.focus(); // a form that came back stands far down on some pages

/* ---------- files dropped on a page with an upload form ---------- */

const taker = (event) => event.dataTransfer?.types.includes("Files") && $("form[data-drops]");
for (const type of ["dragenter", "dragover"]) {
  window.addEventListener(type, (event) => {
    if (!taker(event)) return;
    event.preventDefault(); // else the browser opens the file in place of the page
    document.body.classList.add("dropping");
  });
}
window.addEventListener("dragleave", (event) => { if (!event.relatedTarget) document.body.classList.remove("dropping"); });
window.addEventListener("drop", (event) => {
  document.body.classList.remove("dropping");
  const form = taker(event);
  if (!form) return;
  event.preventDefault();
  const files = event.dataTransfer.files;
  if (!form.dispatchEvent(new CustomEvent("dropfiles", { cancelable: true, detail: files }))) return;
  $('input[type="file"]', form).files = files;
  form.requestSubmit();
});

// The tabs of a page are wider than a phone: they begin at the current one.
function showCurrentTab() {
  for (const tab of document.querySelectorAll(".tabs [aria-current]")) tab.parentElement.scrollLeft = tab.offsetLeft - 16;
}
showCurrentTab();
document.addEventListener("htmx:afterSettle", showCurrentTab);
