"""How a page looks, from one opening of it: three widths, axe in the light theme, and the colours of the dark one."""

from axe_playwright_python.base import AXE_SCRIPT, AxeResults
from playwright.sync_api import Page

PHONE, TABLET, DESKTOP = 390, 1024, 1440
AXE: dict[str, object] = {"resultTypes": ["violations"]}
COLOURS = AXE | {"runOnly": ["color-contrast", "link-in-text-block"]}
"""What a theme may break: names, roles and order are the same in the other one."""

UNFOLD = "for (const folded of document.querySelectorAll('main details')) folded.open = true"
KEPT = 2
THIN_OUT = r"""kept => {
  // One template makes the rows of a table. Axe compares every text with all that lies around it, which takes
  // half a minute on the longest page: of neighbours that are built alike, but for their words, two are enough.
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


def assert_looks_well(page: Page, *, unfold: bool = False) -> None:
    """Of a page opened at the width of a phone. It is wide and dark afterwards, and holds a few of its rows."""
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE
    for width in (TABLET, DESKTOP):  # charts follow when they get to it
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_function("width => document.documentElement.scrollWidth <= width", arg=width)
    if unfold:
        page.evaluate(UNFOLD)
    page.evaluate(THIN_OUT, KEPT)
    page.evaluate(AXE_SCRIPT)
    _axe_finds_nothing(page, AXE)
    page.emulate_media(color_scheme="dark")
    _axe_finds_nothing(page, COLOURS)


def _axe_finds_nothing(page: Page, options: dict[str, object]) -> None:
    results = AxeResults(page.evaluate("options => axe.run(options)", options))
    assert results.violations_count == 0, results.generate_report()
