"""Options of the scripts that simulate on recorded traces, and where they look for them by default."""

import argparse
from pathlib import Path


def add_trace_options(parser: argparse.ArgumentParser) -> None:
    """Add --data-dir, --traces and --out."""
    parser.add_argument("--data-dir", type=Path, default=Path(".paceline"), help="where recorded traces are looked for")
    parser.add_argument("--traces", type=Path, help="a file of benchmarks/learning/record.py; default: any of data-dir")
    parser.add_argument("--out", type=Path, help="a Markdown file")


def trace_file(options: argparse.Namespace) -> Path | None:
    """The file asked for, else one of greedy requests with five drafts; None when none was recorded."""
    named: Path | None = options.traces
    return named or next(iter(sorted(options.data_dir.glob("learning/*/t0-k5.traces"))), None)
