// The command palette and the keys of every page. Keys do nothing in a text field or while a dialog is open.
const $ = (selector, root = document) => root.querySelector(selector);
const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];

const palette = $("#palette");
const input = $("input", palette);

/* ---------- palette: a combobox over the hits of /search ---------- */

const hits = () => $$("a[role=option]", palette);
const activeHit = () => $("a[aria-selected=true]", palette);

function activate(hit) {
  for (const other of hits()) other.setAttribute("aria-selected", String(other === hit));
  input.setAttribute("aria-activedescendant", hit?.id ?? "");
  hit?.scrollIntoView({ block: "nearest" });
}

function openPalette() {
  for (const menu of $$("details.menu[open]")) menu.open = false;
  palette.showModal();
  input.select();
  htmx.trigger(input, "opened");
}

function follow() {
  const text = input.value.trim();
  // The answer may still be on its way.
  const isAnswered = $("#palette-results", palette).dataset.for === text;
  location.assign((isAnswered && activeHit()?.href) || `/search?${new URLSearchParams({ q: text })}`);
}

input.addEventListener("keydown", (event) => {
  const list = hits();
  const at = list.indexOf(activeHit());
  if (event.key === "ArrowDown") activate(list[(at + 1) % list.length]);
  else if (event.key === "ArrowUp") activate(list.at(at - 1));
  else if (event.key === "Enter") follow();
  else return;
  event.preventDefault();
});
palette.addEventListener("htmx:afterSwap", () => activate(hits()[0]));
palette.addEventListener("click", (event) => { if (event.target === palette) palette.close(); });
document.addEventListener("click", (event) => {
  if (event.target.closest("[data-keys]")) $("#keys").showModal();
  if (!event.target.closest("[data-palette]")) return;
  event.preventDefault();
  openPalette();
});

/* ---------- keys ---------- */

const G_MS = 1500;
let goUntil = 0;

function move(step) {
  const links = $$("main tbody tr, main .list > li, main .verdicts > li")
    .map((row) => $("th a[href], a[href]", row))
    .filter((link) => link?.checkVisibility());
  const at = links.findIndex((link) => link.closest("tr, li").contains(document.activeElement));
  const next = links[at < 0 ? (step > 0 ? 0 : links.length - 1) : at + step];
  next?.focus({ preventScroll: true });
  next?.scrollIntoView({ block: "nearest" });
}

function press(key) {
  const target = $$(`[data-key="${CSS.escape(key)}"]`).find((element) => element.checkVisibility());
  if (!target) return false;
  target.click();
  if (target.matches("summary")) $("textarea, input:not([type=hidden])", target.parentElement)?.focus();
  return true;
}

function handled(key) {
  if (Date.now() < goUntil) {
    goUntil = 0;
    const link = $(`[data-go="${CSS.escape(key)}"]`);
    if (link) location.assign(link.href);
    return Boolean(link);
  }
  if (key === "/") openPalette();
  else if (key === "?") $("#keys").showModal();
  else if (key === "g") goUntil = Date.now() + G_MS;
  else if (key === "j" || key === "k") move(key === "j" ? 1 : -1);
  else return press(key);
  return true;
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.repeat && !"jk".includes(event.key)) return;
  if ($("dialog[open]") || event.target.closest("input:not([type=checkbox], [type=radio]), textarea, select, [contenteditable]")) return;
  if (handled(event.key)) event.preventDefault();
});
