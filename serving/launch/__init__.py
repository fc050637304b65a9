"""Command-line process: starts SGLang's own server for `paceline serve` and passes signals on to it.

In: SGLang's flags. Out: one server process group, gone when the command returns.
Only the command line and the demo enter.
"""
