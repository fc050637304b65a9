"""Checks and figures of the plugin on a GPU; run.py is the door, docs/gpu.md the manual."""
