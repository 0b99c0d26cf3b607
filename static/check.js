// A chosen or dropped file becomes the launch, and is checked at once.
const form = document.querySelector('[action="/check"]');
const launch = form.querySelector("textarea");
const input = form.querySelector('[type="file"]');

async function check([file]) {
  // One byte too many is enough for the service to refuse a huge file.
  launch.value = await file.slice(0, Number(input.dataset.mostBytes) + 1).text();
  form.requestSubmit();
}

input.addEventListener("change", () => check(input.files));
launch.addEventListener("drop", (event) => {
  if (!event.dataTransfer.files.length) return;
  event.preventDefault();
  check(event.dataTransfer.files);
});
