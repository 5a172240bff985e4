"""Moves the controls of a living picture, one after the other."""

import re
from collections.abc import Mapping

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
    (source,) = re.findall(r'src="(data:image/png;base64,[^"]+)"', living._shown.value)
    return source
