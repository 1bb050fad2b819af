"""Faces and other patches of pictures, as BlazeFace sees them.

They are scikit-image's ``lfw_subset``: 100 faces and 100 patches without a face, 25 x 25 pixels,
grey. The network looks for faces in pictures, so each stands in the middle of a black one.
"""

from __future__ import annotations

import functools

import numpy as np

from hetero_lab.errors import SampleError

N_FACES = 100
PICTURE, PATCH = 128, 48
# MediaPipe's graphs for this network take a face for one from here on.
LEAST_SCORE = 0.75


def n_faces_and_others() -> int:
    """Return the number of patches; the first 100 are faces."""
    return len(_patches())


def face_example(index: int) -> tuple[dict[str, np.ndarray], bool]:
    """Return one patch, ``{"input": [1, 128, 128, 3] f32}`` from -1 to 1, and if it is a face."""
    patch = _patches()[index]
    picture = np.zeros((PICTURE, PICTURE), np.float32)
    begin = (PICTURE - PATCH) // 2
    picture[begin : begin + PATCH, begin : begin + PATCH] = _enlarge(patch, PATCH)
    pixels = np.repeat((picture * 2 - 1)[np.newaxis, :, :, np.newaxis], 3, axis=3)
    return {"input": pixels}, index < N_FACES


def is_face(logits: np.ndarray) -> bool:
    """Return whether one of the anchors' scores, given as logits, is high enough."""
    return bool(logits.max() > np.log(LEAST_SCORE / (1 - LEAST_SCORE)))


def _enlarge(patch: np.ndarray, size: int) -> np.ndarray:
    """Return a square patch enlarged, linear between the centres of its pixels."""
    n = len(patch)
    at = np.clip((np.arange(size) + 0.5) * n / size - 0.5, 0, n - 1)
    low = np.minimum(at.astype(int), n - 2)
    share = at - low
    rows = np.zeros((size, n))
    rows[np.arange(size), low] = 1 - share
    rows[np.arange(size), low + 1] = share
    return (rows @ patch @ rows.T).astype(np.float32)


@functools.lru_cache(maxsize=1)
def _patches() -> np.ndarray:
    try:
        from skimage.data import lfw_subset  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise SampleError(
            "The data set 'blazeface' is scikit-image's lfw_subset. "
            "Install it: python -m pip install scikit-image"
        ) from error
    patches = np.asarray(lfw_subset(), np.float64)
    patches.flags.writeable = False
    return patches
