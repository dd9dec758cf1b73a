"""Few requests, repeated, each time when all have been answered.

A server's work for them is then equal each time, so that its costs can be
compared with those of another day: cost_per_request --lockstep.
"""

import socket
import struct
import subprocess

AT_ONCE = 10  # Requests in one write.
# The first requests of a connection may say more than others.
CALLS_AHEAD = 16
QUIET_S = 0.3  # Nothing more is coming.
PATIENCE_S = 60
HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HTTP2_FRAME_HEADER = 9


class Broken(Exception):
  """A peer that breaks the protocol; its text is for people."""


class Requests:
  """A request that follows itself on a connection.

  In most protocols its bytes are all there is. An HTTP/2 connection has a begin
  that the later requests refer to, and each request has a number of its own.
  """

  def __init__(self, ahead, request):
    is_http2 = ahead.startswith(HTTP2_PREFACE)
    # Behind it the windows are open for as long as we'd like.
    self.ahead = ahead + window_update(1 << 30) if is_http2 else b""
    self.request = request
    self.numbers = list(stream_numbers(request)) if is_http2 else []
    if not all(number for _, number in self.numbers):
      raise Broken("a request with frames that belong to no stream")

  def take(self, count):
    """The bytes of the next ones."""
    batch = bytearray()
    for _ in range(count):
      at = len(batch)
      batch += self.request
      for i, (offset, number) in enumerate(self.numbers):
        struct.pack_into(">I", batch, at + offset, number)
        self.numbers[i] = offset, number + 2
    return bytes(batch)


def stream_numbers(frames):
  """(where it is, number) of each frame."""
  at = 0
  while at < len(frames):
    yield at + 5, int.from_bytes(frames[at + 5:at + 9], "big")
    at += HTTP2_FRAME_HEADER + int.from_bytes(frames[at:at + 3], "big")


def window_update(size):
  return struct.pack(">HBBBII", 0, 4, 8, 0, 0, size)


def capture_requests(command, server_port):
  """The last of CALLS_AHEAD + 1 calls that `command(port)`, a press, makes to
  the server at `server_port`."""
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
        ahead = b""
        for _ in range(CALLS_AHEAD):
          call = read_until_quiet(connection, QUIET_S / 4)
          ahead += call
          server.sendall(call)
          connection.sendall(read_until_quiet(server, QUIET_S / 4))
        return Requests(ahead, read_until_quiet(connection))
    except socket.timeout as reason:
      raise Broken("press sends no request") from reason
    finally:
      press.kill()
      press.wait()


def read_until_quiet(connection, quiet_s=QUIET_S):
  """The input, from the first byte until nothing more comes."""
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


def replay(port, requests, count):
  """Sends `count` requests to the port, AT_ONCE in each write, and waits for the
  replies in between, which all have the length of the first. `count` is a
  multiple of AT_ONCE. One request more goes ahead, to learn that length."""
  if count % AT_ONCE:
    raise ValueError(f"{count} requests are no batches of {AT_ONCE}")
  with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as connection:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if requests.ahead:
      connection.sendall(requests.ahead)
      read_until_quiet(connection)
    connection.sendall(requests.take(1))
    awaited = len(read_until_quiet(connection)) * AT_ONCE
    connection.settimeout(PATIENCE_S)
    for _ in range(count // AT_ONCE):
      connection.sendall(requests.take(AT_ONCE))
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
