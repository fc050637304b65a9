"""SGLang's scheduler, every rank: the clock of its decode steps, which always runs; pacing takes its costs from it.

In: hooks around forwards and their results. Out: how long steps take and what they commit, and what the scheduler's
time goes to. Capture or not makes no difference to it.
"""
