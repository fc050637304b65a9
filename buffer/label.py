"""What a client may call a request's domain or route, such as "code" or "chat/de".

Labels are kept on the version board and in MLflow, with counts beside them: they are plain names, and no content.
"""

import re
from typing import Final

#: A client chooses the label, and every trace of the request carries it.
MAX_LABEL_CHARS: Final = 128

#: What is_label asks for, for people.
LABEL_RULE: Final = f"1 to {MAX_LABEL_CHARS} letters, digits, '.', '_', '-' or '/', the first a letter or digit"

_LABEL = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._/-]{{0,{MAX_LABEL_CHARS - 1}}}")


def is_label(value: object) -> bool:
    """Whether it is text of LABEL_RULE, its letters and digits ASCII."""
    return isinstance(value, str) and len(value) <= MAX_LABEL_CHARS and _LABEL.fullmatch(value) is not None
