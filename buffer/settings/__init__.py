"""Every setting of paceline, declared once.

In: environment variables named PACELINE_*, and a TOML file. Out: checked values that know where they came from.
Who may enter: everybody. `table.py` declares the settings; a config object names the ones it holds with `setting`.
"""
