"""A whole paceline on one machine: what demo, tests and benchmarks start, wait for and send traffic to.

In: folders, ports and flags. Out: running services (Redis, SGLang, a Celery worker), prompts, answers, figures.
Only demo, tests and benchmarks import it; the product never does.
"""
