# SPDX-License-Identifier: Apache-2.0
"""The report's pictures: gnuplot draws them, the page's own colours go in."""

import os
import re
import tempfile

from processes import run
from texts import size_text

SCRIPTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "report")
KINDS = {"ceiling": 1, "baseline": 2, "transport": 3}
# The gnuplot scripts draw with these colours, each of which stands for a role.
ROLES = {
    "1,1,1": "ink", "1,1,2": "grid", "1,1,3": "ceiling", "1,1,4": "baseline",
    "1,1,5": "transport", "1,1,6": "muted",
    "1,1,7": "series-2", "1,1,8": "series-3", "1,1,9": "series-4",
    "1,1,10": "series-5",
}
SERIES_ROLES = ("#010105", "#010107", "#010108", "#010109", "#01010a")
CEILING_ROLE = "#010103"


def quoted(value):
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return repr(value)


def draw(script, title, table, **variables):
    """Runs one of the scripts over a table; answers an SVG element for the page."""
    with tempfile.NamedTemporaryFile("w", suffix=".tsv") as data:
        for row in table:
            data.write("\t".join("-" if cell is None else str(cell) for cell in row) + "\n")
        data.flush()
        settings = "; ".join(f"{name} = {quoted(value)}" for name, value in
                             {"data": data.name, **variables}.items())
        svg = run(["gnuplot", "-e", settings, os.path.join(SCRIPTS, script)], 60)
    return fit_into_page(svg, title)


def fit_into_page(svg, title):
    svg = svg[svg.index("<svg"):]
    svg = re.sub(r"<(title|desc)>.*?</\1>", "", svg, flags=re.DOTALL)
    if "<use" not in svg:
        svg = re.sub(r"<defs>.*?</defs>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"rgb\(\s*(\d+),\s*(\d+),\s*(\d+)\)", page_colour, svg)
    svg = re.sub(r' font-family="[^"]*"', "", svg)
    # The page sets the width; the height follows.
    svg = re.sub(r'width="\d+" height="\d+"', "", svg, count=1)
    # The marks of several pictures on one page need names of their own.
    prefix = re.sub(r"\W+", "-", title.lower())
    svg = re.sub(r"(id=['\"]|href=['\"]#|url\(#)(gp|gnuplot|textbox|greybox)",
                 rf"\1{prefix}-\2", svg)
    svg = re.sub(r"\n\s*\n+", "\n", svg)
    return svg.replace("<svg", f'<svg role="img" aria-label="{title}"', 1)


def standalone(svg):
    """A picture of the page as a file of its own, with the page's colours."""
    with open(os.path.join(SCRIPTS, "style.css"), encoding="utf-8") as file:
        colours = file.read().split("* {", 1)[0]
    return re.sub(r"(<svg[^>]*>)", lambda start: f"{start[1]}\n<style>{colours}"
                  "svg { background: var(--paper); font-family: sans-serif }</style>", svg, count=1)


def page_colour(match):
    role = ROLES.get(",".join(match.groups()))
    return f"var(--{role})" if role else match[0]


def label_width(labels):
    return 4 + max(map(len, labels)) * 0.9


def draw_bars(title, lines, values_of, x_label, value_format, limit=None):
    """values_of(line) are the rounds' values; lines without any are left out."""
    rows = []
    for line in lines:
        values = sorted(value for value in values_of(line) if value is not None)
        if values:
            middle = (values[(len(values) - 1) // 2] + values[len(values) // 2]) / 2
            rows.append((len(rows) + 1, line.label, middle, values[0], values[-1],
                         KINDS[line.kind]))
    if not rows:
        return None
    highest = max([limit or 0, *(row[4] for row in rows)])
    return draw("bars.gnuplot", title, rows, rows=len(rows),
                label_width=label_width(row[1] for row in rows), highest=highest * 1.06,
                x_label=x_label, value_format=value_format, limit=limit or 0,
                limit_label="payload limit of the link")


def draw_latency(title, lines):
    rows = []
    for line in lines:
        if line.latency:
            rows.append((len(rows) + 1, line.label, line.latency["p50"], line.latency["p99"],
                         KINDS[line.kind]))
    if not rows:
        return None
    lowest, highest = min(row[2] for row in rows), max(row[3] for row in rows)
    logarithmic = highest > 30 * lowest
    return draw("latency.gnuplot", title, rows, rows=len(rows),
                label_width=label_width(row[1] for row in rows), logarithmic=int(logarithmic),
                lowest=lowest / 3 if logarithmic else 0, highest=1.1 * highest)


def draw_sizes(title, names, rows, limit):
    """Rows are bytes, the goodput of one socket, and that of each name."""
    if not rows or len(names) > len(SERIES_ROLES):
        return None
    names, roles = [*names, "one TCP socket"], [*SERIES_ROLES[:len(names)], CEILING_ROLE]
    table = [(size, *goodputs, ceiling) for size, ceiling, goodputs in rows]
    ticks = ", ".join(f'"{size_text(size)}" {size}' for size, *_ in rows)
    highest = 1.06 * max([limit, *(value for row in table for value in row[1:] if value)])
    return draw("sizes.gnuplot", title, table, count=len(names), roles=" ".join(roles),
                series=" ".join(f'"{name}"' for name in names), ticks=ticks, limit=limit,
                highest=highest)
