"""GRPO with TRL on the small target, its rollouts from a speculating server whose draft learns along: `make rollouts`.

In: a number of steps. Out: a table, one row per step, and a file if asked for. Starts a private Redis, SGLang server
and Celery worker and leaves nothing running. Needs the extra `rl`.
"""
