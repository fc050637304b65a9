"""Rows, models, measurements and table of `paceline.benchmarks.compatibility`."""
