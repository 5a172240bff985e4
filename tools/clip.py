"""Draws the README's clip: `python tools/clip.py`. The run is in lockstep, so it is always the same film."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from PIL import Image

from zerolab.course.viz.drawing import words
from zerolab.course.viz.looks import MEMORY
from zerolab.course.viz.slices import computing, flow_of, sending
from zerolab.course.viz.stages import draw_moment

CLIP = Path(__file__).resolve().parent.parent / "docs" / "step.gif"
STAGES, SECONDS_A_FRAME, MILLIS_A_FRAME, DPI, COLOURS = (1, 3), 30e-6, 130, 100, 96
ABOVE = 38
"""Dots for what is said above the drawing."""


def frames(stage: int) -> list[Image.Image]:
    """A step at a stage, a picture every SECONDS_A_FRAME of its virtual clock."""
    flow = flow_of(stage)
    found = []
    for time in np.arange(0.0, flow.seconds, SECONDS_A_FRAME):
        drawing = draw_moment(flow, float(time))
        drawing.text(6, -22, f"A step at ZeRO stage {stage}", words(13, "start", bold=True))
        drawing.text(6, -6, f"{computing(flow, time)}; {sending(flow, time)}", words(12, "start"))
        figure = drawing.figure(above=ABOVE)
        figure.set_dpi(DPI)
        figure.set_facecolor("white")
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        found.append(Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB"))
    return found


def main() -> None:
    film = [frame for stage in STAGES for frame in frames(stage)]
    # One palette for all: its colours are those of frames from both steps, and those of all kinds of memory.
    some = film[:: len(film) // 6]
    all_of_them = Image.fromarray(np.concatenate([np.asarray(frame) for frame in some]))
    kinds = [round(255 * part) for look in MEMORY.values() for part in to_rgb(look.colour)]
    found = all_of_them.quantize(COLOURS - len(MEMORY), Image.Quantize.MEDIANCUT).getpalette() or []
    palette = Image.new("P", (1, 1))
    palette.putpalette(found[: 3 * (COLOURS - len(MEMORY))] + kinds)
    pictures = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in film]
    pictures[0].save(
        CLIP, save_all=True, append_images=pictures[1:], duration=MILLIS_A_FRAME, loop=0, optimize=True
    )  # fmt: skip
    print(f"{CLIP}: {len(film)} frames, {CLIP.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
