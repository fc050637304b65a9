"""Writes a copy of a wheel without some of its files and corrects its list of files, so that pip accepts it.

    python -m paceline.benchmarks.gpu.trim WHEEL FOLDER --drop PATTERN... [--keep PATTERN...]

Patterns are matched against whole paths inside the wheel, `*` crosses folders; --keep wins over --drop.
"""

import argparse
import csv
import io
import zipfile
from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path


def main() -> None:
    """Trim one wheel."""
    parser = argparse.ArgumentParser(
        prog="python -m paceline.benchmarks.gpu.trim",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("wheel", type=Path, help="the wheel to copy")
    parser.add_argument("folder", type=Path, help="where the copy goes, under the same name")
    parser.add_argument("--drop", nargs="+", default=[], help="patterns of files to leave out")
    parser.add_argument("--keep", nargs="+", default=[], help="patterns of files to keep all the same")
    options = parser.parse_args()
    out = options.folder / options.wheel.name
    trim(options.wheel, out, options.drop, options.keep)
    print(f"{out.name}: {options.wheel.stat().st_size:,} -> {out.stat().st_size:,} bytes")


def trim(wheel: Path, out: Path, drop: list[str], keep: list[str]) -> None:
    """Copy `wheel` to `out` without what is dropped and not kept."""

    def stays(name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in keep) or not any(fnmatchcase(name, p) for p in drop)

    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as copy:
        for entry in source.infolist():
            if stays(entry.filename):
                data = source.read(entry)
                copy.writestr(entry, _trimmed_record(data, stays) if _is_record(entry.filename) else data)


def _is_record(name: str) -> bool:
    return name.endswith(".dist-info/RECORD")


def _trimmed_record(record: bytes, stays: Callable[[str], bool]) -> bytes:
    rows = [row for row in csv.reader(io.StringIO(record.decode())) if row and stays(row[0])]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


if __name__ == "__main__":
    main()
