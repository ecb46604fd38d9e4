# SPDX-License-Identifier: Apache-2.0
"""The pieces of HTML that the report's sections are made of."""

from html import escape


def table(heads, rows, kinds=None):
    """rows are lists of cells; kinds, one for each row, say how it is shown."""
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in heads)
    body = "".join(
        f'<tr{f" class={chr(34)}{kind}{chr(34)}" if kind else ""}>'
        + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>\n"
        for row, kind in zip(rows, kinds or [None] * len(rows)))
    return (f'<div class="scroll"><table><thead><tr>{head}</tr></thead>\n'
            f"<tbody>{body}</tbody></table></div>")


def figure(caption, svg):
    return f"<figure><figcaption>{escape(caption)}</figcaption>\n{svg}</figure>" if svg else ""


def section(title, note, *parts):
    return "\n".join([f"<section>\n<h2>{escape(title)}</h2>",
                      f'<p class="note">{escape(note)}</p>', *filter(None, parts), "</section>"])
