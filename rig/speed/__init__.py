"""Servers of one target that run at the same time and are asked the same, to be compared in tokens per second.

In: a target, drafts, prompts. Out: what each server answered, and when every token came.
"""
