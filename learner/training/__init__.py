"""Learner process: optimiser steps on a draft.

In: traces and a plan. Out: changed weights of one draft, and what a learning round measured.
Only the loop and the benches enter.
"""
