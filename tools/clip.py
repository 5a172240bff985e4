"""Draws the README's clip: `python tools/clip.py`. The run is in lockstep, so it is always the same film."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from PIL import Image

from zerolab.course.viz.picture import Picture
from zerolab.course.viz.slices import computing, flow_of, sending
from zerolab.course.viz.stages import draw_moment

DOCS = Path(__file__).resolve().parent.parent / "docs"
STAGES, MICROS_A_FRAME, MILLIS_A_FRAME, WIDTH, COLOURS = (1, 3), 30, 130, 640, 48


def frames(stage: int) -> list[Image.Image]:
    flow = flow_of(stage)
    found = []
    for time in np.arange(0.0, flow.seconds, 1e-6 * MICROS_A_FRAME):
        title = f"ZeRO stage {stage}: {computing(flow, time)}; {sending(flow, time)}"
        drawn = Image.open(io.BytesIO(Picture(draw_moment(flow, float(time), title), "").png())).convert("RGB")
        found.append(drawn.resize((WIDTH, round(WIDTH * drawn.height / drawn.width)), Image.Resampling.LANCZOS))
    return found


def main() -> None:
    film = [frame for stage in STAGES for frame in frames(stage)]
    palette = film[len(film) // 3].quantize(COLOURS, Image.Quantize.MEDIANCUT)
    pictures = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in film]
    pictures[0].save(
        DOCS / "stages.gif", save_all=True, append_images=pictures[1:], duration=MILLIS_A_FRAME, loop=0, optimize=True
    )


if __name__ == "__main__":
    main()
