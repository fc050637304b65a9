"""Training that only the learning bench does: baselines, drafted chains, and what ablations vary.

In: a draft, recorded traces and a BenchPlan. Out: what production's trainer reports.
Production never imports it.
"""
