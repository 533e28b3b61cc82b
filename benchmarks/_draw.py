"""Curves as an SVG file that stands alone, with the project's own chart: colours and names inside."""

from __future__ import annotations

from html import escape
from pathlib import Path

STYLE = (
    "<style>svg{--s0:#2458c5;--s1:#d9622b;--s2:#2a8f5b;background:#fff;font-family:system-ui,sans-serif}"
    ".grid{stroke:#e4e4ea}.tick,.axis,.name{fill:#555;font-size:12px}.tick.x,.axis{text-anchor:middle}"
    ".tick.y{text-anchor:end}.line{fill:none;stroke-width:2}</style>"
)


def draw(
    path: Path, lines: dict[str, list[tuple[float, float]]], x_name: str, y_name: str, *, names_at: float = 0.0
) -> None:
    """`names_at`: where the names begin, as a share of the drawing's width; curves that fall leave the right free."""
    from remask.reports.charts import LEFT, TOP, WIDTH, Series, line_chart

    chart = line_chart([Series(name, points) for name, points in lines.items()], x_name=x_name, y_name=y_name)
    drawing = chart[: chart.index("</svg>")].replace("var(--series-", "var(--s")
    left = LEFT + names_at * (WIDTH - LEFT)
    names = [
        f"<text class='name' x='{left + 26:g}' y='{TOP + 10 + 16 * i}'>{escape(name)}</text>"
        f"<line class='line' x1='{left + 6:g}' x2='{left + 22:g}' y1='{TOP + 6 + 16 * i}' y2='{TOP + 6 + 16 * i}' "
        f"style='stroke:var(--s{i})'/>"
        for i, name in enumerate(lines)
    ]
    start = drawing.index(">") + 1
    opened = drawing[:start].replace("<svg ", "<svg xmlns='http://www.w3.org/2000/svg' ")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(opened + STYLE + drawing[start:] + "".join(names if len(lines) > 1 else []) + "</svg>\n")
