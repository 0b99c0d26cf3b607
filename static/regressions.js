// The triage list: a box that selects all rows of its table, and a count. Without script, select rows one by one.
const rows = (inside = document) => [...inside.querySelectorAll('input[name="seen"]')];

function show() {
  for (const all of document.querySelectorAll("[data-select-all]")) {
    const own = rows(all.closest("table"));
    const checked = own.filter((row) => row.checked).length;
    all.hidden = false;
    all.checked = checked > 0 && checked === own.length;
    all.indeterminate = checked > 0 && checked < own.length;
  }
  const selected = rows().filter((row) => row.checked).length;
  const count = document.querySelector("[data-selected]");
  if (count) {
    count.hidden = false;
    count.textContent = `${selected} of ${rows().length}`;
  }
}

document.addEventListener("change", (event) => {
  if (event.target.matches("[data-select-all]")) {
    for (const row of rows(event.target.closest("table"))) row.checked = event.target.checked;
  }
  if (event.target.matches('[data-select-all], input[name="seen"]')) show();
});
document.addEventListener("htmx:afterSwap", show);
show();
