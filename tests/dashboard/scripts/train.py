"""Logs metrics and saves artifacts, as a training script does."""

import struct
import sys
import zlib
from pathlib import Path

import shanty


def png(width: int, height: int) -> bytes:
    rows = b"".join(b"\0" + bytes((0, y * 255 // height, 160)) * width for y in range(height))

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


rate = float(sys.argv[2])
for step in range(300):
    loss = 2.0 / (1 + rate * step)
    shanty.log(step=step, loss=loss, accuracy=1 - loss / 2)
print("trained", flush=True)
folder = Path(shanty.artifacts())
(folder / "notes.txt").write_text("a note <script>alert(1)</script>\n")
(folder / "table.csv").write_text(
    "epoch,loss\n" + "".join(f"{i},{2 / (i + 1):.3f}\n" for i in range(40))
)
(folder / "plots").mkdir()
(folder / "plots" / "loss.png").write_bytes(png(120, 80))
