"""Read a page back as a tree of elements, as strictly as a test needs it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"br", "col", "hr", "img", "input", "link", "meta", "wbr"}


@dataclass
class Node:
    """An element: what it holds, in order, as nodes and texts."""

    name: str
    attributes: dict[str, str | None] = field(default_factory=dict)
    content: list[Node | str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """All text inside, the spaces between words as one."""
        return " ".join(self._raw().split())

    @property
    def classes(self) -> list[str]:
        return (self.attributes.get("class") or "").split()

    def all(self, name: str = "", class_: str = "") -> list[Node]:
        """Return the elements inside of this name and class, in the order of the page."""
        return [
            node
            for node in self._inside()
            if name in ("", node.name) and (not class_ or class_ in node.classes)
        ]

    def one(self, name: str = "", class_: str = "") -> Node:
        """Return the only element of this name and class."""
        (node,) = self.all(name, class_)
        return node

    def with_id(self, anchor: str) -> Node:
        (node,) = [node for node in self._inside() if node.attributes.get("id") == anchor]
        return node

    def _inside(self) -> Iterator[Node]:
        for child in self.content:
            if isinstance(child, Node):
                yield child
                yield from child._inside()

    def _raw(self) -> str:
        return "".join(c if isinstance(c, str) else c._raw() for c in self.content)


def read(page: str) -> Node:
    """Return the root that holds the page; AssertionError where an element is not closed."""
    reader = _Reader()
    reader.feed(page)
    reader.close()
    assert len(reader.open) == 1, f"not closed: {[node.name for node in reader.open[1:]]}"
    return reader.open[0]


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open = [Node("root")]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        node = Node(tag, dict(attrs))
        assert len(node.attributes) == len(attrs), f"an attribute stands twice in <{tag}>: {attrs}"
        self.open[-1].content.append(node)
        if tag not in VOID:
            self.open.append(node)

    def handle_endtag(self, tag: str) -> None:
        assert self.open[-1].name == tag, f"</{tag}> closes <{self.open[-1].name}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.open[-1].content.append(data)
