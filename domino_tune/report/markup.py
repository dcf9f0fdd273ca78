"""HTML that is escaped by construction: text becomes markup only through ``tag``."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Final

VOID: Final = frozenset({"br", "meta", "line", "rect", "circle", "path", "polyline"})


class Html(str):
    """Text that is already markup, and is not escaped again."""

    __slots__ = ()


def text(value: str) -> Html:
    """Return ``value`` with the characters of markup escaped."""
    return value if isinstance(value, Html) else Html(html.escape(value, quote=True))


def tag(name: str, *children: str, **attributes: str | float | None) -> Html:
    """Return ``<name …>children</name>``; escape plain strings, leave out None attributes.

    ``class_`` gives ``class``; an underscore inside a name gives a hyphen.
    """
    pairs = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(str(value), quote=True)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in VOID:
        return Html(f"<{name}{pairs}/>")
    return Html(f"<{name}{pairs}>{''.join(text(child) for child in children)}</{name}>")


def join(*parts: str) -> Html:
    """Return the parts one after the other."""
    return Html("".join(text(part) for part in parts))


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]], *, class_: str = "") -> Html:
    """Return a table whose first column names the row."""
    top = tag("tr", *(tag("th", cell, scope="col") for cell in head))
    body = [
        tag("tr", tag("th", first, scope="row"), *(tag("td", cell) for cell in rest))
        for first, *rest in rows
    ]
    whole = tag("table", tag("thead", top), tag("tbody", *body), class_=class_ or None)
    return tag("div", whole, class_="scroll", tabindex="0", role="region", aria_label=head[0])


def section(anchor: str, title: str, *children: str, lead: str = "") -> Html:
    """Return one part of the page under its heading; ``lead`` is its first sentence."""
    first = tag("p", lead, class_="lead") if lead else ""
    return tag("section", tag("h2", title), first, *children, id=anchor)
