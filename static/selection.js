// The list of runs. Those that are selected in the list stay selected under other filters and pages, until they are compared or cleared.
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
  form().hidden = !selected.size;
  form().querySelector("[data-selected-runs]").textContent = `${selected.size} selected`;
  form().querySelector("button[type=submit]").disabled = selected.size < 2;
  // Those of other pages of the list are sent, too.
  for (const other of form().querySelectorAll("input")) other.remove();
  for (const run of selected) {
    if (here.some((box) => box.value === run)) continue;
    const input = Object.assign(document.createElement("input"), { type: "hidden", name: "run", value: run });
    form().append(input);
  }
}

function keep(selected) {
  try { sessionStorage.setItem(KEY, JSON.stringify([...selected])); } catch { /* selected on this page only */ }
  show(selected);
}

document.addEventListener("change", ({ target }) => {
  target.closest(".add-filter")?.removeAttribute("open"); // it would cover the chips
  if (!target.matches('input[name="run"][form="to-compare"]')) return;
  const selected = read();
  if (target.checked) selected.add(target.value);
  else selected.delete(target.value);
  keep(selected);
});
document.addEventListener("click", ({ target }) => {
  if (target.matches("[data-clear-selection]")) keep(new Set());
});
document.addEventListener("submit", ({ target }) => {
  if (target === form()) sessionStorage.removeItem(KEY); // compared: the next selection starts empty
});
document.addEventListener("htmx:afterSwap", () => show());
addEventListener("pageshow", () => show());
show();
