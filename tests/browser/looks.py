"""How a page looks, from one opening of it: three widths, axe in the light theme, and the colours of the dark one."""

from typing import Any

from axe_playwright_python.base import AXE_SCRIPT, AxeResults
from playwright.sync_api import Page

from tests.browser.budget import over_budget

PHONE, TABLET, DESKTOP = 390, 1024, 1440
BUT_COLOURS = {"resultTypes": ["violations"], "rules": {"color-contrast": {"enabled": False}}}
CONTRAST = {"resultTypes": ["violations"], "runOnly": ["color-contrast"]}
LINKS = {"resultTypes": ["violations"], "runOnly": ["link-in-text-block"]}
"""With the contrast, what a theme may break: names, roles and order are the same in the other one."""

UNFOLD = "for (const folded of document.querySelectorAll('main details')) folded.open = true"
KEPT = 2
THIN_OUT = r"""kept => {
  // One template makes the rows of a table. Axe compares every text with all that lies around it, which takes
  // half a minute on the longest page: of neighbours that are built alike, but for their words, two are enough.
  // And one template makes the sections of the reference of the API: of so many every eighth stays.
  const sections = document.querySelectorAll("main section")
  if (sections.length > 40) sections.forEach((section, number) => number % 8 && section.remove())
  const row = /^(tr|li|option|section|article|details|div|p)$/
  const told = /^(class|role|type|scope|tabindex|fill|open|hidden|disabled|aria-(hidden|disabled|current|expanded))$/
  const built = (node) => {
    const seen = new Map()
    let inside = ""
    for (const child of [...node.children]) {
      const like = built(child)
      const before = seen.get(like) ?? 0
      seen.set(like, before + 1)
      if (before < kept || !row.test(child.localName)) inside += like
      else child.remove()
    }
    const says = [...node.attributes].map(({ name, value }) => `${name}=${told.test(name) ? value : !value}`)
    const text = [...node.childNodes].some((one) => one.nodeType === Node.TEXT_NODE && one.data.trim())
    return `<${node.localName} ${says.sort().join(" ")} ${text}>${inside}</>`
  }
  built(document.body)
}"""


RUN_AXE = "options => axe.run(options)"
RUN_AXE_ON_COLOURS = r"""async ([options, before]) => {
  // Contrast is of a text and its ground, and takes axe longer than all its other rules: of texts of one colour,
  // size and weight on one ground, one is enough, and none where a page before had such a text.
  const known = new Set(before)
  const seen = new Map()
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT)
  while (texts.nextNode()) {
    const element = texts.currentNode.parentElement
    if (!texts.currentNode.data.trim() || !element.checkVisibility()) continue
    const { color, fontSize, fontWeight } = getComputedStyle(element)
    const looks = [color, fontSize, fontWeight]
    for (let behind = element; behind; behind = behind.parentElement) {
      const { backgroundColor, backgroundImage, opacity, position } = getComputedStyle(behind)
      const ground = [backgroundColor, backgroundImage, opacity, position].join(" ")
      if (looks.at(-1) !== ground) looks.push(ground)
      if (backgroundColor.startsWith("rgb(") && position === "static") break
    }
    if (!known.has(looks.join()) && !seen.has(looks.join())) seen.set(looks.join(), element)
  }
  const violations = seen.size ? (await axe.run({ include: [...seen.values()] }, options)).violations : []
  return { looks: [...seen.keys()], violations }
}"""
_looks: set[str] = set()
"""Texts on grounds in which axe found nothing, on all pages of this process."""


def assert_looks_well(page: Page, *, unfold: bool = False) -> None:
    """Of a page opened at the width of a phone. It is wide and dark afterwards, and holds a few of its rows."""
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE
    over = over_budget(page)
    for width in (TABLET, DESKTOP):  # charts follow when they get to it
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_function("width => document.documentElement.scrollWidth <= width", arg=width)
    over += over_budget(page)
    assert not over, "\n".join(over)
    if unfold:
        page.evaluate(UNFOLD)
    page.evaluate(THIN_OUT, KEPT)
    page.evaluate(AXE_SCRIPT)
    _finds_nothing(page.evaluate(RUN_AXE, BUT_COLOURS))
    _finds_no_contrast_too_low(page)
    page.emulate_media(color_scheme="dark")
    _finds_no_contrast_too_low(page)
    _finds_nothing(page.evaluate(RUN_AXE, LINKS))


def _finds_no_contrast_too_low(page: Page) -> None:
    answer = page.evaluate(RUN_AXE_ON_COLOURS, [CONTRAST, list(_looks)])
    _finds_nothing(answer)
    _looks.update(answer["looks"])


def _finds_nothing(answer: dict[str, Any]) -> None:
    results = AxeResults(answer)
    assert results.violations_count == 0, results.generate_report()
