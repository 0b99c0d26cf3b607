// The combo boxes of a comparison: choosing one of the offered runs compares at once; typed numbers wait for Enter.
for (const input of document.querySelectorAll("[data-combo]")) {
  input.addEventListener("focus", () => input.select());
  input.addEventListener("input", (event) => {
    const isChosen = event.inputType === "insertReplacementText" || event.inputType === undefined;
    const offered = [...input.list.options].some((option) => option.value === input.value);
    if (isChosen && offered) input.form.requestSubmit();
  });
}
