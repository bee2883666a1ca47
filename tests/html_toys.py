"""What a person reads of HTML, and whether a notebook would show it."""

from html.parser import HTMLParser

VOID = {"br", "hr"}


class Reader(HTMLParser):
    """The text; fails on tags that do not match, and on what a notebook would strip or run."""

    def __init__(self, html: str):
        super().__init__()
        self.open, self.parts = [], []
        self.feed(html)
        assert not self.open
        self.text = " ".join(" ".join(self.parts).split())

    def handle_starttag(self, tag, attrs):
        assert tag not in ("script", "style") and {name for name, _ in attrs} <= {"style", "title"}
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.parts.append(data)
