// The upload form: drag and drop, a progress bar, and errors at their field without losing the chosen files.
const $ = (selector, root = document) => root.querySelector(selector);

function size(bytes) {
  for (const unit of ["bytes", "kB", "MB"]) {
    if (bytes < 999.5) return `${unit === "bytes" ? bytes : bytes.toFixed(1)}\u202f${unit}`;
    bytes /= 1000;
  }
  return `${bytes.toFixed(1)}\u202fGB`;
}

const PROJECT = "project";

function remembered() {
  try { return localStorage.getItem(PROJECT) ?? ""; } catch { return ""; }
}

function remember(project) {
  try { localStorage.setItem(PROJECT, project); } catch { /* chosen again next time */ }
}

// Preview: the service reads the beginning of a file and stores nothing.
async function preview(file, bytes) {
  const answer = await fetch(`/upload/preview?name=${encodeURIComponent(file.name.slice(-300))}`, {
    method: "POST",
    headers: { "Content-Type": "application/octet-stream" },
    body: await file.slice(0, bytes).arrayBuffer(),
  });
  return answer.ok ? answer.json() : null;
}

const MOST_PREVIEWS = 4;

function uploads(form) {
  const input = $('input[name="log"]', form);
  const list = $("[data-files]", form);
  const ask = $("[data-ask]", form);
  const recognised = $("[data-recognised]", form);
  const button = $("[data-send]", form);
  const fields = [...ask.querySelectorAll(".field")];
  // A value from a file name is marked, until the user changes it.
  const propose = (field, value, from) => {
    const box = $("input", field);
    $("[data-proposed]", field)?.remove();
    if (box.dataset.proposal && box.value === box.dataset.proposal) box.value = "";
    delete box.dataset.proposal;
    if (!value || box.value) return;
    box.value = box.dataset.proposal = value;
    const hint = document.createElement("p");
    hint.className = "hint";
    hint.dataset.proposed = "";
    hint.textContent = from;
    field.append(hint);
    box.addEventListener("input", () => hint.remove(), { once: true });
  };
  const isFilled = (field) => Boolean($("input", field).value) || Boolean($('[aria-invalid="true"]', field));
  let asked = 0; // only the answer to the newest choice counts

  const choose = (files) => {
    const data = new DataTransfer();
    for (const file of files) data.items.add(file);
    input.files = data.files;
    show();
  };

  const row = (file, number) => {
    const item = document.createElement("li");
    const name = document.createElement("span");
    name.textContent = file.name;
    const amount = document.createElement("span");
    amount.className = "size";
    amount.textContent = size(file.size);
    const remove = document.createElement("button");
    remove.type = "button";
    remove.className = "button quiet";
    remove.textContent = "Remove";
    remove.setAttribute("aria-label", `Remove ${file.name}`);
    remove.addEventListener("click", () => choose([...input.files].filter((_, other) => other !== number)));
    item.append(name, amount, remove);
    return item;
  };

  const read = async (files) => {
    const mine = ++asked;
    ask.classList.remove("no-js");
    ask.hidden = !fields.some(isFilled);
    button.classList.add("primary");
    recognised.textContent = files.length ? "Reading the file" : "";
    for (const field of fields) propose(field, "");
    if (!files.length) return;
    const first = files.slice(0, MOST_PREVIEWS);
    const answers = await Promise.all(first.map((file) => preview(file, Number(form.dataset.previewBytes)).catch(() => null)));
    if (mine !== asked) return;
    const previews = answers.filter(Boolean);
    const logs = previews.filter((each) => each.is_log);
    const proposed = Object.assign({}, ...previews.map((each) => each.proposed));
    const recognisedFields = Object.assign({}, ...logs.map((each) => each.recognised));
    const traces = previews.filter((each) => each.is_profile).length;
    const refused = previews.find((each) => each.is_refused);
    recognised.textContent = (refused ?? logs[0] ?? previews.find((each) => !each.is_profile))?.sentence ?? "";
    if (traces) recognised.textContent += ` ${traces} ${traces === 1 ? "file" : "files"} with a profile.`;
    // The service would store the files without a figure, so sending them is no longer what the page proposes.
    const isUnread = previews.length > 0 && previews.every((each) => !each.is_refused && !each.is_log && !each.is_profile && !each.is_document);
    button.classList.toggle("primary", !isUnread);
    if (isUnread) button.textContent = "Upload without figures";
    button.disabled = Boolean(refused);
    if (refused) return;
    for (const field of fields) {
      const name = $("input", field).name;
      propose(field, name in recognisedFields ? "" : proposed[name], "From the file name");
      field.hidden = logs.length > 0 && name in recognisedFields && !isFilled(field);
    }
    ask.hidden = fields.every((field) => field.hidden);
    ask.open = !isUnread || fields.some(isFilled);
    $("summary", ask).textContent = logs.length ? "Not in the log" : "Model, GPU, container";
  };

  const show = () => {
    const files = [...input.files];
    list.replaceChildren(...files.map(row));
    button.disabled = !files.length;
    button.textContent = files.length ? `Upload ${files.length} ${files.length === 1 ? "file" : "files"}` : "Upload";
    read(files);
  };

  const project = form.elements.project;
  if (!project.value && remembered()) {
    project.value = remembered();
    if (project.value) $("#d-project").prepend("Your last project. ");
  }
  form.addEventListener("dropfiles", (event) => {
    event.preventDefault();
    choose([...input.files, ...event.detail]);
  });
  input.addEventListener("change", show);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    remember(project.value);
    send(form, input);
  });
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
    next.dispatchEvent(new CustomEvent("htmx:load", { bubbles: true, detail: { elt: next } })); // enables its copy buttons
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
