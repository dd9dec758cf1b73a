#!/usr/bin/python3
"""The server in front of strangers who speak baidu-std, trpc and bolt: clients
written from the protocols' documents, well-behaved and hostile."""

import gzip
import json
import struct
import zlib

import harness
import wire
from foreign_protos import brpc, trpc
from foreign_wire import (ALL, BaiduStd, Bolt, Message, Trpc, TrpcByHeader,
                          connect)

STATUS_MALFORMED = 102
LARGE = 5 << 20  # More than the server takes in one message.


def request(**fields):
  return Message(**{"body": wire.echo_body("hello"), **fields})


class ServerTest(harness.TestCase):
  FLAGS = ()  # The server's.

  def setUp(self):
    super().setUp()
    self.server = self.start_server(*self.FLAGS)
    self.peers = []

  def tearDown(self):
    # First, since a server that stops waits a moment for its clients to leave.
    for peer in self.peers:
      peer.close()
    self.assertTrue(wire.echo_works(self.server.port), self.server)
    self.assertEqual(self.server.stop(), 0, self.server)

  def connect(self, codec):
    self.peers.append(connect(codec, self.server.port))
    return self.peers[-1]

  def check_echo(self, reply, correlation_id=1, text="hello", attachment=b""):
    self.assertIsNotNone(reply, self.server)
    self.assertEqual((reply.status, reply.text), (0, ""))
    self.assertEqual(wire.messages()[0].EchoResponse.FromString(
        reply.body).body, text)
    self.assertEqual((reply.id, reply.attachment),
                     (correlation_id, attachment))

  def check_closed(self, peer, *data):
    for piece in data:
      peer.send(piece)
    self.assertIsNone(peer.receive())


class AnyProtocol(ServerTest):
  """Tests for each of them."""

  def test_documented_bytes(self):
    hello = "0a0568656c6c6f"
    for codec, sent, received in (
        (BaiduStd, "50525043000000260000001f0a1b0a136578616d706c652e4563686f"
                   "5365727669636512044563686f2001" + hello, "50525043"),
        (Trpc, "0930000000" "00007f0068000000000000180120e8072a1b747270632e74"
               "6573742e68656c6c6f776f726c642e636c69656e74321c747270632e7465"
               "73742e68656c6c6f776f726c642e477265657465723a262f747270632e74"
               "6573742e68656c6c6f776f726c642e477265657465722f53617948656c6c"
               "6f" + hello, "09300000"),
        (Bolt, "0101000001000000070" "1ffffffff0000000000000000",
         "0100000001000000070100000000000000000000")):
      with self.subTest(codec.scheme):
        peer = self.connect(codec)
        peer.send(bytes.fromhex(sent))
        reply = peer.take(len(received) // 2)
        self.assertEqual(reply.hex(), received)

  def test_byte_by_byte_and_all_at_once(self):
    for codec in (*ALL, TrpcByHeader):
      with self.subTest(codec.__name__):
        peer = self.connect(codec)
        for byte in codec.request(request(id=9)):
          peer.send(bytes([byte]))
        self.check_echo(peer.receive(), 9)
        peer.send(b"".join(
            codec.request(request(id=i, body=wire.echo_body(str(i))))
            for i in range(1, 301)))
        replies = {reply.id: reply
                   for reply in (peer.receive() for _ in range(300))}
        for i in range(1, 301):
          self.check_echo(replies[i], i, str(i))

  def test_attachments(self):
    attachment = bytes(range(256)) * 1000
    for codec in (BaiduStd, Trpc):
      with self.subTest(codec.scheme):
        reply = self.connect(codec).call(request(attachment=attachment))
        self.check_echo(reply, attachment=attachment)
        reply = self.connect(codec).call(Message(attachment=b"alone"))
        self.check_echo(reply, text="", attachment=b"alone")

  def test_failures_are_answered_and_the_connection_goes_on(self):
    for codec, no_method, no_service, malformed in (
        (BaiduStd, 1002, 1001, STATUS_MALFORMED), (Trpc, 12, 11, 1),
        (TrpcByHeader, 12, 11, 1), (Bolt, 6, 6, 18)):
      with self.subTest(codec.__name__):
        peer = self.connect(codec)
        for bad, status in (
            (request(id=1, method="NoSuch"), no_method),
            (request(id=2, service="no.such.Service"), no_service),
            (request(id=3, body=b"\x0a\xff\xff"), malformed),
            (request(id=4, body=bytes(LARGE)), malformed)):
          reply = peer.call(bad)
          self.assertEqual((reply.id, reply.status, reply.body),
                           (bad.id, status, b""))
          self.assertTrue(reply.text)
        self.check_echo(peer.call(request(id=5)), 5)

  def test_garbage_closes_the_connection(self):
    for codec, *frames in (
        (BaiduStd, b"PRPX\0\0\0\x05\0\0\0\0hello",
         b"PRPC\0\0\0\1\0\0\0\2\0\0", b"PRPC\x7f\xff\xff\xff\x7f\xff\xff\xff",
         BaiduStd.frame(b"\xff\xff"), b"STRM\0\0\0\1\0\0\0\1\x08"),
        (Trpc, b"\x09\x31" + bytes(14), b"\x09\x30\0\0\0\0\0\x0f" + bytes(8),
         b"\x09\x30\2\0\0\0\0\x10" + bytes(8),
         b"\x09\x30\0\0\0\0\0\x10\xff\xff" + bytes(6), Trpc.frame(b"\xff")),
        (Bolt, b"\1\3" + bytes(20), b"\2\1" + bytes(22),
         Bolt.response(Message()))):
      for data in frames:
        with self.subTest(codec.scheme, data=data[:24]):
          self.check_closed(self.connect(codec), data)
          # After a call was answered as well.
          peer = self.connect(codec)
          self.check_echo(peer.call(request()))
          self.check_closed(peer, data)

  def test_json_of_later_callers(self):
    body = b'{"body": "hello", "later": {"x": [1]}, "work": 0}'
    for codec, meta in ((BaiduStd, brpc().RpcMeta(content_type=2)),
                        (Trpc, trpc().RequestProtocol(content_type=2))):
      with self.subTest(codec.scheme):
        reply = self.connect(codec).call(Message(body=body, meta=meta))
        self.assertEqual((reply.status, reply.text), (0, ""))
        self.assertEqual(json.loads(reply.body), {"body": "hello"})

  def test_one_way_calls_are_made_and_never_answered(self):
    for before, codec in (0, Trpc), (2, Bolt):
      with self.subTest(codec.scheme):
        peer = self.connect(codec)
        for method in ("Echo", "NoSuch"):
          peer.send(codec.request(request(id=7, one_way=True, method=method)))
        self.check_echo(peer.call(request(id=8)), 8)
        harness.wait_until(lambda: self.requests_in_log() >= before + 2,
                           "both calls in the log")

  def requests_in_log(self):
    return sum(int(line.split()[-5]) for line in self.server.log().splitlines()
               if line.endswith("in 1 second."))

  def test_compressed_bodies(self):
    text = "z" * 10000
    body = wire.echo_body(text)
    for codec, number, packed in (
        (BaiduStd, 2, gzip.compress(body)), (BaiduStd, 3, zlib.compress(body)),
        (Trpc, 1, gzip.compress(body)), (Trpc, 3, zlib.compress(body))):
      with self.subTest(codec.scheme, number=number):
        meta = (brpc().RpcMeta(compress_type=number) if codec is BaiduStd else
                trpc().RequestProtocol(content_encoding=number))
        peer = self.connect(codec)
        self.check_echo(peer.call(Message(body=packed, meta=meta)), text=text)
        reply = peer.call(Message(body=body, meta=meta))
        self.assertIn(reply.status, (STATUS_MALFORMED, 1))


class BaiduStdServer(ServerTest):

  def call(self, **meta):
    return self.connect(BaiduStd).call(request(meta=brpc().RpcMeta(**meta)))

  def test_what_brpc_adds(self):
    peer = self.connect(BaiduStd)
    meta = brpc().RpcMeta(
        compress_type=0, content_type=0, checksum_type=0, checksum_value=b"",
        authentication_data=b"who", user_fields={"a": "b"}, of_an_extension=-1)
    meta.request.log_id = -1
    meta.request.trace_id = 2**63 - 1
    meta.request.request_id = "x-1"
    for correlation_id in (0, 1, -1, 2**63 - 1, -2**63):
      self.check_echo(peer.call(request(
          id=correlation_id, meta=meta, timeout=5000)), correlation_id)

  def test_what_is_refused(self):
    for meta in ({"compress_type": 4}, {"compress_type": -1},
                 {"content_type": 1}, {"attachment_size": 1 << 30},
                 {"attachment_size": -1},
                 {"stream_settings": {"stream_id": 1}}):
      with self.subTest(meta=meta):
        reply = self.call(**meta)
        self.assertNotEqual((reply.id, reply.status), (1, 0))
        self.assertTrue(reply.text)

  def test_json_and_text(self):
    for number, body in ((2, b'{"body": "hello"}'), (3, b'body: "hello"')):
      reply = self.connect(BaiduStd).call(Message(
          body=body, meta=brpc().RpcMeta(content_type=number)))
      self.assertEqual((reply.status, reply.meta.content_type, reply.body),
                       (0, number, body.replace(b'{"body": "', b'{"body":"')))

  def test_services_by_their_short_name(self):
    self.check_echo(self.connect(BaiduStd).call(
        request(service="EchoService")))

  def test_checksums(self):
    def masked(crc):
      rotated = (crc >> 15 | crc << 17) & 0xFFFFFFFF
      return struct.pack(">I", (rotated + 0xA282EAD8) & 0xFFFFFFFF)

    self.assertEqual(wire.crc32c(b"123456789"), 0xE3069283)
    body = wire.echo_body("hello")
    for both in (False, True):
      right = masked(wire.crc32c(body + b"aaaa" * both))
      for value, status in ((right, 0), (right[::-1], STATUS_MALFORMED),
                            (b"", STATUS_MALFORMED)):
        with self.subTest(both=both, value=value):
          reply = self.connect(BaiduStd).call(request(
              attachment=b"aaaa", meta=brpc().RpcMeta(
                  checksum_type=1, checksum_value=value,
                  checksum_with_attachment=both)))
          self.assertEqual(reply.status, status)


class TrpcServer(ServerTest):

  def test_what_a_reply_repeats(self):
    meta = trpc().RequestProtocol(
        version=3, message_type=5, trans_info={"trpc-dyeing-key": b"\xff",
                                               "k": b""})
    reply = self.connect(Trpc).call(request(id=2**32 - 1, meta=meta,
                                            timeout=5000))
    self.check_echo(reply, 2**32 - 1)
    self.assertEqual(reply.meta.version, 3)
    self.assertEqual(reply.meta.message_type, 5)
    self.assertEqual(dict(reply.meta.trans_info),
                     {"trpc-dyeing-key": b"\xff", "k": b""})

  def test_json(self):
    reply = self.connect(Trpc).call(Message(
        body=b'{"body":"hello"}', meta=trpc().RequestProtocol(content_type=2)))
    self.assertEqual(json.loads(reply.body), {"body": "hello"})
    self.assertEqual(reply.meta.content_type, 2)
    # Unset fields are included.
    reply = self.connect(Trpc).call(Message(
        body=b"{}", meta=trpc().RequestProtocol(content_type=2)))
    self.assertEqual(json.loads(reply.body), {"body": ""})

  def test_what_is_refused(self):
    for meta in ({"content_type": 1}, {"content_encoding": 4},
                 {"call_type": 2}, {"attachment_size": 2**32 - 1},
                 {"func": b"no/slash/first"}):
      with self.subTest(meta=meta):
        reply = self.connect(Trpc).call(request(
            meta=trpc().RequestProtocol(**meta)))
        self.assertIn(reply.status, (1, 12))
        self.assertTrue(reply.text)

  def test_streams_are_reset_once(self):
    peer = self.connect(Trpc)
    # There is no answer to an unknown stream's close or feedback.
    for kind in (1, 3, 2, Trpc.CLOSE):
      peer.send(Trpc.frame(b"", b"xyz", kind=1, stream_kind=kind,
                           stream_id=10 + kind))
    # Frames of different streams are seen to at the same time.
    replies = sorted((peer.receive(), peer.receive()),
                     key=lambda reply: reply.id)
    for reply, stream in zip(replies, (11, 12)):
      self.assertEqual((reply.id, reply.status), (stream, Trpc.CLOSE))
      close = trpc().StreamCloseMeta.FromString(reply.body)
      self.assertEqual(close.close_type, 1)
      self.assertNotEqual(close.ret, 0)
    self.check_echo(peer.call(request()))


class BoltServer(ServerTest):

  def test_heartbeats_between_calls(self):
    peer = self.connect(Bolt)
    for i in range(1, 4):
      reply = self.heartbeat(peer, i)
      self.assertEqual((reply.id, reply.status, reply.meta["command"]),
                       (i, 0, Bolt.HEARTBEAT))
      self.check_echo(peer.call(request(id=i)), i)

  def heartbeat(self, peer, correlation_id):
    peer.send(Bolt.request(Message(id=correlation_id), Bolt.HEARTBEAT))
    return peer.receive()

  def test_go_away_is_no_reason_to_stop(self):
    peer = self.connect(Bolt)
    peer.send(Bolt.request(Message(), Bolt.GO_AWAY))
    self.check_echo(peer.call(request()))

  def test_sofas_clients_see_why_a_call_failed(self):
    # Those of Java are known by "protocol", those of node by the lack of it.
    for meta, status in (({"protocol": "bolt", "app": "java"}, 0), ({}, 6)):
      with self.subTest(meta=meta):
        reply = self.connect(Bolt).call(request(method="NoSuch", meta=meta))
        self.assertEqual((reply.status, reply.text, reply.meta["command"],
                          reply.meta["sofa_head_response_error"],
                          reply.meta["Rpc-Error-Code"]),
                         (status,
                          "Method [example.protobuf_echo.EchoService.NoSuch] "
                          "is not implemented.", Bolt.REPLY, "true", "10"))

  def test_services_by_the_name_that_meshes_use(self):
    for meta in ({"sofa_head_target_service": ""},
                 {"sofa_head_target_service": "no.such.Service:1.0"},
                 {"service": ""}):
      with self.subTest(meta=meta):
        self.check_echo(self.connect(Bolt).call(request(meta=meta)))

  def test_what_is_refused(self):
    call = Bolt.request(request())
    # Refusals in Hessian, codec 1, have the status 0.
    for offset, value, status in ((9, 1, 0), (9, 2, 9), (3, 77, 9),
                                  (22, 0x78, 6), (22 + 44 + 3, 0xFF, 18)):
      with self.subTest(offset=offset):
        peer = self.connect(Bolt)
        peer.send(call[:offset] + bytes([value]) + call[offset + 1:])
        start = peer.must_take(20)
        self.assertEqual(struct.unpack_from(">H", start, 10), (status,))


class OverloadedServer(ServerTest):
  FLAGS = ("--flare_rpc_server_max_ongoing_calls=1",
           "--flare_rpc_protocol_buffers_status_code_for_overloaded=2004")

  def test_each_protocol_is_told_in_its_way(self):
    body = wire.messages()[0].EchoRequest(
        body="hello", work=wire.messages()[0].SLEEP_FIBER,
        work_us=200_000).SerializeToString()
    for codec, status in ((BaiduStd, 2004), (Trpc, 22), (Bolt, 4)):
      with self.subTest(codec.scheme):
        peer = self.connect(codec)
        peer.send(b"".join(codec.request(request(id=i, body=body))
                           for i in range(1, 21)))
        replies = [peer.receive() for _ in range(20)]
        self.assertEqual({reply.status for reply in replies}, {0, status})
        self.assertEqual({reply.text for reply in replies if reply.status},
                         {"Server overloaded."})
        if codec is Trpc:
          self.assertEqual({reply.meta.func_ret for reply in replies}, {0})


if __name__ == "__main__":
  harness.main()
