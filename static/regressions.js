// The triage list: a box that selects all rows of the page, and a count. Without script, select rows one by one.
const rows = () => [...document.querySelectorAll('input[name="seen"]')];

function show() {
  const all = document.querySelector("[data-select-all]");
  const selected = rows().filter((row) => row.checked).length;
  if (all) {
    all.hidden = false;
    all.checked = selected > 0 && selected === rows().length;
    all.indeterminate = selected > 0 && selected < rows().length;
  }
  const bar = document.querySelector("#bulk");
  if (bar) bar.hidden = !selected && !bar.querySelector(".error");
  const count = document.querySelector("[data-selected]");
  if (count) {
    count.hidden = false;
    count.textContent = `${selected} of ${rows().length}`;
  }
}

document.addEventListener("change", (event) => {
  if (event.target.matches("[data-select-all]")) for (const row of rows()) row.checked = event.target.checked;
  if (event.target.matches('[data-select-all], input[name="seen"]')) show();
});
document.addEventListener("htmx:afterSwap", show);
show();
