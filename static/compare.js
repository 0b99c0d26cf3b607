// The combo boxes of a comparison: an offered run is compared immediately, typed numbers on Enter,
// and a typed name filters the list below.
let search;
for (const input of document.querySelectorAll("[data-combo]")) {
  input.addEventListener("focus", () => input.select());
  input.addEventListener("input", (event) => {
    const isChosen = event.inputType === "insertReplacementText" || event.inputType === undefined;
    const offered = [...input.list.options].some((option) => option.value === input.value);
    if (isChosen && offered) input.form.requestSubmit();
    clearTimeout(search);
    if (/[a-z]/i.test(input.value)) search = setTimeout(() => find(input), 300);
  });
}

function find(input) {
  const query = new URLSearchParams(new FormData(input.form));
  window.htmx.ajax("GET", `/compare?${query}`, { target: "#compare-picker", select: "#compare-picker", swap: "outerHTML" });
}
