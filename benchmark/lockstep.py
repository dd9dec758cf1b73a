"""The same few requests again and again, each time when all have been answered.

What a server does for them is then the same each time, so that its costs can be
compared with those of another day: cost_per_request --lockstep.
"""

import socket
import subprocess

AT_ONCE = 10  # Requests in one write.
# The first requests of a connection may say more than others.
CALLS_AHEAD = 16
QUIET_S = 0.3  # Nothing more is coming.
PATIENCE_S = 60


class Broken(Exception):
  """A peer that doesn't do what it must; its text is for people."""


def capture_request(command, server_port):
  """The bytes of the last of CALLS_AHEAD + 1 calls that `command(port)`, a
  press, makes to the server at `server_port`."""
  with socket.create_server(("127.0.0.1", 0)) as listener:
    listener.settimeout(PATIENCE_S)
    press = subprocess.Popen(command(listener.getsockname()[1]),
                             stdin=subprocess.DEVNULL,
                             stdout=subprocess.DEVNULL,
                             stderr=subprocess.DEVNULL)
    try:
      connection, _ = listener.accept()
      with connection, socket.create_connection(
          ("127.0.0.1", server_port), PATIENCE_S) as server:
        for _ in range(CALLS_AHEAD):
          server.sendall(read_until_quiet(connection, QUIET_S / 4))
          connection.sendall(read_until_quiet(server, QUIET_S / 4))
        return read_until_quiet(connection)
    except socket.timeout as reason:
      raise Broken("press sends no request") from reason
    finally:
      press.kill()
      press.wait()


def read_until_quiet(connection, quiet_s=QUIET_S):
  """What comes, from the first byte until nothing more does."""
  data = b""
  connection.settimeout(PATIENCE_S)
  while True:
    try:
      part = connection.recv(65536)
    except socket.timeout:
      break
    if not part:
      break
    data += part
    connection.settimeout(quiet_s)
  if not data:
    raise Broken("nothing came, not even late")
  return data


def replay(port, request, count):
  """Sends `request` to the port `count` times, AT_ONCE in each write, and waits
  for the replies in between, which all have the length of the first. `count` is
  a multiple of AT_ONCE. One request more goes ahead, to learn that length."""
  if count % AT_ONCE:
    raise ValueError(f"{count} requests are no batches of {AT_ONCE}")
  batch = request * AT_ONCE
  with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as connection:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.sendall(request)
    awaited = len(read_until_quiet(connection)) * AT_ONCE
    connection.settimeout(PATIENCE_S)
    for _ in range(count // AT_ONCE):
      connection.sendall(batch)
      missing = awaited
      while missing > 0:
        try:
          part = connection.recv(missing)
        except OSError as reason:  # Late, or reset.
          raise Broken(f"{missing} of {awaited} bytes of replies didn't come: "
                       f"{reason}") from reason
        if not part:
          raise Broken(f"{missing} of {awaited} bytes of replies didn't come")
        missing -= len(part)
