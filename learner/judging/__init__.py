"""Learner process: what a draft would have got accepted on recorded traffic, and what is wrong with it.

In: drafts and traces. Out: accepted lengths on held-out requests, calibration, alarms.
Only the loop and delivery enter.
"""
