// The page of a run: a link to an anchor in a hidden part opens that part.
const TABS = [
  [/^(verdict|figures|rerun|left-out|verdict-notes|older-verdicts)$/, "why"],
  [/^(iterations|timers|slices|run-table)$/, "iterations"],
  [/^(contract|supply|amendments|other-unknown|a-field)/, "config"],
  [/^(log$|L\d+$)/, "log"],
  [/^(health|warnings|activity)$/, "health"],
  [/^(decisions|pin|unpin|quarantine|release|files|reference|not-understood|report)$/, "record"],
];

function unfold(id) {
  document.getElementById(id)?.closest("details")?.setAttribute("open", "");
}

function openPart() {
  const id = decodeURIComponent(location.hash.slice(1));
  unfold(id);
  if (!id || document.getElementById(id)) return;
  const tab = TABS.find(([pattern]) => pattern.test(id))?.[1];
  const link = tab && document.querySelector(`#run-tabs a[data-tab="${tab}"]`);
  if (!link) return;
  const address = new URL(link.href);
  if (/^contract-/.test(id)) address.searchParams.set("fields", "all");
  if (/^L\d+$/.test(id)) address.searchParams.set("line", id.slice(1));
  const part = `/runs/${address.pathname.split("/")[2]}/tab${address.search}`;
  htmx.ajax("GET", part, { target: "#run-tab", swap: "outerHTML" }).then(() => {
    unfold(id);
    document.getElementById(id)?.scrollIntoView({ block: "center" });
  });
}

addEventListener("hashchange", openPart);
// A link to the line that is already open, or to a failure above, stays on the page.
document.addEventListener("click", (event) => {
  const menu = document.querySelector("details.share[open]");
  if (menu && !menu.contains(event.target)) menu.removeAttribute("open");
});
openPart();
