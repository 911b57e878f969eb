"""Simulated images of cars: boxes in space, drawn from the viewpoint of a client.

The style of a car is an angle. It depends on the type (1/4 of a turn from type to type), the
model year (1/12 per year) and the viewpoint (1/50 per viewpoint), plus noise. The cosine of the
angle raises the roof. The sine makes the rear longer; at the front it makes the roof wider and
raises the lamps, and at the rear it does the opposite. So every viewpoint shows part of the
style. A type looks like the next type looked three years before, and nothing else in an image
depends on the year. Over six years every style belongs to two types, so one model for all
clients is right for at most half of the images. The best models of neighbouring clients are
similar, and those of distant clients are not.
"""

import numpy as np

TYPES = 4
FEWEST, MOST = 140, 180  # images of a client
_YEAR_TURN, _VIEW_TURN, _STYLE_NOISE = 1 / 12, 1 / 50, 0.02  # in turns
_PIXEL_NOISE = 8.0  # standard deviation, of 255
_SHARPNESS = 2  # images are drawn at this multiple of their size, then averaged

# In metres. The axes point to the front (x), the left (y) and up (z); the origin is on the
# ground below the centre of the car.
_BACK, _FRONT, _SIDE = -2.4, 2.4, 0.95
_FLOOR, _DECK, _ROOF = 0.3, 0.9, 1.5
_AXLES, _WHEEL, _TYRE = (-1.5, 1.5), 0.38, 0.25

_GLASS, _RUBBER, _GRILLE, _HUB = (62, 80, 98), (24, 24, 27), (40, 40, 46), (150, 150, 155)
_LAMP, _BRAKE, _PLATE = (250, 244, 196), (196, 26, 28), (228, 228, 218)


def draw(rng, *, year, view, image_size):
    """Draws the images of one client.

    Paint, light, pose, size, place and background are random and independent of the type.

    Args:
      year: index of the model year, from 0.
      view: 0 (front) to 4 (rear), in steps of 1/8 of a turn over the left side of the car.

    Returns:
      x [n, image_size, image_size, 3] uint8 and types y [n] from 0 to 3.
    """
    from PIL import ImageDraw

    n = int(rng.integers(FEWEST, MOST + 1))
    y = rng.permutation(np.arange(n) % TYPES)
    turns = y / TYPES + year * _YEAR_TURN + view * _VIEW_TURN
    style = 2 * np.pi * (turns + _STYLE_NOISE * rng.standard_normal(n))
    faces = _car(np.cos(style), np.sin(style), rng.uniform(45, 235, (n, 3)))
    polygons = _project(rng, faces, view, image_size * _SHARPNESS)
    x = np.empty((n, image_size, image_size, 3), np.uint8)
    for i in range(n):
        image = _street(rng, image_size * _SHARPNESS)
        canvas = ImageDraw.Draw(image)
        for places, colours, visible in polygons:
            if visible[i]:
                canvas.polygon(places[i].ravel().tolist(), fill=tuple(colours[i].tolist()))
        small = np.asarray(image.reduce(_SHARPNESS), np.float32)
        noise = _PIXEL_NOISE * rng.standard_normal(small.shape, np.float32)
        x[i] = np.clip(small + noise, 0, 255)
    return x, y


def _car(height, shift, paint):
    """The faces of n cars in painting order: pairs of corners [n, k, 3] and colours [n, 3].

    `height` and `shift` [n] are the cosine and the sine of the style. Seen from outside, the
    corners of a face are in counterclockwise order.
    """
    start = _BACK + 0.7 + 0.6 * shift  # rear end of the cabin
    behind, before = 0.62 - 0.2 * shift, 0.62 + 0.2 * shift  # half widths of the roof
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
    n = len(height)
    faces = [(_stack(face, n), colour) for face, colour in faces]
    faces += [(_pane(_stack(face, n)), _GLASS) for face in cabin[:4]]
    return [(face, np.broadcast_to(colour, (n, 3))) for face, colour in faces]


def _plate(x0, x1, z, sides=(-_SIDE, _SIDE)):
    """The corners of a horizontal rectangle, counterclockwise seen from above."""
    right, left = sides
    return [(x0, right, z), (x1, right, z), (x1, left, z), (x0, left, z)]


def _block(low, high):
    """The right, front, left, back and upper faces of a block between two plates."""
    sides = [[low[i], low[(i + 1) % 4], high[(i + 1) % 4], high[i]] for i in range(4)]
    return [*sides, high]


def _pane(face):
    """A window in the centre of a face [n, 4, 3]."""
    middle = face.mean(axis=1, keepdims=True)
    return middle + 0.8 * (face - middle)


def _disc(x, side, radius):
    """The outer face of a wheel on the left (side 1) or the right (side -1)."""
    turn = -side * np.linspace(0, 2 * np.pi, 12, endpoint=False)
    return [(x + radius * np.cos(t), side * _SIDE, _WHEEL + radius * np.sin(t)) for t in turn]


def _panel(x, y0, y1, z0, z1):
    """A rectangle on the front of the car or, if x is negative, on its back."""
    corners = [(x, y0, z0), (x, y1, z0), (x, y1, z1), (x, y0, z1)]
    return corners if x > 0 else corners[::-1]


def _stack(face, n):
    """Corners as an array [n, k, 3]; each coordinate is a number or an array [n]."""
    coordinates = [np.broadcast_to(value, n) for corner in face for value in corner]
    return np.stack(coordinates, axis=1).reshape(n, -1, 3)


def _project(rng, faces, view, pixels):
    """Lights and projects faces: pixels [n, k, 2], colours [n, 3], visibility [n]."""
    n = len(faces[0][0])
    azimuth = np.pi / 4 * view + rng.normal(0, 0.08, n)
    elevation = rng.uniform(0.1, 0.2, n)
    sun = rng.standard_normal((n, 3)) + np.array([0, 0, 1.5])
    sun /= np.linalg.norm(sun, axis=1, keepdims=True)
    brightness = rng.uniform(0.8, 1.1, (n, 1))
    # Scaled so that a car is nearly as wide as the image, and narrower from the front.
    width = 4.8 * np.abs(np.sin(np.pi / 4 * view)) + 1.9 * np.abs(np.cos(np.pi / 4 * view))
    zoom = pixels * 0.8 / max(width, 2.8) * rng.uniform(0.94, 1.06, n)[:, None]
    place = pixels * (np.array([0.5, 0.7]) + rng.uniform(-0.03, 0.03, (n, 2)))

    cos, sin = np.cos(azimuth), np.sin(azimuth)
    right = np.stack([-sin, cos, 0 * sin], axis=1)  # [n, 3]
    up = np.stack(
        [-cos * np.sin(elevation), -sin * np.sin(elevation), np.cos(elevation)], axis=1
    )
    polygons = []
    for corners, colours in faces:
        across = np.einsum("nkd,nd->nk", corners, right)
        above = np.einsum("nkd,nd->nk", corners, up)
        area = np.sum(across * (np.roll(above, -1, 1) - np.roll(above, 1, 1)), axis=1)
        normal = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
        normal /= np.linalg.norm(normal, axis=1, keepdims=True)
        lit = 0.6 + 0.4 * np.maximum(np.sum(normal * sun, axis=1, keepdims=True), 0)
        shades = np.clip(colours * lit * brightness, 0, 255).astype(int)
        places = place[:, None] + zoom[..., None] * np.stack([across, -above], axis=-1)
        polygons.append((places, shades, area > 0))
    return polygons


def _street(rng, pixels):
    """A background: sky, ground, and three rectangles as houses or trees."""
    from PIL import Image, ImageDraw

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
