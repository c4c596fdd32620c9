"""Puts screenshots of the browser tests into docs/images, with a palette: a third of the bytes, the same to the eye.

make pictures
"""

from __future__ import annotations

import struct
import sys
import zlib
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[1]
SHOTS, IMAGES = ROOT / "build" / "screenshots", ROOT / "docs" / "images"
# The picture in docs/images -> the screenshot of tests/web that it is.
PICTURES = {
    "dashboard-map": "map-by-gang",
    "dashboard-use": "map-by-use",
    "dashboard-groups": "groups",
    "dashboard-queue": "queue",
    "dashboard-why": "why",
    "dashboard-whatif": "whatif-compare",
    "dashboard-plan": "plan",
    "dashboard-time": "time",
    "dashboard-guide": "guide-plan",
    "dashboard-large": "large",
    "dashboard-light": "light",
    "dashboard-phone": "phone-map",
}
SIGNATURE = b"\x89PNG\r\n\x1a\n"


def read(path: Path) -> np.ndarray:
    """(height, width, 3) uint8 of an RGB file without interlacing, which is what Chromium writes."""
    data = path.read_bytes()
    at, body, width, height, channels = len(SIGNATURE), b"", 0, 0, 3
    while at < len(data):
        (size,) = struct.unpack(">I", data[at : at + 4])
        kind, chunk = data[at + 4 : at + 8], data[at + 8 : at + 8 + size]
        if kind == b"IHDR":
            width, height, _, colour, _, _, _ = struct.unpack(">IIBBBBB", chunk)
            channels = {2: 3, 6: 4}[colour]
        elif kind == b"IDAT":
            body += chunk
        at += 12 + size
    raw = np.frombuffer(zlib.decompress(body), np.uint8).reshape(height, 1 + width * channels)
    out = np.zeros((height, width * channels), np.int64)
    above = np.zeros(width * channels, np.int64)
    for number in range(height):
        line = raw[number, 1:].astype(np.int64)
        out[number] = above = _unfiltered(int(raw[number, 0]), line, above, channels)
    return out.reshape(height, width, channels)[:, :, :3].astype(np.uint8)


def _unfiltered(kind: int, line: np.ndarray, above: np.ndarray, step: int) -> np.ndarray:
    if kind == 0:
        return line
    if kind == 2:
        return (line + above) & 255
    done = np.zeros(len(line) + step, np.int64)  # the first `step` stand for what is left of the line
    corner = np.concatenate([np.zeros(step, np.int64), above])
    for at in range(len(line)):
        a, b, c = int(done[at]), int(above[at]), int(corner[at])
        if kind == 1:
            guess = a
        elif kind == 3:
            guess = (a + b) // 2
        else:
            p = a + b - c
            guess = min((abs(p - a), 0, a), (abs(p - b), 1, b), (abs(p - c), 2, c))[2]
        done[at + step] = (int(line[at]) + guess) & 255
    return done[step:]


def write(path: Path, pixels: np.ndarray) -> None:
    """With the 256 colours that stand for most of it."""
    bins = (pixels >> 3).astype(np.int64)
    index = (bins[:, :, 0] << 10) | (bins[:, :, 1] << 5) | bins[:, :, 2]
    count = np.bincount(index.ravel(), minlength=1 << 15)
    sums = [np.bincount(index.ravel(), pixels[:, :, channel].ravel(), 1 << 15) for channel in range(3)]
    used = np.flatnonzero(count)
    mean = np.stack([each[used] / count[used] for each in sums], axis=1)  # (colours, 3)
    kept = np.argsort(-count[used], kind="stable")[:256]
    palette = mean[kept]
    nearest = np.array([np.argmin(((palette - colour) ** 2).sum(axis=1)) for colour in mean])
    table = np.zeros(1 << 15, np.uint8)
    table[used] = nearest
    rows = table[index]
    height, width = rows.shape
    body = zlib.compress(b"".join(b"\0" + row.tobytes() for row in rows), 9)
    parts = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
        (b"PLTE", palette.round().astype(np.uint8).tobytes()),
        (b"IDAT", body),
        (b"IEND", b""),
    )
    chunks = (struct.pack(">I", len(d)) + k + d + struct.pack(">I", zlib.crc32(k + d)) for k, d in parts)
    path.write_bytes(SIGNATURE + b"".join(chunks))


def main() -> int:
    missing = [name for name in PICTURES.values() if not (SHOTS / f"{name}.png").exists()]
    if missing:
        print(f"no screenshot of {', '.join(missing)} in {SHOTS}: run the browser tests first (make pictures)")
        return 1
    for picture, shot in PICTURES.items():
        target = IMAGES / f"{picture}.png"
        write(target, read(SHOTS / f"{shot}.png"))
        print(f"{target.relative_to(ROOT)}: {target.stat().st_size >> 10} KiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
