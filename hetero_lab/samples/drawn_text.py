"""Drawn pages and lines of text, for the networks that orient and read text.

The font is the one built into Pillow, so that every machine draws the same; texts, sizes, shades
and blemishes follow from a seed.
"""

from __future__ import annotations

import math
import random
import string

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from hetero_lab.samples.pictures import OF_SAMPLES, pixels_of

_WORDS = """
the of and to in is that for it as was with be by on not he his but at are this have from or had
an they which one you were all her she there would their we him been has when who will no more if
out so up said what its about than into them can only other time new some could these two may
first then do any like my now over such our man me even most made after also did many off before
must well back through years where much your way down should because long each just state people
those too mr how little good world make very year
"""
WORDS = tuple(_WORDS.split())
PAGE_SIZE = (448, 600)  # pixels, upright: 3 to 4, about as a sheet of paper
PAGE_ANGLES = (0, 90, 180, 270)  # degrees, in the order of the classes


def page_example(seed: str) -> tuple[dict[str, np.ndarray], int]:
    """Return a drawn page and the number of quarter turns, clockwise, that it was rotated by.

    The seed determines text, sizes, shades and rotation. The page is ``{"x": [1, 3, 224, 224]
    f32}``, normalised as ImageNet is.
    """
    rng = random.Random(seed)
    label = rng.randrange(len(PAGE_ANGLES))
    page = draw_page(rng).rotate(-PAGE_ANGLES[label], expand=True)
    return {"x": pixels_of(page, (1, 3, 224, 224), OF_SAMPLES["page_orientation"])}, label


def direction_example(seed: str) -> tuple[dict[str, np.ndarray], int]:
    """Return a drawn line, ``{"x": [1, 3, 48, 192] f32}``, and 1 if it is upside down, else 0."""
    rng = random.Random(seed)
    label = rng.randrange(2)
    line = _draw_line(rng, _text(rng), sizes=(15, 27), blur=0.7, noise=14, tilt=2)
    return {"x": _line_pixels(line.rotate(180 * label), 192)}, label


def line_example(seed: str) -> tuple[dict[str, np.ndarray], str]:
    """Return a drawn line, ``{"x": [1, 3, 48, 320] f32}``, and its text."""
    rng = random.Random(seed)
    text = _text(rng)
    line = _draw_line(rng, text, sizes=(18, 32), blur=0.5, noise=8, tilt=1)
    return {"x": _line_pixels(line, 320)}, text


def read_ctc(scores: np.ndarray, characters: tuple[str, ...]) -> str:
    """Decode CTC scores: the best class of each step, without repetitions and blanks.

    ``scores`` are [1, steps, classes]: class 0 is the blank, then come ``characters`` and the
    space.
    """
    best = scores[0].argmax(axis=1)
    labels = best[np.concatenate([[True], best[1:] != best[:-1]]) & (best != 0)]
    return "".join(characters[i - 1] if i <= len(characters) else " " for i in labels)


def _text(rng: random.Random) -> str:
    """Return two or three words, or six to ten letters and digits."""
    if rng.random() < 0.5:
        return " ".join(rng.choice(WORDS) for _ in range(rng.randint(2, 3)))
    return "".join(rng.choices(string.ascii_letters + string.digits, k=rng.randint(6, 10)))


def draw_page(rng: random.Random) -> Image.Image:
    """Draw a heading and paragraphs of dark words on a light page."""
    height = PAGE_SIZE[1]
    page = Image.new("L", PAGE_SIZE, rng.randint(235, 255))
    draw = ImageDraw.Draw(page)
    left, top = rng.randint(20, 45), rng.randint(20, 40)
    ink = rng.randint(0, 60)
    draw.text((left, top), _sentence(rng, 4), ink, font_size=rng.randint(18, 26))
    top += 45
    size = rng.randint(11, 15)
    while top < height - 40:
        for _ in range(rng.randint(2, 6)):
            draw.text((left, top), _sentence(rng, rng.randint(7, 9)), ink, font_size=size)
            top += round(size * 1.5)
        top += size
    return page


def _sentence(rng: random.Random, n_words: int) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(n_words)).capitalize()


def _draw_line(
    rng: random.Random, text: str, sizes: tuple[int, int], blur: float, noise: float, tilt: float
) -> Image.Image:
    """Draw a line, dark on light or light on dark, a little tilted, blurred and noisy."""
    font = ImageFont.load_default(rng.randint(*sizes))
    left, top, right, bottom = font.getbbox(text)
    margin = rng.randint(2, 6)
    paper = rng.randint(150, 255)
    ink = rng.randint(0, paper - 80)
    if rng.random() < 0.3:
        paper, ink = 255 - paper, 255 - ink
    size = (math.ceil(right - left) + 2 * margin, math.ceil(bottom - top) + 2 * margin)
    line = Image.new("L", size, paper)
    ImageDraw.Draw(line).text((margin - left, margin - top), text, font=font, fill=ink)
    line = line.rotate(
        rng.uniform(-tilt, tilt), Image.Resampling.BICUBIC, expand=True, fillcolor=paper
    )
    line = line.filter(ImageFilter.GaussianBlur(rng.uniform(0, blur)))
    amplitude = rng.uniform(0, noise)
    grain = np.random.default_rng(rng.getrandbits(32)).normal(0, amplitude, line.size[::-1])
    pixels = np.clip(np.asarray(line, np.float32) + grain, 0, 255)
    return Image.fromarray(pixels.astype(np.uint8))


def _line_pixels(line: Image.Image, width: int) -> np.ndarray:
    """Return a line as PP-OCR expects it: 48 pixels high, from -1 to 1, zeros on the right."""
    return pixels_of(line, (1, 3, 48, width), OF_SAMPLES["ppocr_cls"])
