"""Scheduler process, scheduler thread: hook bodies that copy what was drafted and verified out of SGLang.

In: tensors of a forward, still on the device. Out: messages to the courier process, which is started and replaced from
here by a thread of its own; that thread also sends what waits, and the scheduler's status, as the swapper's does before
a canary.
Only SGLang's hooks and replica.py use it. Nothing in the scheduler thread waits for the courier, and no exception
leaves a hook.
"""
