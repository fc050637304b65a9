"""Measurements: one module per question, each run with `python -m paceline.benchmarks.<name>`.

In: options of the command line. Out: tables, plots and figures with machine, seeds and spread.
The product never imports it.
"""
