# SPDX-License-Identifier: Apache-2.0
"""Numbers as people read them. What was not measured is a dash."""

UNMEASURED = "–"


def size_text(size):
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= factor and size % factor == 0:
            return f"{size // factor} {unit}"
    return f"{size} B"


def number_text(value, decimals):
    return UNMEASURED if value is None else f"{value:.{decimals}f}"


def gbps_text(value):
    return number_text(value, 3 if value is not None and value < 2 else 2)


def microseconds_text(value):
    return number_text(value, 0 if value is not None and value >= 1000 else 1)


def percent_text(share):
    return UNMEASURED if share is None else f"{100 * share:.1f} %"


def spread_text(values):
    """The lowest and the highest of the rounds."""
    measured = [value for value in values if value is not None]
    if len(measured) < 2:
        return UNMEASURED
    return f"{gbps_text(min(measured))} – {gbps_text(max(measured))}"


def rate_text(gbps):
    return f"{gbps:g} Gb/s" if gbps >= 1 else f"{gbps * 1000:g} Mb/s"


def loss_text(loss):
    return f"{100 * loss:g} % loss" if loss else "no loss"


def path_text(path):
    return (f"{rate_text(path.rate_gbps)}, MTU {path.mtu}, {loss_text(path.loss)} "
            f"(the link carries {path.limit_gbps():.3f} Gb/s of payload over TCP)")
