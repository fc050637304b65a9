"""The command line of a benchmark."""

import argparse


def benchmark_parser(name: str, description: str | None) -> argparse.ArgumentParser:
    """A parser for `python -m paceline.benchmarks.<name>`; its help prints `description` with its own line breaks."""
    return argparse.ArgumentParser(
        prog=f"python -m paceline.benchmarks.{name}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
