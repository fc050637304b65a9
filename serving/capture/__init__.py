"""Scheduler process, scheduler thread: hook bodies that take what was drafted and verified out of SGLang.

In: tensors of a forward, still on the device. Out: messages to the courier process, which is started from here.
Only SGLang's hooks enter. Nothing in here waits, and no exception leaves it.
"""
