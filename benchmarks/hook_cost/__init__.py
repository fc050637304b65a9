"""What the hooks of capture ask of a GPU and of SGLang's scheduler thread; `python -m paceline.benchmarks.hooks`."""
