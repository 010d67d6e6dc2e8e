"""What `look` reads from a folder."""

import io
from pathlib import Path

from batchsieve.looking.sources import open_folder, read_pictures
from pipeline.run_log import RunLog
from tests.fixtures.images import gray_16_bit, one_tree, write_folder


def test_dark_16_bit_images_print_one_line(tmp_path: Path) -> None:
    dark = {name: gray_16_bit(seed, 1023 - seed) for seed, name in enumerate(one_tree(n=6))}
    bright = {"cat/9.png": gray_16_bit(9, 4096)}
    for number, (files, count) in enumerate([(dark, 1), (dark | bright, 0), (one_tree(n=6), 0)]):
        stream = io.StringIO()
        folder = write_folder(tmp_path / str(number), files)
        images = open_folder(folder, 8, label_column=None, log=RunLog.silent())
        read_pictures(images, lambda pixels: pixels, log=RunLog(None, stream))
        assert stream.getvalue().count("16-bit") == count
