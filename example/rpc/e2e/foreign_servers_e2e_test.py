#!/usr/bin/python3
"""press and client in front of strangers who speak baidu-std, trpc and bolt:
servers written from the protocols' documents, well-behaved and hostile."""

import gzip
import json
import threading
import zlib

import harness
import wire
from foreign_protos import brpc, trpc
from foreign_wire import ALL, SERVICE, BaiduStd, Bolt, Message, Server, Trpc

STATUS_TIMEOUT = 3
STATUS_OVERLOADED = 11
STATUS_MALFORMED = 102
TIMEOUT_MS = 20_000  # The machine may be busy.


def reply_to(request, **fields):
  echo, _ = wire.messages()
  body = echo.EchoRequest.FromString(request.body).body
  return Message(**{
      "id": request.id, "attachment": request.attachment,
      "body": echo.EchoResponse(body=body).SerializeToString(), **fields})


def echo(peer, request):
  peer.send(peer.codec.response(reply_to(request)))


class ClientTest(harness.TestCase):

  def serve(self, codec, answer=echo):
    server = Server(codec, answer)
    self.addCleanup(server.close)
    return server

  def press(self, server, *arguments, requests=100):
    """Puts load on `server`; returns the figures."""
    report = self.path("report.json")
    _, log = self.run_to_end(
        "press", f"--server_addr={server.address}", f"--requests={requests}",
        "--max_pending=10", f"--timeout={TIMEOUT_MS}", "--verify",
        "--body=hello", f"--json={report}", *arguments)
    self.assertEqual(server.mistakes, [], log)
    with open(report) as f:
      figures = json.load(f)
    self.assertEqual(figures["requests"], requests, log)
    return figures

  def check_all_succeed(self, server, *arguments, **options):
    figures = self.press(server, *arguments, **options)
    self.assertEqual(figures["failures_by_status"], {})

  def check_one_in_ten(self, codec, bad_reply, status=STATUS_MALFORMED):
    """Every tenth reply is `bad_reply(request)`: its call fails, the others
    don't."""
    count = iter(range(1000))
    lock = threading.Lock()

    def answer(peer, request):
      with lock:
        turn = next(count) % 10
      peer.send(bad_reply(request) if turn == 3 else
                codec.response(reply_to(request)))

    figures = self.press(self.serve(codec, answer))
    self.assertEqual(figures["failures_by_status"], {str(status): 10})

  def call(self, server):
    """Makes one call; returns (exit status, log)."""
    return self.run_to_end(
        "client", f"--server_addr={server.address}", "--body=hello",
        f"--flare_rpc_client_default_rpc_timeout_ms={TIMEOUT_MS}")


class AnyProtocol(ClientTest):

  def test_calls_say_what_the_documents_want(self):
    for codec in ALL:
      with self.subTest(codec.scheme):
        seen = []

        def answer(peer, request):
          seen.append(request)
          echo(peer, request)

        self.check_all_succeed(self.serve(codec, answer))
        for request in seen:
          self.assertEqual((request.service, request.method, request.one_way),
                           (SERVICE, "Echo", False))
          self.assertEqual(request.body, wire.echo_body("hello"))
          self.assertGreater(request.id, 0)
          self.assertTrue(0 < request.timeout <= TIMEOUT_MS)

  def test_replies_in_another_order_and_in_pieces(self):
    for codec in ALL:
      with self.subTest(codec.scheme):
        waiting = []

        def answer(peer, request):
          waiting.append(request)
          if len(waiting) < 10:
            return
          data = b"".join(peer.codec.response(reply_to(late))
                          for late in reversed(waiting))
          waiting.clear()
          for at in range(0, len(data), 7):
            peer.send(data[at:at + 7])

        self.check_all_succeed(
            self.serve(codec, answer),
            "--flare_rpc_client_max_connections_per_server=1",
            "--flare_concurrency_hint=1")

  def test_attachments(self):
    for codec in (BaiduStd, Trpc):
      with self.subTest(codec.scheme):
        sizes = set()

        def answer(peer, request):
          sizes.add(len(request.attachment))
          echo(peer, request)

        self.check_all_succeed(self.serve(codec, answer),
                               "--attachment_size=100000", requests=20)
        self.assertEqual(sizes, {100000})

  def test_compression(self):
    for codec, name, number, module in (
        (BaiduStd, "gzip", 2, gzip), (BaiduStd, "zlib", 3, zlib),
        (Trpc, "gzip", 1, gzip), (Trpc, "zlib", 3, zlib)):
      with self.subTest(codec.scheme, name=name):

        def answer(peer, request):
          meta = request.meta
          said = (meta.compress_type if codec is BaiduStd else
                  meta.content_encoding)
          assert said == number, said
          request.body = module.decompress(request.body)
          reply = reply_to(request)
          reply.body = module.compress(reply.body)
          reply.meta = (
              brpc().RpcMeta(compress_type=number) if codec is BaiduStd else
              trpc().ResponseProtocol(content_encoding=number))
          peer.send(peer.codec.response(reply))

        self.check_all_succeed(self.serve(codec, answer),
                               f"--compression_algorithm={name}", requests=20)

  def test_failures_arrive_with_their_texts(self):
    for codec, status, meta, expected in (
        (BaiduStd, 1008, None, 1008), (BaiduStd, -1, None, -1),
        (Trpc, 22, None, STATUS_OVERLOADED), (Trpc, 24, None, STATUS_TIMEOUT),
        (Trpc, 0, trpc().ResponseProtocol(func_ret=4711), 4711),
        (Trpc, 0, trpc().ResponseProtocol(func_ret=-3), -3),
        (Bolt, 7, {"Rpc-Error-Reason": "as it goes"}, STATUS_TIMEOUT),
        (Bolt, 2, {"Rpc-Error-Code": "4711",
                   "Rpc-Error-Reason": "as it goes"}, 4711)):
      with self.subTest(codec.scheme, status=status):
        server = self.serve(codec, lambda peer, request: peer.send(
            codec.response(Message(id=request.id, status=status,
                                   text="as it goes", meta=meta))))
        exit_status, log = self.call(server)
        self.assertEqual(exit_status, 1, log)
        self.assertRegex(log, rf"{expected}\b.*as it goes")

  def test_oversized_replies_fail_their_calls_only(self):
    for codec in ALL:
      with self.subTest(codec.scheme):
        self.check_one_in_ten(codec, lambda request: codec.response(
            Message(id=request.id, body=bytes(5 << 20))))

  def test_bodies_that_are_no_message_fail_their_calls_only(self):
    for codec in ALL:
      with self.subTest(codec.scheme):
        self.check_one_in_ten(codec, lambda request: codec.response(
            Message(id=request.id, body=b"\x12\xff\xff")))

  def test_replies_to_nobody_are_passed_over(self):
    for codec in ALL:
      with self.subTest(codec.scheme):

        def answer(peer, request):
          peer.send(codec.response(Message(id=4_000_000_000 + request.id)))
          echo(peer, request)
          echo(peer, request)

        self.check_all_succeed(self.serve(codec, answer))

  def test_garbage_ends_the_connection_but_not_the_client(self):
    for codec, *frames in (
        (BaiduStd, b"HTTP/1.1 200 OK\r\n\r\n", b"PRPC\0\0\0\1\0\0\0\2\0\0",
         b"PRPC\x7f\xff\xff\xff\x7f\xff\xff\xff", BaiduStd.frame(b""),
         b"STRM\0\0\0\2\0\0\0\2\x08\1"),
        (Trpc, b"\x09\x30\0\0\0\0\0\x0f" + bytes(8), Trpc.frame(b""),
         Trpc.frame(b"", kind=1, stream_kind=4, stream_id=1)),
        (Bolt, b"\1\3" + bytes(20), b"\2\1" + bytes(22),
         Bolt.request(Message()))):
      for data in frames:
        with self.subTest(codec.scheme, data=data[:24]):
          peers = []

          def answer(peer, request):
            # Later: a server that has never answered is left alone for a while.
            if peer in peers[:1]:
              peer.send(data)
            else:
              peers.append(peer)
              echo(peer, request)

          # With more of them the others might make all the calls that there
          # are while the first waits for its reply.
          figures = self.press(self.serve(codec, answer),
                               "--flare_rpc_client_max_connections_per_server=1")
          failures = figures["failures_by_status"]
          self.assertEqual(set(failures), {"104"})  # STATUS_IO_ERROR
          self.assertLessEqual(failures["104"], 10)


class OneProtocol(ClientTest):
  """Features that only some of them have."""

  def test_baidu_std_with_all_that_brpc_adds(self):

    def answer(peer, request):
      peer.send(peer.codec.response(reply_to(request, meta=brpc().RpcMeta(
          user_fields={"a": "b"}, of_an_extension=-1))))

    self.check_all_succeed(self.serve(BaiduStd, answer))

  def test_baidu_std_with_the_checksum_of_other_bytes(self):
    self.check_one_in_ten(BaiduStd, lambda request: BaiduStd.response(reply_to(
        request, meta=brpc().RpcMeta(checksum_type=1,
                                     checksum_value=b"1234"))))

  def test_trpc_with_trans_info(self):

    def answer(peer, request):
      peer.send(peer.codec.response(reply_to(
          request, meta=trpc().ResponseProtocol(
              version=1, message_type=2, trans_info={"k": b"\xff" * 1000}))))

    self.check_all_succeed(self.serve(Trpc, answer))

  def test_bolt_errors_inside_of_success(self):
    server = self.serve(Bolt, lambda peer, request: peer.send(Bolt.response(
        Message(id=request.id, body=b"as it goes",
                meta={"sofa_head_response_error": "true"}))))
    exit_status, log = self.call(server)
    self.assertEqual(exit_status, 1, log)
    self.assertIn("as it goes", log)

  def test_bolt_heartbeats_between_replies(self):

    def answer(peer, request):
      peer.send(Bolt.request(Message(id=request.id), Bolt.HEARTBEAT))
      echo(peer, request)
      peer.send(Bolt.response(Message(id=request.id), Bolt.HEARTBEAT))

    self.check_all_succeed(self.serve(Bolt, answer))

  def test_bolt_go_away_loses_no_call(self):
    peers = []

    def answer(peer, request):
      if peer not in peers:
        peers.append(peer)
        peer.send(Bolt.request(Message(), Bolt.GO_AWAY))
      echo(peer, request)

    self.check_all_succeed(self.serve(Bolt, answer))
    self.assertGreater(len(peers), 1)


if __name__ == "__main__":
  harness.main()
