// Opens a kept trace in ui.perfetto.dev: the browser passes the bytes between windows, without a server.
const PERFETTO = "https://ui.perfetto.dev";
const ASK_EVERY_MS = 50;

async function open_trace(button) {
  const viewer = window.open(PERFETTO);
  if (!viewer) return;
  const answer = await fetch(button.dataset.perfetto);
  if (!answer.ok) { viewer.close(); button.textContent = "The trace could not be loaded"; return; }
  const buffer = await answer.arrayBuffer();
  const asking = setInterval(() => viewer.closed ? clearInterval(asking) : viewer.postMessage("PING", PERFETTO), ASK_EVERY_MS);
  window.addEventListener("message", function answered(event) {
    if (event.origin !== PERFETTO || event.source !== viewer || event.data !== "PONG") return;
    clearInterval(asking);
    window.removeEventListener("message", answered);
    viewer.postMessage({ perfetto: { buffer, title: button.dataset.title } }, PERFETTO, [buffer]);
  });
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-perfetto]");
  if (button) open_trace(button);
});
