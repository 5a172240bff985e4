"""Pictures that move, with a kernel or without one: `scene.py` says what one is, `scenes.py` has them, and `player.js`
plays them."""

from zerolab.course.living.scene import Scene, marked, player, record, style
from zerolab.course.living.scenes import SCENES

__all__ = ["SCENES", "Scene", "marked", "player", "record", "style"]
