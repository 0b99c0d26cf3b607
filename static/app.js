// Small on purpose: charts, the theme switch, the upload form, and what htmx leaves to its page.
// A module, because the chart bundle declares short names of its own in the global scope.
const $ = (selector, root = document) => root.querySelector(selector);
const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];

/* ---------- theme ---------- */

const THEMES = ["system", "light", "dark"];

function theme() {
  return document.documentElement.dataset.theme || "system";
}

function setTheme(next) {
  if (next === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = next;
  try { localStorage.setItem("theme", next); } catch { /* remembered for this page only */ }
  showTheme();
  redrawCharts();
}

function showTheme() {
  for (const button of $$("[data-theme-switch]")) {
    button.hidden = false;
    button.title = `Theme: ${theme()}`;
    $("[data-theme-label]", button).textContent = `Theme: ${theme()}. Change it.`;
    for (const icon of $$("[data-theme-is]", button)) icon.hidden = icon.dataset.themeIs !== theme();
  }
}

/* ---------- charts ---------- */

const drawn = new Map(); // chart area -> vega view

function loadScript(address) {
  loadScript.pending ??= new Map();
  if (!loadScript.pending.has(address)) {
    loadScript.pending.set(address, new Promise((resolve, reject) => {
      const script = document.createElement("script");
      script.src = address;
      script.onload = resolve;
      script.onerror = () => { loadScript.pending.delete(address); reject(new Error(address)); };
      document.head.append(script);
    }));
  }
  return loadScript.pending.get(address);
}

// Specifications name colours by token (`--accent`): the stylesheet says what they are in this theme.
function withColours(value, probe) {
  if (typeof value === "string" && value.startsWith("--")) {
    probe.style.color = `var(${value})`;
    return getComputedStyle(probe).color;
  }
  if (Array.isArray(value)) return value.map((item) => withColours(item, probe));
  if (value && typeof value === "object") {
    return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, key === "datasets" ? item : withColours(item, probe)]));
  }
  return value;
}

async function drawChart(area) {
  const source = $('script[type="application/json"]', area);
  // It must stand in the page while it is drawn: it takes its width from there.
  const target = document.createElement("div");
  try {
    await loadScript(area.dataset.vega);
    const spec = withColours(JSON.parse(source.textContent), area);
    area.style.color = "";
    area.append(target);
    const result = await vegaEmbed(target, spec, {
      ast: true, actions: false, defaultStyle: false, renderer: "canvas", tooltip: { disableDefaultStyle: true },
    });
    drawn.get(area)?.finalize();
    drawn.set(area, result);
    area.replaceChildren(source, target);
    listen(area, result.view);
    area.dataset.ready = theme();
  } catch (error) {
    console.warn("chart", error);
    target.remove();
    const wait = $(".chart-wait", area);
    if (wait) wait.textContent = "The chart could not be drawn. The table holds the same values.";
  }
}

function listen(area, view) {
  view.addEventListener("click", (_event, item) => {
    const line = item?.datum?.line ?? item?.datum?.datum?.line;
    if (line) showLine(area.dataset.run, line);
  });
  let zoom = null;
  view.addSignalListener("zoom_iteration", (_name, range) => { zoom = range; });
  view.addEventListener("pointerup", () => {
    if (!zoom || zoom.length !== 2) return;
    const [first, last] = zoom.map(Number).sort((a, b) => a - b);
    zoom = null;
    const form = $("#run-chart form");
    if (Math.floor(last) - Math.ceil(first) < 1) return;
    form.elements.first.value = Math.max(1, Math.ceil(first));
    form.elements.last.value = Math.floor(last);
    htmx.trigger(form, "submit");
  });
}

function redrawCharts() {
  for (const area of drawn.keys()) area.isConnected ? drawChart(area) : drawn.delete(area);
}

/* ---------- chart <-> log ---------- */

async function showLine(run, line) {
  await htmx.ajax("GET", `/runs/${run}/log?${withParameter("line", line)}`, { target: "#run-log", swap: "outerHTML" });
  goTo(`L${line}`);
}

function withParameter(name, value) {
  const parameters = new URLSearchParams(location.search);
  parameters.set(name, value);
  return parameters;
}

// The box scrolls to the line that matters, the page stays where it is.
function showInside(log) {
  const line = $("li.chosen", log) ?? $("li.event", log);
  if (line) log.scrollTop += line.getBoundingClientRect().top - log.getBoundingClientRect().top - log.clientHeight / 2;
}

function goTo(id) {
  const element = document.getElementById(id);
  if (!element) return;
  element.scrollIntoView({ block: "center" });
  const link = $("a", element);
  link?.focus({ preventScroll: true });
}

/* ---------- what htmx leaves to its page ---------- */

function announce(root) {
  const text = root.dataset?.announce ?? $("[data-announce]", root)?.dataset.announce;
  if (text) $("#announce").textContent = text;
}

// A filter that was taken away by its chip must leave its select box too.
function followAddress() {
  const parameters = new URLSearchParams(location.search);
  for (const form of $$("[data-follows-address]")) {
    for (const control of form.elements) {
      if (control.name && control !== document.activeElement) control.value = parameters.get(control.name) ?? (control.name === "sort" ? "-created" : "");
    }
  }
}

function problem(text) {
  const box = $("#problem");
  box.replaceChildren(document.createTextNode(text));
  const close = document.createElement("button");
  close.className = "button quiet";
  close.type = "button";
  close.textContent = "Close";
  close.addEventListener("click", () => { box.hidden = true; });
  box.append(close);
  box.hidden = false;
}

function problemText(request) {
  try { return JSON.parse(request.responseText).detail; } catch { return `The service answered ${request.status}. Reload the page.`; }
}

/* ---------- wiring ---------- */

function start(root) {
  showTheme();
  for (const area of $$("[data-chart]", root)) drawChart(area);
  if (root.matches?.("[data-chart]")) drawChart(root);
  for (const button of $$("[data-copy]", root)) button.hidden = !navigator.clipboard;
  for (const form of $$("form[data-upload]", root)) uploads(form);
  for (const log of $$(".log", root)) showInside(log);
}

document.addEventListener("click", (event) => {
  const target = event.target.closest("[data-theme-switch], [data-copy]");
  if (!target) return;
  if (target.matches("[data-theme-switch]")) setTheme(THEMES[(THEMES.indexOf(theme()) + 1) % THEMES.length]);
  else {
    navigator.clipboard.writeText($("code", target.parentElement).textContent).then(() => {
      target.textContent = "Copied";
      $("#announce").textContent = "Copied";
      setTimeout(() => { target.textContent = "Copy"; }, 2000);
    }, () => problem("The browser did not allow copying. Select the text instead."));
  }
});

document.addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest("input, textarea, select, [contenteditable]")) return;
  const search = $$('input[type="search"][name="q"]').find((input) => input.checkVisibility());
  if (!search) return;
  event.preventDefault();
  search.focus();
  search.select();
});

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawCharts);

// Empty fields are no filters: addresses stay short enough to be read and shared.
document.addEventListener("htmx:configRequest", (event) => {
  const { parameters, verb } = event.detail;
  if (verb !== "get") return;
  for (const name of Object.keys(parameters)) if (parameters[name] === "") delete parameters[name];
});
document.addEventListener("htmx:load", (event) => { if (event.detail.elt !== document.body) start(event.detail.elt); });
document.addEventListener("htmx:afterSwap", (event) => announce(event.detail.elt));
document.addEventListener("htmx:pushedIntoHistory", followAddress);
document.addEventListener("htmx:afterSettle", (event) => {
  const cause = event.detail.requestConfig?.elt;
  if (cause?.matches?.("[data-show-line]")) goTo(new URL(cause.href).hash.slice(1));
  if (cause?.matches?.("[data-show-chart]")) $("#chart").scrollIntoView({ block: "start" });
});
document.addEventListener("htmx:responseError", (event) => problem(problemText(event.detail.xhr)));
document.addEventListener("htmx:sendError", () => problem("The service did not answer. Nothing was changed; try again."));
document.addEventListener("htmx:timeout", () => problem("The service took too long to answer. Try again."));

/* ---------- upload ---------- */

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
  const total = [...input.files].reduce((sum, file) => sum + file.size, 0);
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
    if (!next) { stop($("main", answer)?.innerText.trim() || problemText(request)); return; }
    const files = input.files;
    form.replaceWith(next);
    $('input[type="file"]', next).files = files;
    htmx.process(next);
    start(next.parentElement);
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

start(document.body);
