// The list of runs. A selection survives other filters and pages until it is compared or cleared.
const KEY = "selected-runs";
const form = () => document.querySelector("#to-compare");
const boxes = () => [...document.querySelectorAll('input[name="run"][form="to-compare"]')];

function read() {
  try { return new Set(JSON.parse(sessionStorage.getItem(KEY) ?? "[]")); } catch { return new Set(); }
}

function show(selected = read()) {
  const here = boxes();
  for (const box of here) box.checked = selected.has(box.value);
  if (!form()) return;
  document.querySelector("#selection").classList.toggle("no-js", !selected.size);
  form().querySelector("[data-selected-runs]").textContent = `${selected.size} selected`;
  form().querySelector("button[type=submit]").disabled = selected.size < 2;
  // Also send the selected runs of other pages.
  const elsewhere = [...selected].filter((run) => !here.some((box) => box.value === run));
  send(form(), elsewhere);
  for (const change of document.querySelectorAll("form[data-selected]")) send(change, selected);
}

function send(target, runs) {
  for (const other of target.querySelectorAll('input[type="hidden"][name="run"]')) other.remove();
  for (const run of runs) target.append(Object.assign(document.createElement("input"), { type: "hidden", name: "run", value: run }));
}

function keep(selected) {
  try { sessionStorage.setItem(KEY, JSON.stringify([...selected])); } catch { /* selected on this page only */ }
  show(selected);
}

document.addEventListener("change", ({ target }) => {
  if (!target.matches('input[name="run"][form="to-compare"]')) return;
  const selected = read();
  if (target.checked) selected.add(target.value);
  else selected.delete(target.value);
  keep(selected);
});
document.addEventListener("click", ({ target }) => {
  if (target.matches("[data-clear-selection]")) keep(new Set());
});
document.addEventListener("submit", ({ target, submitter }) => {
  if (target === form() && !submitter?.matches("[data-keeps]")) sessionStorage.removeItem(KEY); // compared: the next selection starts empty
});
document.addEventListener("htmx:afterSwap", () => show());
document.addEventListener("htmx:afterSettle", () => show()); // settling restores the class that hides the bar

// Step times of the row under the pointer or with the focus, in the free space after its name.
const card = Object.assign(document.createElement("div"), { className: "spark-card", hidden: true });
document.body.append(card);
let waiting;
let row = null;
function showSpark({ target, pointerType }) {
  const next = target.closest?.(".run-table tbody tr") ?? null;
  if (next === row) return;
  row = next;
  clearTimeout(waiting);
  card.hidden = true;
  const link = row?.querySelector(".run-name a");
  if (!link || pointerType === "touch") return;
  waiting = setTimeout(async () => {
    const answer = await fetch(`${link.pathname}/spark`).catch(() => null);
    if (!answer?.ok || row !== next) return;
    card.innerHTML = await answer.text();
    card.hidden = false;
    const cell = link.closest("td, th").getBoundingClientRect();
    const name = link.closest(".run-name").lastElementChild.getBoundingClientRect();
    const left = cell.right - card.offsetWidth - 8;
    card.style.left = `${left + scrollX}px`;
    card.style.top = `${(cell.top + cell.bottom - card.offsetHeight) / 2 + scrollY}px`;
    card.hidden = left < name.right + 8;
  }, 250);
}
document.addEventListener("pointerover", showSpark);
document.addEventListener("focusin", showSpark);

// Completions of the search field: names of filters, then their values.
let asked;
document.addEventListener("input", ({ target }) => {
  if (!target.matches("[data-completes]")) return;
  clearTimeout(asked);
  asked = setTimeout(async () => {
    const text = target.value;
    const answer = await fetch(`${target.dataset.completes}?q=${encodeURIComponent(text.slice(0, 300))}`).catch(() => null);
    if (!answer?.ok || target.value !== text) return;
    const before = text.slice(0, text.lastIndexOf(" ") + 1);
    const { items } = await answer.json();
    target.list.replaceChildren(...items.map((item) => Object.assign(document.createElement("option"), { value: before + item })));
  }, 150);
});
addEventListener("pageshow", () => show());
show();
