"""TCP ports for the services of a deployment, each given to one taker only."""

import random
import socket
from contextlib import suppress
from typing import Final

#: Below the ports that Linux gives to connections, and below those from which SGLang takes one for its ranks to meet at
#: (22000 to 29999). Above 10080, which browsers refuse.
_PORTS: Final = (11_000, 22_000)


def free_port() -> int:
    """A TCP port on 127.0.0.1 that is not in use, reserved until this process ends.

    No later call gets it, in whatever process: an SGLang server takes half a minute to bind its port, and until then
    somebody's Redis could. A server that sets SO_REUSEADDR, as all here do, binds it all the same, at every start.
    """
    while True:
        port = random.SystemRandom().randrange(*_PORTS)
        with suppress(OSError), socket.socket() as holder:
            holder.bind(("127.0.0.1", port))
            # After the bind: set before, it would share a port that another process has reserved in the same way.
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holder.detach()  # stays open, bound and not listening, until the process ends
            return port
