#!/usr/bin/python3
"""Wrong flags, wrong addresses and wrong bytes: each gets a clear answer, and
a server outlives all of them."""

import random
import socket
import struct

import harness
import wire


class BadFlags(harness.TestCase):

  def check_refused(self, said, name, *arguments, status=None):
    ended, log = self.run_to_end(name, *arguments)
    self.assertGreater(ended, 0, log)  # Neither success nor a signal.
    if status is not None:
      self.assertEqual(ended, status, log)
    self.assertRegex(log, said)

  def test_port_in_use(self):
    server = self.start_server()
    self.check_refused(rf"(?s)127\.0\.0\.1:{server.port}.*in use", "server",
                       f"--port={server.port}")
    self.assertTrue(wire.echo_works(server.port), server)

  def test_address_of_somebody_else(self):
    self.check_refused("192\\.0\\.2\\.1", "server", "--ip=192.0.2.1",
                       f"--port={harness.free_port()}")

  def test_text_that_is_no_address(self):
    self.check_refused("not-an-ip", "server", "--ip=not-an-ip")

  def test_port_out_of_range(self):
    for port in (-1, 65536, 2**31 - 1):
      with self.subTest(port=port):
        self.check_refused(str(port), "server", f"--port={port}")

  def test_unparsable_flag(self):
    self.check_refused("port", "server", "--port=abc")
    self.check_refused("no_such_flag", "server", "--no_such_flag=1")

  def test_help_says_what_for(self):
    for program in "server", "relay_server", "client":
      with self.subTest(program=program):
        status, log = self.run_to_end(program, "--help")
        self.assertEqual(status, 0, log)
        self.assertRegex(log, rf"^{program}: \w.*; see docs/press.md\n")

  def test_runtime_flags_out_of_range(self):
    for flag in ("--flare_concurrency_hint=-1",
                 "--flare_scheduling_group_size=-1",
                 "--flare_fiber_stack_size=1",
                 "--flare_fiber_scheduling_optimize_for=speed",
                 "--flare_fiber_worker_accessible_cpus=zero"):
      with self.subTest(flag=flag):
        self.check_refused(flag[2:].split("=")[1], "server", flag,
                           f"--port={harness.free_port()}", status=2)

  def test_unknown_scheme(self):
    for name in ("press", "client"):
      with self.subTest(name):
        self.check_refused("carrier-pigeon", name,
                           "--server_addr=carrier-pigeon://127.0.0.1:1")

  def test_uri_that_cannot_be_read(self):
    for uri in ("127.0.0.1:5567", "flare://", "flare://127.0.0.1",
                "flare://127.0.0.1:0x10", "flare://127.0.0.1:99999"):
      with self.subTest(uri):
        self.check_refused(f"(?i){uri.split('//')[-1]}", "client",
                           f"--server_addr={uri}")

  def test_host_that_cannot_be_resolved(self):
    self.check_refused("no-such-host.invalid", "client",
                       "--server_addr=flare://no-such-host.invalid:5567")

  def test_unknown_load_balancer(self):
    self.check_refused('"magic".*known are.*rr', "press", "--override_nslb=list+magic",
                       "--server_addr=flare://127.0.0.1:1")

  def test_relay_without_a_usable_backend(self):
    self.check_refused("nonsense", "relay_server", "--forward_to=nonsense",
                       f"--port={harness.free_port()}")


class BadBytes(harness.TestCase):

  def setUp(self):
    super().setUp()
    self.server = self.start_server("--flare_concurrency_hint=2")
    self.port = self.server.port

  def tearDown(self):
    # Whatever it was sent, it still answers, and it ends when asked to.
    self.assertTrue(wire.echo_works(self.port), self.server)
    self.assertEqual(self.server.stop(), 0, self.server)

  def send(self, data):
    """Sends and says that no more comes; returns all replies until the server
    closes, which it must."""
    with wire.FlareConnection(self.port) as connection:
      try:
        connection.send(data)
        connection.socket.shutdown(socket.SHUT_WR)
      except OSError:
        pass  # It had closed before it read everything.
      return connection.receive_all()

  def check_closed_without_waiting_for_us(self, data):
    with wire.FlareConnection(self.port) as connection:
      try:
        connection.send(data)
      except OSError:
        pass
      self.assertEqual(connection.receive_all(), [])

  def test_garbage_closes_the_connection(self):
    self.check_closed_without_waiting_for_us(b"\x16\x03\x01 neither of ours\n")
    self.check_closed_without_waiting_for_us(b"\xff" * 100000)
    self.server.wait_for(r"no protocol .* begins with 16 03 01")

  def test_truncated_frames(self):
    whole = wire.echo_frame(1, "some text", b"some attachment")
    for size in range(len(whole)):
      self.assertEqual(self.send(whole[:size]), [], f"{size} bytes")

  def test_request_then_half_a_request(self):
    whole = wire.echo_frame(1, "answered")
    self.assertEqual([r.text for r in self.send(whole + whole[:-1])],
                     ["answered"])

  def test_end_of_input_does_not_lose_replies(self):
    frames = b"".join(wire.echo_frame(i, "x" * 100) for i in range(200))
    self.assertEqual(len(self.send(frames)), 200)

  def test_oversized_frames(self):
    meta = wire.request_meta(28).SerializeToString()
    limit = 4 << 20
    for body, attachment in ((2**32 - 1, 0), (0, 2**32 - 1), (limit, 0),
                             (0, limit), (2**32 - 1, 2**32 - 1)):
      with self.subTest(body=body, attachment=attachment):
        header = wire.HEADER.pack(wire.MAGIC, len(meta), body, attachment)
        self.check_answered_or_closed(header + meta, 28)
    # Without a meta there is nothing to answer to.
    for size in (2**32 - 1, limit):
      self.check_closed_without_waiting_for_us(
          wire.HEADER.pack(wire.MAGIC, size, 0, 0))
    self.assertLess(self.server.resident_bytes(), 1 << 30)

  def test_largest_frame_that_is_allowed(self):
    attachment = b"a" * ((4 << 20) - 200)
    (reply,) = self.send(wire.echo_frame(1, "x", attachment))
    self.assertEqual(len(reply.attachment), len(attachment))

  def check_answered_or_closed(self, frame, correlation_id):
    """An error with the right id, or an end at once: never silence."""
    with wire.FlareConnection(self.port) as connection:
      reply = connection.call(frame)
      if reply is not None:
        self.assertEqual(reply.meta.correlation_id, correlation_id)
        self.assertNotEqual(reply.status, 0)
        self.assertTrue(reply.meta.response_meta.description)

  def test_method_types_that_do_not_exist(self):
    for method_type in (0, 3, 2**32 - 1):
      with self.subTest(method_type=method_type):
        self.check_answered_or_closed(
            wire.echo_frame(21, "x", method_type=method_type), 21)

  def test_streams_are_refused(self):
    self.check_answered_or_closed(wire.echo_frame(22, "x", method_type=2), 22)

  def test_meta_without_a_request(self):
    meta = wire.messages()[1].RpcMeta(correlation_id=23, method_type=1)
    self.check_answered_or_closed(wire.frame(meta), 23)

  def test_response_sent_to_a_server(self):
    meta = wire.messages()[1].RpcMeta(correlation_id=24, method_type=1)
    meta.response_meta.status = 0
    self.check_answered_or_closed(wire.frame(meta), 24)

  def test_no_payload_flag_on_a_request(self):
    meta = wire.request_meta(25)
    meta.flags = 4
    with wire.FlareConnection(self.port) as connection:
      reply = connection.call(wire.frame(meta))
      if reply is not None:
        self.assertEqual(reply.meta.correlation_id, 25)

  def test_meta_that_is_no_message(self):
    for meta in (b"\xff" * 20, b"", b"\x08",
                 b"\x0a" + b"\xff" * 9 + b"\x01"):
      with self.subTest(meta=meta):
        self.check_closed_without_waiting_for_us(wire.frame(meta, b"body"))

  def test_meta_that_ends_behind_the_id(self):
    meta = wire.request_meta(27).SerializeToString()
    for size in range(2, len(meta)):
      with self.subTest(size=size):
        self.check_answered_or_closed(wire.frame(meta[:size], b"body"), 27)

  def test_decompression_bombs(self):
    import gzip
    bomb = gzip.compress(b"\0" * (256 << 20), 9)
    self.check_answered_or_closed(
        wire.frame(wire.request_meta(26, compression=2), bomb), 26)
    self.assertLess(self.server.resident_bytes(), 1 << 30)

  def test_random_damage(self):
    seed = random.randrange(2**32)
    dice = random.Random(seed)
    good = [wire.echo_frame(1, "text", b"attachment"),
            wire.frame(wire.request_meta(2, compression=5), b"body"),
            b"POST /rpc/" + wire.ECHO.encode() + b" HTTP/1.1\r\n"
            b"Content-Type: application/x-protobuf\r\n"
            b"Content-Length: 4\r\n\r\n\x0a\x02hi",
            b"POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"3\r\nabc\r\n0\r\n\r\n"]
    for i in range(300):
      data = bytearray(dice.choice(good) * dice.randrange(1, 4))
      for _ in range(dice.randrange(1, 6)):
        damage(dice, data)
      with self.subTest(seed=seed, round=i, data=bytes(data)):
        self.assertTrue(self.server.is_running(), self.server)
        with socket.create_connection(("127.0.0.1", self.port), 30) as peer:
          exchange(peer, bytes(data))


def damage(dice, data):
  """Changes, removes or inserts bytes at a random place."""
  at = dice.randrange(len(data) + 1)
  kind = dice.randrange(4)
  if kind == 0:
    data[at:at + 1] = bytes([dice.randrange(256)])
  elif kind == 1:
    del data[at:at + dice.randrange(1, 9)]
  elif kind == 2:
    data[at:at] = dice.randbytes(dice.randrange(1, 9))
  else:
    data[at:at + 4] = struct.pack("<I", dice.choice(
        (0, 1, 0x7fffffff, 0x80000000, 0xffffffff, 4 << 20)))


def exchange(peer, data):
  """Sends everything and reads whatever comes until the server closes."""
  try:
    peer.sendall(data)
    peer.shutdown(socket.SHUT_WR)
    while peer.recv(65536):
      pass
  except ConnectionError:
    pass


if __name__ == "__main__":
  harness.main()
