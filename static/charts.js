// Draws the Vega specifications in `data-chart` in the colours of the current theme.
const drawn = new Map(); // chart area -> vega view

// Vega is loaded with the first chart. The content security policy forbids eval, so Vega interprets expressions.
async function viewOf(area, options, height) {
  const { View, expressionInterpreter, parse } = await import(area.dataset.vega);
  const spec = withColours(JSON.parse(area.querySelector("[data-spec]").textContent), area);
  area.style.color = "";
  if (height) spec.height = Number(height);
  for (const data of spec.data) if (data.name in spec.datasets) data.values = spec.datasets[data.name];
  return new View(parse(spec, {}, { ast: true }), { expr: expressionInterpreter, tooltip: showTooltip, ...options });
}

// Specifications contain colour tokens (`--accent`), which the stylesheet defines for each theme.
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

// The height that the stylesheet sets for a plot: "" for that of its specification, "0" while the chart is hidden.
const plotHeight = (area) => getComputedStyle(area).getPropertyValue("--plot");

async function drawChart(area) {
  const height = plotHeight(area);
  area.dataset.plot = height;
  if (height === "0") { area.dataset.ready = "hidden"; return; }
  const source = area.querySelector("[data-spec]");
  // A chart takes its width from the page, so draw it in place. The old drawing stays until the new one is ready.
  const target = document.createElement("div");
  target.className = "chart-drawing";
  const { theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light" } = document.documentElement.dataset;
  const isDark = theme === "dark";
  try {
    area.append(target);
    const view = await viewOf(area, { container: target }, height);
    await view.runAsync();
    if (!source.isConnected || area.dataset.plot !== height) { view.finalize(); target.remove(); return; } // newer data or another height arrived meanwhile
    drawn.get(area)?.finalize();
    hideTooltip();
    drawn.set(area, view);
    target.className = "";
    // Never lower than the placeholder, so that content below does not move up.
    area.style.minHeight = `${area.querySelector(".reserved")?.getAttribute("height") ?? 0}px`;
    area.replaceChildren(source, target, chartTools(area));
    area.classList.toggle("drawn-dark", isDark);
    listen(area, view);
    walk(area, view, target);
    area.dataset.ready = document.documentElement.dataset.theme || "system";
  } catch (error) {
    console.warn("chart", error);
    target.remove();
    const wait = area.querySelector(".chart-wait");
    if (wait) wait.textContent = "The chart could not be drawn. The table has the same values.";
  }
}

// The tooltip belongs to the page, because a chart may be replaced while its tooltip is open.
// Its values are untrusted (logs), so they are set as text.
function showTooltip(_view, event, _item, value) {
  hideTooltip();
  if (value === null || value === undefined || value === "") return;
  const { clientX, clientY } = event;
  const tip = Object.assign(document.createElement("div"), { id: "chart-tooltip" });
  if (typeof value === "object") {
    const table = tip.appendChild(document.createElement("table"));
    for (const [name, text] of Object.entries(value)) {
      const row = table.insertRow();
      row.insertCell().textContent = name;
      row.insertCell().textContent = text;
    }
  } else tip.textContent = value;
  document.body.append(tip);
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = `${clientX + 10 + width > innerWidth ? clientX - 10 - width : clientX + 10}px`;
  tip.style.top = `${clientY + 10 + height > innerHeight ? clientY - 10 - height : clientY + 10}px`;
}

function hideTooltip() {
  document.getElementById("chart-tooltip")?.remove();
}

// A click follows the link of a point; a drag fills and submits the form of the chart, which zooms to that range.
function listen(area, view) {
  let pressedAt = 0;
  view.addEventListener("pointerdown", (event) => { pressedAt = event.clientX; });
  view.addEventListener("click", (event, item) => {
    if (Math.abs(event.clientX - pressedAt) > 4) return; // the end of a drag
    const point = item?.datum?.datum ?? item?.datum;
    const address = ownAddress(point?.href);
    if (address) location.assign(address);
    else if (point?.line) area.dispatchEvent(new CustomEvent("showline", { bubbles: true, detail: { run: area.dataset.run, ...point } }));
  });
  const form = area.closest("figure, .scaling-chart, #upgrade-chart")?.parentElement.querySelector("form:has([name=first])");
  if (!form) return;
  let zoom = null;
  view.addSignalListener("zoom", (_name, picked) => { zoom = Object.values(picked)[0] ?? null; });
  view.addEventListener("pointerup", () => {
    const ends = zoom?.length === 2 && zoomEnds(view.data("points"), ...zoom.map(Number).sort((a, b) => a - b));
    zoom = null;
    if (!ends) return;
    [form.elements.first.value, form.elements.last.value] = ends;
    hideTooltip();
    htmx.trigger(form, "submit");
  });
}

/* ---------- the chart as a picture ---------- */

const PICTURE = { width: 1600, height: 900, margin: 64, head: 150, foot: 70, scale: 2, narrowest: 720 };

function chartTools(area) {
  const tools = document.createElement("div");
  tools.className = "chart-tools";
  const add = (label, act) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = label;
    button.addEventListener("click", () => act().then(say, (error) => { console.warn("picture", error); say("The picture could not be made."); }));
    tools.append(button);
  };
  if (navigator.clipboard?.write && window.ClipboardItem) {
    add("Copy picture", async () => {
      await navigator.clipboard.write([new ClipboardItem({ "image/png": picture(area, asPng) })]);
      return "Picture copied";
    });
  }
  add("PNG", async () => save(await picture(area, asPng), "png"));
  add("SVG", async () => save(await picture(area, asSvg), "svg"));
  return tools;
}

// A picture drawn by the server.
document.addEventListener("click", ({ target }) => {
  const address = target.closest("[data-copy-picture]")?.dataset.copyPicture;
  if (!address || !navigator.clipboard?.write) return;
  const image = fetch(address).then((answer) => (answer.ok ? answer.blob() : Promise.reject(answer.status)));
  navigator.clipboard.write([new ClipboardItem({ "image/png": image })])
    .then(() => say("Picture copied"), (error) => { console.warn("picture", error); say("The picture could not be made."); });
});

function say(text) {
  const region = document.getElementById("announce");
  if (region) region.textContent = text;
}

function save(blob, type) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  const name = document.title.split("·")[0].trim().replace(/[^\w.-]+/g, "-").replace(/^-+|-+$/g, "");
  link.download = `${name.slice(0, 80) || "chart"}.${type}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  return `${type.toUpperCase()} saved`;
}

// Draws the chart again as a slide of 1600 by 900, with title, date, URL and the `generated` mark.
async function picture(area, write) {
  const { margin, head, foot, width, height } = PICTURE;
  const view = await viewOf(area, { renderer: "none" });
  try {
    await view.runAsync(); // its first run sets the width to that of the page
    const tall = view.scenegraph().root.bounds.height();
    await view.width(Math.max(PICTURE.narrowest, tall * (width - 2 * margin) / (height - head - foot))).runAsync();
    const text = (element) => element?.textContent.replace(/\s+/g, " ").trim() ?? "";
    const date = new Date().toISOString().slice(0, 10);
    const texts = [
      { text: text(document.querySelector("main h1")) || document.title, x: margin, y: 84, size: 40, weight: 600, fill: resolved("--text", area) },
      { text: text(area.closest("section")?.querySelector("h2, h3") ?? document.querySelector("main .answer")), x: margin, y: 128, size: 24, weight: 400, fill: resolved("--muted", area) },
      { text: `${date}   ${location.href}`, x: margin, y: height - 32, size: 18, weight: 400, fill: resolved("--muted", area) },
    ];
    if (document.querySelector("main .generated")) {
      texts.push({ text: "generated", x: width - margin - 110, y: height - 32, size: 22, weight: 600, fill: resolved("--regression", area) });
    }
    return await write(view, texts, resolved("--bg", area));
  } finally {
    view.finalize();
  }
}

async function asPng(view, texts, background) {
  const { margin, head, foot, width, height } = PICTURE;
  const canvas = Object.assign(document.createElement("canvas"), { width, height });
  const pen = canvas.getContext("2d");
  pen.fillStyle = background;
  pen.fillRect(0, 0, width, height);
  const drawing = await view.toCanvas(PICTURE.scale);
  const scale = Math.min((width - 2 * margin) / drawing.width, (height - head - foot) / drawing.height);
  pen.drawImage(drawing, margin, head, drawing.width * scale, drawing.height * scale);
  for (const { text, x, y, size, weight, fill } of texts) {
    pen.font = `${weight} ${size}px system-ui, sans-serif`;
    pen.fillStyle = fill;
    pen.fillText(text, x, y, width - 2 * margin);
  }
  return new Promise((resolve, reject) => canvas.toBlob((blob) => (blob ? resolve(blob) : reject(new Error("empty"))), "image/png"));
}

async function asSvg(view, texts, background) {
  const { margin, head, foot, width, height } = PICTURE;
  const escaped = (text) => text.replace(/[&<>"]/g, (letter) => `&#${letter.charCodeAt(0)};`);
  const lines = texts.map(({ text, x, y, size, weight, fill }) => (
    `<text x="${x}" y="${y}" font-family="system-ui, sans-serif" font-size="${size}" font-weight="${weight}" fill="${fill}">${escaped(text)}</text>`
  ));
  const box = `x="${margin}" y="${head}" width="${width - 2 * margin}" height="${height - head - foot}" preserveAspectRatio="xMinYMin"`;
  const drawing = (await view.toSVG()).replace(/^<svg([^>]*?) width="[^"]*" height="[^"]*"/, `<svg$1 ${box}`);
  const slide = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}"><rect width="${width}" height="${height}" fill="${background}"/>`;
  return new Blob([slide, ...lines, drawing, "</svg>"], { type: "image/svg+xml" });
}

function resolved(name, area) {
  area.style.color = `var(${name})`;
  const colour = getComputedStyle(area).color;
  area.style.color = "";
  return colour;
}

/* ---------- the keyboard on a chart ---------- */

// Points are the marks with a tooltip, from left to right. Arrow keys move between them; Enter follows the link.
function walk(area, view, target) {
  const ring = Object.assign(document.createElement("div"), { className: "chart-ring", hidden: true });
  let points = [];
  let at = -1;
  area.tabIndex = 0;
  area.setAttribute("role", "group");
  area.setAttribute("aria-label", "Chart. Arrow keys move between points, Enter opens one.");
  area.append(ring);
  const show = () => {
    const { item, x, y } = points[at];
    const canvas = target.querySelector("canvas");
    const box = canvas.getBoundingClientRect();
    const frame = area.getBoundingClientRect();
    const scale = box.width / Number.parseFloat(canvas.style.width || canvas.width); // displayed smaller than drawn?
    const [left, top] = [box.left + x * scale, box.top + y * scale];
    ring.style.left = `${left - frame.left}px`;
    ring.style.top = `${top - frame.top}px`;
    ring.hidden = false;
    const text = Object.entries(item.tooltip).map(([name, value]) => `${name}: ${value}`).join(", ");
    say(`${at + 1} of ${points.length}: ${text}`);
    showTooltip(view, { clientX: left, clientY: top }, item, item.tooltip);
  };
  area.onkeydown = (event) => {
    if (event.target !== area || event.ctrlKey || event.metaKey || event.altKey) return;
    const moves = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity };
    if (event.key in moves) {
      points = at < 0 ? pointsOf(view) : points;
      if (!points.length) return;
      at = Math.max(0, Math.min(points.length - 1, at + moves[event.key]));
      event.preventDefault();
      show();
    } else if (event.key === "Enter" && at >= 0) {
      const point = points[at].item.datum?.datum ?? points[at].item.datum;
      const address = ownAddress(point?.href);
      if (address) location.assign(address);
      else if (point?.line) area.dispatchEvent(new CustomEvent("showline", { bubbles: true, detail: { run: area.dataset.run, ...point } }));
    } else if (event.key === "Escape") clear();
  };
  const clear = () => { at = -1; ring.hidden = true; hideTooltip(); };
  area.onblur = clear;
}

function pointsOf(view) {
  const points = new Map();
  const visit = (item, x, y) => {
    const [left, top] = [x + (item.x ?? 0), y + (item.y ?? 0)];
    if (item.tooltip && typeof item.tooltip === "object" && item.mark?.marktype !== "group") {
      const key = JSON.stringify(item.tooltip);
      if (!points.has(key)) points.set(key, { item, x: left, y: top });
    }
    for (const mark of item.items ?? []) for (const child of mark.items ?? []) visit(child, left, top);
  };
  const [x, y] = view.origin();
  const padding = view.padding();
  for (const group of view.scenegraph().root.items) visit(group, x + padding.left, y + padding.top);
  return [...points.values()].sort((a, b) => a.x - b.x || a.y - b.y);
}

// The URL if it belongs to this service, else null: `//host` and `/\host` begin like a path but lead to other hosts.
export function ownAddress(href) {
  if (typeof href !== "string" || !href.startsWith("/")) return null;
  const address = new URL(href, location.origin);
  return address.origin === location.origin ? address.href : null;
}

// The range of a drag: numbers of its first and last point (runs), or values of the axis (iterations).
function zoomEnds(points, low, high) {
  if (points[0]?.id === undefined) return Math.floor(high) - Math.ceil(low) < 1 ? null : [Math.max(1, Math.ceil(low)), Math.floor(high)];
  const inside = points.filter((point) => point.at >= low && point.at <= high).sort((a, b) => a.at - b.at);
  return inside.length < 2 ? null : [inside[0].id, inside.at(-1).id];
}

function redrawCharts() {
  for (const area of drawn.keys()) area.isConnected ? drawChart(area) : drawn.delete(area);
}

function start(root) {
  for (const area of root.querySelectorAll("[data-chart]")) drawChart(area);
  const area = root.closest("[data-chart]"); // the chart, or its new data
  if (area) drawChart(area);
  for (const other of document.querySelectorAll("[data-plot]")) if (plotHeight(other) !== other.dataset.plot) drawChart(other);
}

document.addEventListener("htmx:load", (event) => { if (event.detail.elt !== document.body) start(event.detail.elt); });
document.addEventListener("themechange", redrawCharts);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawCharts);
start(document.body);
