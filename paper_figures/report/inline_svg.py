"""A saved SVG made part of an HTML page: it takes the page's colours, light or dark."""

from __future__ import annotations

import re
from html import escape

from paper_figures.style import PALETTE


def inline(svg: str, prefix: str, description: str) -> str:
    """The `<svg>` element alone: colours become variables (`--c-1c1c20`), ids get `prefix`.

    Namespaces and metadata go, which an HTML page does not need; so does the fixed size.
    """
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<!--.*?-->", "", svg, flags=re.DOTALL)
    head, _, body = svg.partition(">")
    view = re.search(r'viewBox="[^"]*"', head)
    label = escape(description, quote=True)
    head = f'<svg {view[0] if view else ""} role="img" aria-label="{label}">'
    body = re.sub(r'\bid="', f'id="{prefix}-', body)
    body = re.sub(r"url\(#", f"url(#{prefix}-", body)
    body = re.sub(r'xlink:href="#', f'href="#{prefix}-', body)
    for colour in PALETTE:
        body = body.replace(colour, f"var(--c-{colour[1:]})")
    return head + body.strip()
