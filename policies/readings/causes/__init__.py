"""Why serving is faster or slower than before: two periods of counters in, contributions that add up out.

tokens per second = running x accept length / step time x decode share, of one replica. Contributions are differences of
logarithms. `parts.py` lists what may contribute; `explanation.py` puts numbers, evidence and rank together.
"""
