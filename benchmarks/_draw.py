"""Curves as an SVG file that stands alone: axes, colours and names inside, for pages that are no HTML of ours."""

from __future__ import annotations

from html import escape
from pathlib import Path

WIDTH, HEIGHT = 640, 280
LEFT, RIGHT, TOP, BOTTOM = 74, 24, 14, 44
COLOURS = ("#2458c5", "#d9622b", "#2a8f5b", "#8a4fbf", "#b08900", "#555555")
STYLE = (
    "<style>svg{background:#fff;font-family:system-ui,sans-serif}.grid{stroke:#e4e4ea}"
    "text{fill:#555;font-size:12px}.x{text-anchor:middle}.y{text-anchor:end}.line{fill:none;stroke-width:2}</style>"
)


def draw(
    path: Path, lines: dict[str, list[tuple[float, float]]], x_name: str, y_name: str, *, names_at: float = 0.0
) -> None:
    """`names_at`: where the names begin, as a share of the drawing's width; curves that fall leave the right free."""
    from remask.reports.charts import ticks

    xs, ys = ([point[axis] for points in lines.values() for point in points] for axis in (0, 1))
    x_ticks, y_ticks = ticks(min(xs), max(xs)), ticks(min(ys), max(ys), 5)

    def to_x(x: float) -> float:
        return _between(x, [*x_ticks, *xs], LEFT, WIDTH - RIGHT)

    def to_y(y: float) -> float:
        return _between(y, [*y_ticks, *ys], HEIGHT - BOTTOM, TOP)

    parts = [f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {HEIGHT}'>", STYLE]
    for y in y_ticks:
        parts.append(f"<line class='grid' x1='{LEFT}' x2='{WIDTH - RIGHT}' y1='{to_y(y):.1f}' y2='{to_y(y):.1f}'/>")
        parts.append(f"<text class='y' x='{LEFT - 7}' y='{to_y(y) + 4:.1f}'>{y:,g}</text>")
    parts += [f"<text class='x' x='{to_x(x):.1f}' y='{HEIGHT - BOTTOM + 17}'>{x:,g}</text>" for x in x_ticks]
    middle = (TOP + HEIGHT - BOTTOM) / 2
    parts.append(f"<text class='x' x='{(LEFT + WIDTH - RIGHT) / 2:g}' y='{HEIGHT - 6}'>{escape(x_name)}</text>")
    parts.append(f"<text class='x' transform='translate(14 {middle:g}) rotate(-90)'>{escape(y_name)}</text>")
    left = LEFT + names_at * (WIDTH - LEFT)
    for number, (name, points) in enumerate(lines.items()):
        stroke = f"style='stroke:{COLOURS[number % len(COLOURS)]}'"
        places = " ".join(f"{to_x(x):.1f},{to_y(y):.1f}" for x, y in points)
        parts.append(f"<polyline class='line' {stroke} points='{places}'/>")
        if len(lines) > 1:
            height = TOP + 6 + 16 * number
            parts.append(f"<line class='line' {stroke} x1='{left + 6:g}' x2='{left + 22:g}' y1='{height}' y2='{height}'/>")  # fmt: skip  # noqa: E501
            parts.append(f"<text x='{left + 26:g}' y='{height + 4}'>{escape(name)}</text>")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(parts) + "</svg>\n")


def _between(value: float, values: list[float], start: float, end: float) -> float:
    low, high = min(values), max(values)
    return start + (value - low) / ((high - low) or 1.0) * (end - start)
