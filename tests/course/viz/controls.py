"""Moves the controls of a living picture, and compares colours."""

import re
from collections.abc import Mapping

from matplotlib.colors import to_rgb

from zerolab.course.widgets import Living


def each_changes_what_is_shown(living: Living, others: Mapping[str, object]) -> None:
    """Give every control another value; each time the picture and the numbers beside it must be others."""
    assert set(others) == set(living.controls)
    for name, value in others.items():
        numbers, picture = living.picture.table, pixels(living)
        living.controls[name].value = value
        assert not living.refusal
        assert living.picture.table != numbers, f"the numbers do not follow {name}"
        assert pixels(living) != picture, f"the picture does not follow {name}"


def pixels(living: Living) -> str:
    """The picture that is shown, as the address of its bytes."""
    (source,) = re.findall(r'src="(data:image/png;base64,[^"]+)"', living.shown.value)
    return source


def luminance(colour: object) -> float:
    """Relative luminance as in WCAG 2.1, from 0 (black) to 1 (white)."""
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in to_rgb(colour)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: object, other: object) -> float:
    """Of two colours, from 1 to 21."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)
