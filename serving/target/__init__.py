"""Scheduler process, scheduler thread, on every rank: follows the target while a trainer changes its weights.

In: SGLang's weight updates. Out: which version's weights judge now, updates that reach the target alone, and what of
them the replica reports.
Installed before capture and swaps and without them: an update must not reach the draft where either is off.
"""
