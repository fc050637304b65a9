"""Checks and figures of the plugin on a GPU; run.py is the entry point, docs/gpu.md the manual.

In: a machine with CUDA and SGLang. Out: findings and figures. The test suite runs none of it.
"""
