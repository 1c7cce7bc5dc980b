"""Pages that tests read."""

from __future__ import annotations

import base64
import io
from html.parser import HTMLParser


class Page(HTMLParser):
    """Checks that tags are closed in order; keeps those seen, and the text."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.text = [], [], ""
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in ("img", "meta"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data

    def all(self, tag):
        return [attrs for name, attrs in self.tags if name == tag]


def page_of(sheet, tmp_path):
    sheet.html(tmp_path / "sheet.html")
    return Page((tmp_path / "sheet.html").read_text(encoding="utf-8"))


def opened(img):
    from PIL import Image

    head, data = img["src"].split(",", 1)
    assert head == "data:image/png;base64"
    return Image.open(io.BytesIO(base64.b64decode(data)))
