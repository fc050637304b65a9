"""Scheduler process of every rank, scheduler thread: how many tokens to draft at the next decode step.

In: accepted drafts and the time steps took. Out: a number of draft steps, through SGLang's adaptive policy.
Only SGLang's hooks and swaps call it; any thread may read the status. A fault in here ends pacing and costs no token.
"""
