"""Pictures as inputs of image classifiers: files → arrays, prepared as the model expects.

A picture is untrusted: only formats that Pillow reads by itself are tried, and a huge one is
refused by its header, before it is decoded.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import PIL
from PIL import Image, ImageOps

from hetero_lab.errors import ArgumentError, InputError, shorten

_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
DTYPES = {"f32": np.float32, "f16": np.float16, "f64": np.float64, "u8": np.uint8}
_DEEP_MODES = ("I", "I;16", "I;16B", "I;16L", "I;16N")  # 16 bits a pixel


@dataclass(frozen=True)
class Preprocessing:
    """How the pixels of a picture, from 0 to 255, become the values of an input.

    The input is ``(pixel - mean) / scale``: one number each, or one per channel in the order of the
    model's channels, the first of which is blue if ``bgr``. The ``fit`` ``"stretch"`` resizes the
    picture to the input; ``"average"`` does so by averaging the area that each pixel covers;
    ``"crop"`` resizes the shorter side to 8/7 of the input's and takes the middle; ``"line"`` keeps
    the aspect ratio and fills the right with zeros.
    """

    mean: tuple[float, ...] = (0.0,)
    scale: tuple[float, ...] = (1.0,)
    bgr: bool = False
    fit: str = "stretch"

    def __post_init__(self) -> None:
        for name, values in (("mean", self.mean), ("scale", self.scale)):
            if len(values) not in (1, 3) or not all(math.isfinite(value) for value in values):
                raise ArgumentError(
                    f"{name}= is one number, or three (one per channel), not "
                    f"{', '.join(map(str, values)) or 'none'}."
                )
        if not all(self.scale):
            raise ArgumentError("scale= divides the pixels, so it cannot be 0.")


# The samples that classify pictures, and how their training data was prepared.
OF_SAMPLES = {
    # Bright ink on a dark ground from 0 to 16: how many of 4x4 dots were inked (UCI, 1998).
    "digits_inception": Preprocessing(scale=(255 / 16,), fit="average"),
    "ppocr_cls": Preprocessing(mean=(127.5,), scale=(127.5,), fit="line"),
    "page_orientation": Preprocessing(
        mean=tuple(255 * m for m in (0.485, 0.456, 0.406)),  # of ImageNet
        scale=tuple(255 * d for d in (0.229, 0.224, 0.225)),
        fit="crop",
    ),
    "efficientnet_lite0": Preprocessing(mean=(127.0,), scale=(128.0,), fit="crop"),
}


def sample_preprocessing(sample: str) -> Preprocessing:
    """Return the preprocessing of a sample; for any other model, RGB pixels unchanged."""
    return OF_SAMPLES.get(sample, Preprocessing())


def sides(shape: Sequence[int]) -> tuple[int, int, int, bool]:
    """Return height, width, channels of an input of pictures, and whether channels are last."""
    _, first, second, third = shape
    return (second, third, first, False) if first in (1, 3) else (first, second, third, True)


def read_picture(
    path: str | os.PathLike[str],
    shape: Sequence[int],
    how: Preprocessing,
    element_type: str = "f32",
) -> np.ndarray:
    """Read a PNG, JPEG, BMP, GIF (its first frame), WebP, TIFF or PPM file as the input of a model.

    The input has batch 1, and 1 or 3 channels first or last. Raises InputError if the file is
    missing, is not a picture, is broken or is too large.
    """
    return pixels_of(_open(path), shape, how, element_type)


def pixels_of(
    image: Image.Image, shape: Sequence[int], how: Preprocessing, element_type: str = "f32"
) -> np.ndarray:
    """Return a decoded picture as values of an input's shape and element type."""
    height, width, n_channels, is_last = sides(shape)
    image = image.convert("L" if n_channels == 1 else "RGB")
    fitted = _fit(image, width, height, how.fit)
    pixels = np.asarray(fitted, np.float32).reshape(height, fitted.width, n_channels)
    if how.bgr:
        pixels = pixels[..., ::-1]
    values = (pixels - np.array(how.mean, np.float32)) / np.array(how.scale, np.float32)
    if element_type == "u8":
        values = np.clip(np.rint(values), 0, 255)
    whole = np.zeros((height, width, n_channels), DTYPES[element_type])
    whole[:, : values.shape[1]] = values
    return np.ascontiguousarray(whole if is_last else whole.transpose(2, 0, 1))[None]


def _fit(image: Image.Image, width: int, height: int, fit: str) -> Image.Image:
    new_width, box = width, None
    if fit == "line":  # one that is wider than the input is squeezed, as PP-OCR does it
        new_width = min(width, max(1, math.ceil(height * image.width / image.height)))
    elif fit == "crop":
        # The result is that of resizing the new_width and then cropping it, but a very thin picture
        # would grow huge in between.
        scale = max(width / image.width, height / image.height) * 8 / 7
        left, right = _middle(image.width, width, scale)
        top, bottom = _middle(image.height, height, scale)
        box = (left, top, right, bottom)
    return image.resize((new_width, height), _FILTERS[fit], box)


def _middle(whole: int, side: int, scale: float) -> tuple[float, float]:
    """Return where the middle of a side begins and ends that is ``side`` long after scaling."""
    resized = round(whole * scale)
    begin = (resized - side) // 2
    return begin * whole / resized, (begin + side) * whole / resized


_FILTERS = {
    "stretch": Image.Resampling.BILINEAR,
    "average": Image.Resampling.BOX,
    "crop": Image.Resampling.LANCZOS,
    "line": Image.Resampling.BILINEAR,
}


def _open(path: str | os.PathLike[str]) -> Image.Image:
    """Return a decoded picture, upright, of 8 bits a channel."""
    name = shorten(os.fspath(path))
    if not os.path.isfile(path):
        there = "is not a file" if os.path.exists(path) else "does not exist"
        raise InputError(f"The picture {name} {there}.")
    try:
        with warnings.catch_warnings():
            # Of Pillow's warnings, that of a broken EXIF block does no harm.
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path, formats=_FORMATS) as image:
                return _upright(image)
    except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
        raise InputError(
            f"The picture {name} is too large: {error} Make it smaller: classifiers look at a few "
            "hundred pixels a side."
        ) from error
    except PIL.UnidentifiedImageError as error:
        raise InputError(
            f"{name} is not a picture in a known format: {', '.join(_FORMATS)}."
        ) from error
    except (OSError, SyntaxError, ValueError, EOFError, MemoryError) as error:
        raise InputError(f"The picture {name} cannot be decoded: {error}") from error


def _upright(image: Image.Image) -> Image.Image:
    image.load()
    if image.mode in _DEEP_MODES:
        return Image.fromarray((np.clip(np.asarray(image) / 257, 0, 255)).astype(np.uint8))
    return ImageOps.exif_transpose(image)
