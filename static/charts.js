// Charts: what `data-chart` holds is embedded with Vega, in the colours of the theme that is shown.
// A module, because the chart bundle declares short names of its own in the global scope.
const drawn = new Map(); // chart area -> vega view
const scripts = new Map(); // address -> promise

function loadScript(address) {
  if (!scripts.has(address)) {
    scripts.set(address, new Promise((resolve, reject) => {
      const script = document.createElement("script");
      script.src = address;
      script.onload = resolve;
      script.onerror = () => { scripts.delete(address); reject(new Error(address)); };
      document.head.append(script);
    }));
  }
  return scripts.get(address);
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
  const source = area.querySelector("[data-spec]");
  // It must stand in the page while it is drawn: it takes its width from there. What was drawn before stays until then.
  const target = document.createElement("div");
  target.className = "chart-drawing";
  try {
    await loadScript(area.dataset.vega);
    const spec = withColours(JSON.parse(source.textContent), area);
    area.style.color = "";
    area.append(target);
    const result = await vegaEmbed(target, spec, {
      ast: true, actions: false, defaultStyle: false, renderer: "canvas", tooltip: { disableDefaultStyle: true },
    });
    if (!source.isConnected) { result.finalize(); target.remove(); return; } // newer data came meanwhile
    drawn.get(area)?.finalize();
    hideTooltip();
    drawn.set(area, result);
    target.className = "";
    area.replaceChildren(source, target);
    listen(area, result.view);
    area.dataset.ready = document.documentElement.dataset.theme || "system";
  } catch (error) {
    console.warn("chart", error);
    target.remove();
    const wait = area.querySelector(".chart-wait");
    if (wait) wait.textContent = "The chart could not be drawn. The table has the same values.";
  }
}

// The tooltip hangs on the page, not on the chart: the chart that showed it may be gone before the pointer leaves it.
function hideTooltip() {
  document.getElementById("vg-tooltip-element")?.remove();
}

// A click follows what the point leads to; a drag writes the form of the chart, which asks for the part it spans.
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
  const form = area.closest("figure")?.parentElement.querySelector("form");
  if (!form?.elements.first) return;
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

// An address of this service, null for any other: `//host` and `/\host` begin like a path and lead elsewhere.
export function ownAddress(href) {
  if (typeof href !== "string" || !href.startsWith("/")) return null;
  const address = new URL(href, location.origin);
  return address.origin === location.origin ? address.href : null;
}

// Where points have numbers (runs), those of the outermost ones inside; else the axis itself counts (iterations).
function zoomEnds(points, low, high) {
  if (points[0]?.id === undefined) return Math.floor(high) - Math.ceil(low) < 1 ? null : [Math.max(1, Math.ceil(low)), Math.floor(high)];
  const inside = points.filter((point) => point.at >= low && point.at <= high);
  return inside.length < 2 ? null : [inside[0].id, inside.at(-1).id];
}

function redrawCharts() {
  for (const area of drawn.keys()) area.isConnected ? drawChart(area) : drawn.delete(area);
}

function start(root) {
  for (const area of root.querySelectorAll("[data-chart]")) drawChart(area);
  const area = root.closest("[data-chart]"); // the chart itself, or the new data of one
  if (area) drawChart(area);
}

document.addEventListener("htmx:load", (event) => { if (event.detail.elt !== document.body) start(event.detail.elt); });
document.addEventListener("themechange", redrawCharts);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawCharts);
start(document.body);
