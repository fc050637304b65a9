"""Commands of `paceline` that answer a question. They read and never write.

In: the board of one speculator in Redis. Out: tables, sentences or JSON on stdout, and an exit code: 0 well, 1
something is wrong, 2 cannot tell. cli.py adds them to the other commands; what they need is imported when one runs.
"""
