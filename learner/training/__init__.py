"""Learner process: optimiser steps on a draft.

In: traces and a plan. Out: changed weights of one draft, and what the training measured.
The learning loop, replay (for its batches) and the benchmarks import it; it knows neither buffer nor board.
"""
