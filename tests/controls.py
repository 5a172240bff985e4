"""Moves the controls of a living picture, one after the other."""

from collections.abc import Mapping

from zerolab.widgets import Living


def each_changes_what_is_shown(living: Living, others: Mapping[str, object]) -> None:
    """Give every control another value; each time the picture and the numbers beside it must be others."""
    assert set(others) == set(living.controls)
    for name, value in others.items():
        numbers, picture = living._text.value, living._image.value
        living.controls[name].value = value
        assert living._text.value != numbers, f"the numbers do not follow {name}"
        assert living._image.value != picture, f"the picture does not follow {name}"
