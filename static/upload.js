// The upload form: drag and drop, a progress bar, and errors at their field without losing the chosen files.
const $ = (selector, root = document) => root.querySelector(selector);

function size(bytes) {
  for (const unit of ["bytes", "kB", "MB"]) {
    if (bytes < 999.5) return `${unit === "bytes" ? bytes : bytes.toFixed(1)}\u202f${unit}`;
    bytes /= 1000;
  }
  return `${bytes.toFixed(1)}\u202fGB`;
}

function uploads(form) {
  const input = $('input[type="file"]', form);
  const drop = $("[data-drop]", form);
  const list = $("[data-files]", form);
  const show = () => {
    list.replaceChildren(...[...input.files].map((file) => {
      const item = document.createElement("li");
      const name = document.createElement("span");
      name.textContent = file.name;
      const amount = document.createElement("span");
      amount.className = "size";
      amount.textContent = size(file.size);
      item.append(name, amount);
      return item;
    }));
  };
  for (const type of ["dragenter", "dragover"]) drop.addEventListener(type, (event) => { event.preventDefault(); drop.classList.add("over"); });
  for (const type of ["dragleave", "drop"]) drop.addEventListener(type, () => drop.classList.remove("over"));
  drop.addEventListener("drop", (event) => {
    event.preventDefault();
    if (!event.dataTransfer.files.length) return;
    const files = new DataTransfer();
    for (const file of [...input.files, ...event.dataTransfer.files]) files.items.add(file);
    input.files = files.files;
    show();
  });
  input.addEventListener("change", show);
  form.addEventListener("submit", (event) => { event.preventDefault(); send(form, input); });
  show();
}

function send(form, input) {
  const files = [...form.querySelectorAll('input[type="file"]')].flatMap((each) => [...each.files]);
  const total = files.reduce((sum, file) => sum + file.size, 0);
  const limit = Number(form.dataset.maxBytes);
  const status = $("[data-status]", form);
  const bar = $("progress", form);
  const button = $('button[type="submit"]', form);
  if (total > limit) {
    status.textContent = `${size(total)} is more than this service takes (${size(limit)}). Compress the log, or send that of one rank.`;
    return;
  }
  const request = new XMLHttpRequest();
  const stop = (text) => { status.textContent = text; bar.hidden = true; button.disabled = false; };
  request.upload.addEventListener("progress", (event) => {
    bar.value = event.loaded / event.total;
    status.textContent = event.loaded < event.total ? `Sent ${size(event.loaded)} of ${size(event.total)}` : "Sent. Checking the files";
  });
  request.addEventListener("load", () => {
    if (request.status < 300 && !request.responseURL.endsWith("/upload")) { location.assign(request.responseURL); return; }
    const answer = new DOMParser().parseFromString(request.responseText, "text/html");
    const next = $("form[data-upload]", answer);
    if (!next) { stop($("main", answer)?.innerText.trim() || `The service answered ${request.status}. Try again.`); return; }
    const files = input.files;
    form.replaceWith(next);
    $('input[type="file"]', next).files = files;
    uploads(next);
    next.dispatchEvent(new CustomEvent("htmx:load", { bubbles: true, detail: { elt: next } })); // its copy buttons
    ($('[aria-invalid="true"]', next) ?? $("[data-status]", next)).focus();
  });
  request.addEventListener("error", () => stop("The connection broke, and nothing was kept. Check the size of the file and the network, then send it again."));
  request.open("POST", form.action);
  request.setRequestHeader("Accept", "text/html");
  bar.hidden = false;
  bar.value = 0;
  button.disabled = true;
  status.textContent = "Sending";
  request.send(new FormData(form));
}

for (const form of document.querySelectorAll("form[data-upload]")) uploads(form);
