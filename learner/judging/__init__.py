"""Learner process: measures on recorded traffic how many drafts would be accepted, and raises the learner's alarms.

In: drafts and traces. Out: accepted lengths on requests not yet learnt, calibration, alarms.
The learning loop, its state and the benchmarks import it; it knows neither training plans nor MLflow.
"""
