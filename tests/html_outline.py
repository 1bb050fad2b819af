"""What a page of HTML holds: its tags, what they load, its text and the cells of its tables."""

from __future__ import annotations

from html.parser import HTMLParser


class Outline(HTMLParser):
    """The tags of a page with their attributes, the text in each kind, and each cell's text."""

    def __init__(self, text: str):
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.text: dict[str, list[str]] = {}
        self.cells: list[str] = []
        self.feed(text)

    @property
    def loads(self) -> list[str]:
        """What the page loads or leads to."""
        leads = [value for name, value in self.attributes if name in ("src", "href", "srcset")]
        return [value for value in leads if not value.startswith("#")]  # to the page itself

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag in ("td", "th"):
            self.cells.append("")

    def handle_data(self, data):
        if self.tags:
            self.text.setdefault(self.tags[-1], []).append(data)
        if self.cells:
            self.cells[-1] += data
