"""Command-line process, main thread: starts SGLang's own server for `paceline serve` and passes signals on to it.

In: SGLang's flags. Out: one server process group, gone when the command returns. `check` runs in a child process of
`paceline doctor`.
Only the command line and the demo use it.
"""
