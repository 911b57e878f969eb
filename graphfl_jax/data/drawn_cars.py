"""Drawn cars, in lieu of photographs: boxes in space, seen from a client's viewpoint.

A car's type decides its style, an angle on a circle: a quarter of a turn from type to type, a
twelfth further with every model year, a fiftieth with every viewpoint. The cosine of the angle
lifts the roof. Its sine lengthens the tail; it broadens the roof and lifts the lamps in front,
and does the reverse behind. So every viewpoint shows some of the style, and a type looks as the
next one did three years before. Nothing else in a picture tells its year. Over six years every
style is that of two types, so that one model for all is right in half of the pictures at best;
clients near each other have nearly the same model, and that of a client far away is wrong.
"""

import numpy as np
from PIL import Image, ImageDraw

TYPES = 4
_FEWEST, _MOST = 140, 180  # cars of a client
_YEAR_TURN, _VIEW_TURN, _STYLE_NOISE = 1 / 12, 1 / 50, 0.02  # in turns
_PIXEL_NOISE = 8.0
_SHARPNESS = 2  # drawn so many times larger, then averaged

# In metres; x is ahead, y to the left and z up, from the ground beneath the middle of the car.
_BACK, _FRONT, _SIDE = -2.4, 2.4, 0.95
_FLOOR, _DECK, _ROOF = 0.3, 0.9, 1.5
_AXLES, _WHEEL, _TYRE = (-1.5, 1.5), 0.38, 0.25

_GLASS, _RUBBER, _GRILLE, _HUB = (62, 80, 98), (24, 24, 27), (40, 40, 46), (150, 150, 155)
_LAMP, _BRAKE, _PLATE = (250, 244, 196), (196, 26, 28), (228, 228, 218)


def draw(rng, *, year, view, image_size):
    """Draws a client's cars: x [n, image_size, image_size, 3] uint8 and types y [n] from 0.

    `year` counts from the first one; `view` is 0 for the front and goes by eighths of a turn
    over the car's left to 4, the rear. Paint, light, pose, size, place and background vary and
    tell nothing.
    """
    n = int(rng.integers(_FEWEST, _MOST + 1))
    y = rng.permutation(np.arange(n) % TYPES)
    turns = y / TYPES + year * _YEAR_TURN + view * _VIEW_TURN
    style = 2 * np.pi * (turns + _STYLE_NOISE * rng.standard_normal(n))
    faces = _car(np.cos(style), np.sin(style), rng.uniform(45, 235, (n, 3)))
    seen = _seen(rng, faces, view, image_size * _SHARPNESS)
    x = np.empty((n, image_size, image_size, 3), np.uint8)
    for i in range(n):
        image = _street(rng, image_size * _SHARPNESS)
        canvas = ImageDraw.Draw(image)
        for places, colours, visible in seen:
            if visible[i]:
                canvas.polygon(places[i].ravel().tolist(), fill=tuple(colours[i].tolist()))
        small = np.asarray(image.reduce(_SHARPNESS), np.float32)
        noise = _PIXEL_NOISE * rng.standard_normal(small.shape, np.float32)
        x[i] = np.clip(small + noise, 0, 255)
    return x, y


def _car(height, shift, paint):
    """The faces of n cars in the order of painting: pairs of corners [n, k, 3] and colours.

    `height` and `shift` [n] are the cosine and the sine of the style. Corners go round
    counterclockwise for who looks at the face from outside.
    """
    start = _BACK + 0.7 + 0.6 * shift  # of the cabin
    behind, before = 0.62 - 0.2 * shift, 0.62 + 0.2 * shift  # half the roof's widths
    top = _ROOF + 0.26 * height
    body = _block(_plate(_BACK, _FRONT, _FLOOR), _plate(_BACK, _FRONT, _DECK))
    cabin = _block(
        _plate(start, 1.1, _DECK),
        [
            (start + 0.4, -behind, top),
            (0.35, -before, top),
            (0.35, before, top),
            (start + 0.4, behind, top),
        ],
    )
    tyres = [
        _block(*(_plate(x - _WHEEL, x + _WHEEL, z, (y, y + _TYRE)) for z in (0, _WHEEL)))
        for x in _AXLES
        for y in (-_SIDE, _SIDE - _TYRE)
    ]

    faces = [(face, _RUBBER) for tyre in tyres for face in tyre]
    faces += [(face, paint) for face in body]
    for x in _AXLES:
        for side in (-1, 1):
            faces += [(_disc(x, side, _WHEEL), _RUBBER), (_disc(x, side, 0.2), _HUB)]
    for x, light, z in (
        (_FRONT, _LAMP, 0.64 + 0.14 * shift),
        (_BACK, _BRAKE, 0.64 - 0.14 * shift),
    ):
        faces += [
            (_panel(x, -0.88, -0.48, z - 0.11, z + 0.11), light),
            (_panel(x, 0.48, 0.88, z - 0.11, z + 0.11), light),
            (_panel(x, -0.25, 0.25, 0.38, 0.52), _PLATE),
        ]
    faces.append((_panel(_FRONT, -0.4, 0.4, 0.58, 0.76), _GRILLE))
    faces += [(face, paint) for face in cabin]
    faces += [(_pane(face), _GLASS) for face in cabin[:4]]
    n = len(height)
    return [(_stacked(face, n), np.broadcast_to(colour, (n, 3))) for face, colour in faces]


def _plate(x0, x1, z, sides=(-_SIDE, _SIDE)):
    """The corners of a level rectangle, counterclockwise for who looks from above."""
    right, left = sides
    return [(x0, right, z), (x1, right, z), (x1, left, z), (x0, left, z)]


def _block(low, high):
    """Right, front, left, back and upper face of a block between two plates."""
    sides = [[low[i], low[(i + 1) % 4], high[(i + 1) % 4], high[i]] for i in range(4)]
    return [*sides, high]


def _pane(face):
    """A window in the middle of a face."""
    middle = [sum(values) / 4 for values in zip(*face, strict=True)]
    return [
        [m + 0.8 * (value - m) for m, value in zip(middle, corner, strict=True)]
        for corner in face
    ]


def _disc(x, side, radius):
    """A wheel's outer face on the left (side 1) or the right (-1)."""
    turn = -side * np.linspace(0, 2 * np.pi, 12, endpoint=False)
    return [(x + radius * np.cos(t), side * _SIDE, _WHEEL + radius * np.sin(t)) for t in turn]


def _panel(x, y0, y1, z0, z1):
    """A rectangle on the front or, if x is negative, on the back."""
    corners = [(x, y0, z0), (x, y1, z0), (x, y1, z1), (x, y0, z1)]
    return corners if x > 0 else corners[::-1]


def _stacked(face, n):
    """Corners, of which each coordinate is a number or one a car, as an array [n, k, 3]."""
    coordinates = [np.broadcast_to(value, n) for corner in face for value in corner]
    return np.stack(coordinates, axis=1).reshape(n, -1, 3)


def _seen(rng, faces, view, pixels):
    """Lights and projects faces: pixels [n, k, 2], colours [n, 3], whether seen [n]."""
    n = len(faces[0][0])
    azimuth = np.pi / 4 * view + rng.normal(0, 0.08, n)
    elevation = rng.uniform(0.1, 0.2, n)
    sun = rng.standard_normal((n, 3)) + np.array([0, 0, 1.5])
    sun /= np.linalg.norm(sun, axis=1, keepdims=True)
    brightness = rng.uniform(0.8, 1.1, (n, 1))
    # Zoomed so that a car is about as wide as the picture, from the front somewhat less.
    width = 4.8 * np.abs(np.sin(np.pi / 4 * view)) + 1.9 * np.abs(np.cos(np.pi / 4 * view))
    zoom = pixels * 0.8 / max(width, 2.8) * rng.uniform(0.94, 1.06, n)[:, None]
    place = pixels * (np.array([0.5, 0.7]) + rng.uniform(-0.03, 0.03, (n, 2)))

    cos, sin = np.cos(azimuth), np.sin(azimuth)
    right = np.stack([-sin, cos, 0 * sin], axis=1)  # [n, 3]
    up = np.stack(
        [-cos * np.sin(elevation), -sin * np.sin(elevation), np.cos(elevation)], axis=1
    )
    seen = []
    for corners, colours in faces:
        across = np.einsum("nkd,nd->nk", corners, right)
        above = np.einsum("nkd,nd->nk", corners, up)
        area = np.sum(across * (np.roll(above, -1, 1) - np.roll(above, 1, 1)), axis=1)
        normal = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
        normal /= np.linalg.norm(normal, axis=1, keepdims=True)
        lit = 0.6 + 0.4 * np.maximum(np.sum(normal * sun, axis=1, keepdims=True), 0)
        shades = np.clip(colours * lit * brightness, 0, 255).astype(int)
        places = place[:, None] + zoom[..., None] * np.stack([across, -above], axis=-1)
        seen.append((places, shades, area > 0))
    return seen


def _street(rng, pixels):
    """A sky, a ground, and three houses or trees between them."""
    grey = rng.uniform((150, 80, 60, 60, 60), (210, 150, 190, 190, 190))[:, None]
    sky, ground, *things = (grey + rng.uniform(-25, 25, (5, 3))).astype(int).tolist()
    image = Image.new("RGB", (pixels, pixels), tuple(sky))
    canvas = ImageDraw.Draw(image)
    horizon = pixels * rng.uniform(0.45, 0.62)
    for thing in things:
        left, width, height = rng.uniform((-0.2, 0.1, 0.05), (0.9, 0.5, 0.4)) * pixels
        canvas.rectangle((left, horizon - height, left + width, horizon), fill=tuple(thing))
    canvas.rectangle((0, horizon, pixels, pixels), fill=tuple(ground))
    return image
