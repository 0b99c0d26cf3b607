"""The layout of a page, opened once: three widths, axe in the light theme, and the colours of the dark one."""

from axe_playwright_python.base import AXE_SCRIPT, AxeResults
from playwright.sync_api import Page, expect

from tests.browser.budget import over_budget, overweight, shifted

PHONE, TABLET, DESKTOP = 390, 1024, 1440
EVERY_RULE = {"resultTypes": ["violations"]}
OF_COLOURS = EVERY_RULE | {"runOnly": ["color-contrast", "link-in-text-block"]}
"""What a theme may break: names, roles and order are the same in the other one."""

UNFOLD = "for (const folded of document.querySelectorAll('main details')) folded.open = true"
ROWS = 2
THIN_OUT = r"""rows => {
  // One template makes the rows of a table. Axe compares every text with all that lies around it, which takes
  // half a minute on the longest page: of neighbours that are built alike, but for their words, two are enough.
  // And one template makes the sections of the reference of the API: of so many every eighth stays.
  const sections = document.querySelectorAll("main section")
  if (sections.length > 40) sections.forEach((section, number) => number % 8 && section.remove())
  const row = /^(tr|li|option|section|article|details|div|p)$/
  const values = /^(class|role|type|scope|tabindex|fill|open|hidden|disabled|aria-(hidden|disabled|current|expanded))$/
  const shape = (node) => {
    const counts = new Map()
    let inside = ""
    for (const child of [...node.children]) {
      const like = shape(child)
      const before = counts.get(like) ?? 0
      counts.set(like, before + 1)
      if (before < rows || !row.test(child.localName)) inside += like
      else child.remove()
    }
    const attributes = [...node.attributes].map(({ name, value }) => `${name}=${values.test(name) ? value : !value}`)
    const text = [...node.childNodes].some((child) => child.nodeType === Node.TEXT_NODE && child.data.trim())
    return `<${node.localName} ${attributes.sort().join(" ")} ${text}>${inside}</>`
  }
  shape(document.body)
}"""


RUN_AXE = r"""async ([options, before]) => {
  // Contrast is of a text and its ground, and takes axe longer than all its other rules: of texts of one colour,
  // size and weight on one ground, one is enough, and none where a page before had such a text.
  const seenBefore = new Set(before)
  const examples = new Map()
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
    if (!seenBefore.has(looks.join()) && !examples.has(looks.join())) examples.set(looks.join(), element)
  }
  for (const element of examples.values()) element.dataset.look = ""
  axe.configure({ rules: [{ id: "color-contrast", selector: "[data-look]" }] })
  const { violations } = await axe.run(options)
  for (const element of examples.values()) delete element.dataset.look
  return { looks: [...examples.keys()], violations }
}"""
_looks: set[str] = set()
"""Texts on grounds in which axe found nothing, on all pages of this process."""


LATE_PARTS = "main [hx-trigger=load], main [data-chart]:not([data-ready])"
"""Parts that a page asks for, and charts that are not drawn yet."""
REVEALED = """() => [...document.querySelectorAll("main [hx-trigger=revealed]")]
  .every((part) => part.getBoundingClientRect().top >= innerHeight)"""
"""Whether the parts that load when they come into view have loaded."""


def assert_looks_well(page: Page, *, unfold: bool = False) -> None:
    """Check a page that was opened at phone width. Afterwards it is wide and dark, with few rows."""
    expect(page.locator(LATE_PARTS)).to_have_count(0)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE
    over = [*over_budget(page), *shifted(page), *overweight(page)]
    for width in (TABLET, DESKTOP):  # charts redraw later
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_function("width => document.documentElement.scrollWidth <= width", arg=width)
    page.wait_for_function(REVEALED)
    over += over_budget(page)
    assert not over, "\n".join(over)
    if unfold:
        page.evaluate(UNFOLD)
    assert_accessible(page)


def assert_accessible(page: Page) -> None:
    """Require no axe findings in the light theme and none on colours in the dark one. Few rows stay on the page."""
    page.evaluate(THIN_OUT, ROWS)
    page.evaluate(AXE_SCRIPT)
    for scheme, options in (("light", EVERY_RULE), ("dark", OF_COLOURS)):
        page.emulate_media(color_scheme=scheme)
        answer = page.evaluate(RUN_AXE, [options, list(_looks)])
        results = AxeResults(answer)
        assert results.violations_count == 0, f"in the {scheme} theme: {results.generate_report()}"
        _looks.update(answer["looks"])
