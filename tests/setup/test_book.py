"""Tests of the book: its links, its list of pages, and its code blocks."""

import re
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
SUMMARY = DOCS / "SUMMARY.md"
OTHERS = [ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "examples/README.md")]

FENCE = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^()\s]+)\)")


def prose(page):
    """Returns a page without its code."""
    return re.sub(r"`[^`\n]*`", "`", FENCE.sub("", page.read_text()))


def links(page):
    """Returns the relative links of a page, each as a path and an anchor."""
    found = [link.partition("#") for link in LINK.findall(prose(page)) if "://" not in link]
    return [(path, anchor) for path, _, anchor in found]


def anchors(page):
    """Returns the anchors of the headings of a page, which GitHub and mdBook compute alike."""
    names, seen = set(), {}
    for heading in re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.MULTILINE):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        name = re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", text))
        count = seen[name] = seen.get(name, -1) + 1
        names.add(f"{name}-{count}" if count else name)
    return names


class BookTest(unittest.TestCase):
    def test_links_and_anchors_resolve(self):
        for page in PAGES + OTHERS:
            for path, anchor in links(page):
                with self.subTest(page=page.relative_to(ROOT), link=f"{path}#{anchor}"):
                    target = (page.parent / path).resolve() if path else page
                    self.assertTrue(target.exists(), "no such file")
                    if anchor:
                        self.assertIn(anchor, anchors(target))

    def test_pages_link_to_nothing_outside_of_the_book(self):
        for page in PAGES:
            for path, _ in links(page):
                with self.subTest(page=page.relative_to(ROOT), link=path):
                    self.assertTrue((page.parent / path).resolve().is_relative_to(DOCS))

    def test_the_summary_has_every_page_once(self):
        listed = [(DOCS / path).resolve() for path, _ in links(SUMMARY)]
        self.assertEqual(sorted(listed), [page for page in PAGES if page != SUMMARY])

    def test_rust_of_every_page_is_compiled(self):
        sources = [(ROOT / path).read_text() for path in ("src/lib.rs", "src/rewards/mod.rs")]
        compiled = {ROOT / path for text in sources for path in re.findall(r'"(?:\.\./)+(docs/[^"]+|README\.md)"', text)}
        with_rust = {page for page in [*PAGES, ROOT / "README.md"] if "```rust" in page.read_text()}
        self.assertEqual(compiled, with_rust)

    def test_a_mark_for_ci_precedes_a_shell_block(self):
        for page in [*PAGES, ROOT / "README.md"]:
            for after in page.read_text().split("<!-- ci -->\n")[1:]:
                with self.subTest(page=page.relative_to(ROOT)):
                    self.assertTrue(after.startswith("```sh\n"), after[:40])


if __name__ == "__main__":
    unittest.main()
