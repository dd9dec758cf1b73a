"""TCP ports for servers that tests start.

The ports are outside the range that the kernel hands out to clients, so that no
connection takes one before the server has it. Nor do tests that run at the same
time: they see that it is claimed.
"""

import random
import socket

# One for each port that was given out, until this process ends.
_claims = []


def free_port():
    """A port that nobody listens on."""
    return free_ports(1)


def free_ports(count):
    """The first of `count` successive ports that nobody listens on. It is a
    multiple of `count`."""
    while True:
        first = random.randrange(20000 // count + 1, 32000 // count) * count
        claims = []
        try:
            for port in range(first, first + count):
                # The name is gone when the socket is.
                claims.append(socket.socket(socket.AF_UNIX))
                claims[-1].bind(f'\0flare_e2e_port_{port}')
                with socket.socket() as probe:
                    probe.bind(('0.0.0.0', port))
        except OSError:
            for claim in claims:
                claim.close()
            continue
        _claims.extend(claims)
        return first
