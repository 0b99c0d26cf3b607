"""The budget of a page: words, positions of the main picture and the primary action, layout shifts, and bytes.

A word has a letter or a digit; a figure with its unit counts as one. Lines of an opened log, entries that readers look
up by name (of a reference, or to choose one) and the documents of the help do not count.
"""

import re
from collections.abc import Sequence
from urllib.parse import parse_qsl, urlsplit

from playwright.sync_api import Page

FIRST_SCREEN_WORDS, PAGE_WORDS, LEAD_WORDS = 150, 400, 16
LAYOUT_SHIFT = 0.02
RUN_BYTES, PAGE_BYTES = 250_000, 180_000
"""Compressed, with all scripts, stylesheets and parts, for a browser that has nothing of them."""

_WORDS_OF = r"""
  const wordsOf = (text) => [...text.matchAll(/(?:\S|\u202f)+/g)].filter(([word]) => /[\p{L}\p{N}]/u.test(word))
"""
MEASURE = r"""() => {WORDS_OF
  const main = document.querySelector("main")
  const height = innerHeight
  scrollTo(0, 0)
  const isIn = (rect) => rect.width > 1 && rect.height > 1 && rect.top < height && rect.left < innerWidth
  let first = 0, all = 0
  const UNSEEN = "script, style, option, .log, .visually-hidden, [data-lookup], [data-document]"
  const texts = document.createTreeWalker(main, NodeFilter.SHOW_TEXT)
  const range = document.createRange()
  while (texts.nextNode()) {
    const node = texts.currentNode
    const words = wordsOf(node.data)
    const parent = node.parentElement
    if (!words.length || !parent.checkVisibility() || parent.closest(UNSEEN)) continue
    range.selectNodeContents(node)
    const rect = range.getBoundingClientRect()
    if (rect.width <= 1) continue
    all += words.length
    if (!isIn(rect)) continue
    if (rect.bottom <= height) first += words.length
    else for (const word of words) {
      range.setStart(node, word.index)
      range.setEnd(node, word.index + word[0].length)
      if (isIn(range.getBoundingClientRect())) first += 1
    }
  }
  const shown = (selector) => [...main.querySelectorAll(selector)].find((element) => element.checkVisibility())
  const below = []
  const parts = { picture: "[data-picture], figure, [data-chart], .chart", action: ".button.primary" }
  for (const [name, selector] of Object.entries(parts)) {
    const element = shown(selector)
    // Of a high picture, 200 px must show.
    if (element && element.getBoundingClientRect().top + Math.min(element.offsetHeight, 200) > height) below.push(name)
  }
  const lead = wordsOf(main.querySelector(".answer")?.innerText ?? "").length
  return { first, all, lead, below }
}""".replace("WORDS_OF", _WORDS_OF)
LEADS = r"""(addresses) => {WORDS_OF
  const leadOf = (text) => new DOMParser().parseFromString(text, "text/html").querySelector("main .answer")
  const count = async (address) => wordsOf(leadOf(await (await fetch(address)).text())?.textContent ?? "").length
  return Promise.all(addresses.map(count))
}""".replace("WORDS_OF", _WORDS_OF)


SHIFT = r"""() => new Promise((resolve) => {
  // While the document itself comes, a slow machine shows the footer below its first half.
  const [{ domInteractive }] = performance.getEntriesByType("navigation")
  let sum = 0
  new PerformanceObserver((list) => {
    for (const { hadRecentInput, startTime, value } of list.getEntries())
      if (!hadRecentInput && startTime > domInteractive) sum += value
  }).observe({ type: "layout-shift", buffered: true })
  requestAnimationFrame(() => setTimeout(() => resolve(sum), 0))
})"""


WEIGH = """() => performance.getEntries()
  .filter(({ entryType }) => entryType === "navigation" || entryType === "resource")
  .reduce((sum, { encodedBodySize }) => sum + encodedBodySize, 0)"""


def name_of(address: str) -> str:
    """Return the URL without parts that differ between tests: numbers, keys, values of the query."""
    parts = urlsplit(address)
    path = re.sub(r"/(\d+|[0-9a-f]{64})(?=/|$)", "/N", parts.path)
    names = "&".join(sorted({name for name, _ in parse_qsl(parts.query, keep_blank_values=True)}))
    return f"{path}?{names}" if names else path


def over_budget(page: Page, *, rows_count: bool = True) -> list[str]:
    """Return the limits that the page exceeds at its width. `rows_count`: whether words in rows of tables count."""
    measured = page.evaluate(MEASURE if rows_count else MEASURE.replace("[data-lookup],", "[data-lookup], tbody,"))
    place = f"{name_of(page.url)} at {page.viewport_size['width'] if page.viewport_size else 0}"
    limits = {"first": FIRST_SCREEN_WORDS, "all": PAGE_WORDS, "lead": LEAD_WORDS}
    wrong = [
        f"{place}: {measured[kind]} words ({kind}), at most {most}"
        for kind, most in limits.items()
        if measured[kind] > most
    ]
    return wrong + [f"{place}: the {part} is below the first screen" for part in measured["below"]]


def leads_over_budget(page: Page, addresses: Sequence[str]) -> list[str]:
    """Return the pages whose lead, as the server sends it, is missing or too long. `page` shows a page of the site."""
    counts = page.evaluate(LEADS, list(addresses))
    return [
        f"{address}: {count} words (lead), 1 to {LEAD_WORDS}"
        for address, count in zip(addresses, counts, strict=True)
        if not 0 < count <= LEAD_WORDS
    ]


def shifted(page: Page) -> list[str]:
    """Return the layout shift until all parts had loaded, at a constant width."""
    shift = page.evaluate(SHIFT)
    return [f"{name_of(page.url)}: layout shift {shift:.3f}"] if shift > LAYOUT_SHIFT else []


def overweight(page: Page) -> list[str]:
    """Return by how much the page weighs too much, with the parts that it has requested."""
    name, weight = name_of(page.url), page.evaluate(WEIGH)
    most = RUN_BYTES if name.startswith("/runs/N") else PAGE_BYTES
    return [f"{name}: {weight / 1000:.0f} kB, at most {most / 1000:.0f}"] if weight > most else []
