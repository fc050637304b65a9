"""Every setting of paceline, declared once.

In: environment variables named PACELINE_*, and a TOML file. Out: checked values that know where they came from.
`table.py` declares them. A config object names those it holds with `fields.setting`; every package may import this one.
"""
