"""The protocols of other frameworks as a stranger would write them: baidu-std
(brpc), trpc and bolt (SOFARPC), from their documented byte layouts and the
protobuf package, with nothing of flare's own code. Clients and servers.

    with foreign_wire.connect(foreign_wire.Trpc, port) as peer:
      reply = peer.call(Message(id=1, service="a.B", method="C", body=b"..."))
"""

import dataclasses
import socket
import struct
import threading

import harness
from foreign_protos import brpc, trpc

SERVICE = "example.protobuf_echo.EchoService"

@dataclasses.dataclass
class Message:
  """A request or a response. `meta` is the protocol's own: the received one,
  or fields to add to the sent one."""
  id: int = 1
  service: str = SERVICE
  method: str = "Echo"
  body: bytes = b""
  attachment: bytes = b""
  timeout: int = 0
  one_way: bool = False
  status: int = 0
  text: str = ""
  meta: object = None


class BaiduStd:
  scheme = "baidu-std"
  HEADER = struct.Struct(">4sII")

  @classmethod
  def frame(cls, meta, body=b"", attachment=b""):
    packed = meta if isinstance(meta, bytes) else meta.SerializeToString()
    size = len(packed) + len(body) + len(attachment)
    return (cls.HEADER.pack(b"PRPC", size, len(packed)) + packed + body +
            attachment)

  @classmethod
  def _encode(cls, message, meta):
    meta.correlation_id = message.id
    if message.attachment:
      meta.attachment_size = len(message.attachment)
    if message.meta is not None:
      meta.MergeFrom(message.meta)
    return cls.frame(meta, message.body, message.attachment)

  @classmethod
  def request(cls, message):
    meta = brpc().RpcMeta(compress_type=0)
    meta.request.service_name = message.service
    meta.request.method_name = message.method
    if message.timeout:
      meta.request.timeout_ms = message.timeout
    return cls._encode(message, meta)

  @classmethod
  def response(cls, message):
    # With the zeros that brpc writes out.
    meta = brpc().RpcMeta(compress_type=0, content_type=0, checksum_type=0,
                          checksum_value=b"")
    meta.response.error_code = message.status
    if message.text:
      meta.response.error_text = message.text
    return cls._encode(message, meta)

  @classmethod
  def read(cls, peer):
    header = peer.take(cls.HEADER.size)
    if header is None:
      return None
    magic, size, meta_size = cls.HEADER.unpack(header)
    assert magic == b"PRPC", header
    meta = brpc().RpcMeta.FromString(peer.must_take(meta_size))
    body = peer.must_take(size - meta_size - meta.attachment_size)
    return Message(
        id=meta.correlation_id, service=meta.request.service_name,
        method=meta.request.method_name, body=body,
        attachment=peer.must_take(meta.attachment_size),
        timeout=meta.request.timeout_ms, status=meta.response.error_code,
        text=meta.response.error_text, meta=meta)


class Trpc:
  scheme = "trpc"
  HEADER = struct.Struct(">HBBIHIBB")
  MAGIC = 0x0930
  VERSION = 0
  CLOSE = 4

  @classmethod
  def frame(cls, meta, body=b"", attachment=b"", kind=0, stream_kind=0,
            stream_id=0):
    packed = meta if isinstance(meta, bytes) else meta.SerializeToString()
    size = cls.HEADER.size + len(packed) + len(body) + len(attachment)
    return (cls.HEADER.pack(cls.MAGIC, kind, stream_kind, size, len(packed),
                            stream_id, cls.VERSION, 0) + packed + body +
            attachment)

  @classmethod
  def _encode(cls, message, meta):
    meta.request_id = message.id
    meta.call_type = int(message.one_way)
    meta.attachment_size = len(message.attachment)
    if message.meta is not None:
      meta.MergeFrom(message.meta)
    return cls.frame(meta, message.body, message.attachment,
                     stream_id=message.id if cls.VERSION else 0)

  @classmethod
  def request(cls, message):
    return cls._encode(message, trpc().RequestProtocol(
        timeout=message.timeout, caller=b"trpc.test.stranger.client",
        callee=b"trpc.test.flare.echo",
        func=f"/{message.service}/{message.method}".encode()))

  @classmethod
  def response(cls, message):
    return cls._encode(message, trpc().ResponseProtocol(
        ret=message.status, error_msg=message.text.encode()))

  @classmethod
  def read(cls, peer):
    """A request or a response, by whether it has a `func`: the numbers of the
    fields differ. A frame of a stream has its kind as `status`, its stream as
    `id` and no meta."""
    header = peer.take(cls.HEADER.size)
    if header is None:
      return None
    (magic, kind, stream_kind, size, meta_size, stream_id, version,
     reserved) = cls.HEADER.unpack(header)
    assert (magic, version, reserved) == (cls.MAGIC, cls.VERSION, 0), header
    packed = peer.must_take(meta_size)
    rest = peer.must_take(size - cls.HEADER.size - meta_size)
    if kind == 1:
      return Message(id=stream_id, status=stream_kind, body=rest)
    meta = (trpc().RequestProtocol if peer.is_server else
            trpc().ResponseProtocol).FromString(packed)
    end = len(rest) - meta.attachment_size
    message = Message(id=stream_id if cls.VERSION else meta.request_id,
                      body=rest[:end], attachment=rest[end:],
                      one_way=meta.call_type == 1, meta=meta)
    if peer.is_server:
      _, message.service, message.method = meta.func.decode().split("/")
      message.timeout = meta.timeout
    else:
      message.status = meta.ret or meta.func_ret
      message.text = meta.error_msg.decode()
    return message


class TrpcByHeader(Trpc):
  """As multiplexing clients of tRPC-Go: the header is of version 1, and has
  the call's number, by which alone they know whose a reply is."""
  VERSION = 1


class Bolt:
  scheme = "bolt"
  REQUEST = struct.Struct(">BBHBIBiHHI")
  RESPONSE = struct.Struct(">BBHBIBHHHI")
  HEARTBEAT, CALL, REPLY, GO_AWAY = 0, 1, 2, 100
  CODEC = 11
  REQUEST_CLASS = b"com.alipay.sofa.rpc.core.request.SofaRequest"
  RESPONSE_CLASS = b"com.alipay.sofa.rpc.core.response.SofaResponse"

  @staticmethod
  def pack_map(pairs):
    return b"".join(struct.pack(">I", len(text)) + text
                    for pair in pairs.items()
                    for text in map(str.encode, pair))

  @staticmethod
  def unpack_map(data):
    texts = []
    while data:
      size, = struct.unpack_from(">I", data)
      texts.append(data[4:4 + size].decode())
      data = data[4 + size:]
    return dict(zip(texts[::2], texts[1::2], strict=True))

  @classmethod
  def request(cls, message, command=CALL):
    call = command == cls.CALL
    name = cls.REQUEST_CLASS if call else b""
    headers = cls.pack_map({
        "service": f"{message.service}:1.0",
        "sofa_head_target_service": f"{message.service}:1.0",
        "sofa_head_method_name": message.method,
        "sofa_head_target_app": "stranger", **(message.meta or {})
    }) if call else b""
    return cls.REQUEST.pack(
        1, 2 if message.one_way else 1, command, 1, message.id, cls.CODEC,
        message.timeout or -1, len(name), len(headers), len(message.body)
    ) + name + headers + message.body

  @classmethod
  def response(cls, message, command=REPLY):
    reply = command == cls.REPLY
    name = cls.RESPONSE_CLASS if reply else b""
    headers = cls.pack_map(message.meta or {})
    return cls.RESPONSE.pack(
        1, 0, command, 1, message.id, cls.CODEC, message.status, len(name),
        len(headers), len(message.body)) + name + headers + message.body

  @classmethod
  def read(cls, peer):
    start = peer.take(2)
    if start is None:
      return None
    assert start[0] == 1, start
    layout = cls.REQUEST if start[1] else cls.RESPONSE
    (_, kind, command, _, correlation_id, codec, third, name_size,
     headers_size, size) = layout.unpack(
         start + peer.must_take(layout.size - 2))
    assert codec == cls.CODEC
    name = peer.must_take(name_size)
    headers = cls.unpack_map(peer.must_take(headers_size))
    message = Message(id=correlation_id, body=peer.must_take(size),
                      one_way=kind == 2, meta={"command": command, **headers})
    if kind:
      message.timeout = third
      service = headers.get("service") or headers.get(
          "sofa_head_target_service", ":1.0")
      message.service, version = service.split(":")
      message.method = headers.get("sofa_head_method_name", "")
      assert version == "1.0" and name == cls.REQUEST_CLASS
    else:
      message.status = third
      message.text = headers.get("Rpc-Error-Reason", "")
      if headers.get("sofa_head_response_error") == "true":
        message.text, message.body = message.body.decode(), b""
    return message


ALL = (BaiduStd, Trpc, Bolt)


class Peer:
  """A blocking connection with somebody who speaks `codec`."""

  def __init__(self, codec, connected, is_server):
    self.codec = codec
    self.is_server = is_server
    self.socket = connected
    self.socket.settimeout(harness.PATIENCE_S)
    self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    self._input = self.socket.makefile("rb")

  def __enter__(self):
    return self

  def __exit__(self, *unused):
    self.close()

  def close(self):
    self._input.close()
    self.socket.close()

  def send(self, data):
    self.socket.sendall(data)

  def receive(self):
    """The next message; None at the end of the connection."""
    return self.codec.read(self)

  def call(self, message):
    self.send(self.codec.request(message))
    return self.receive()

  def must_take(self, size):
    data = self.take(size)
    assert data is not None, "the connection ended inside a frame"
    return data

  def take(self, size):
    try:
      data = self._input.read(size)
    except ConnectionResetError:
      return None
    return data if len(data) == size else None


def connect(codec, port):
  return Peer(codec, socket.create_connection(("127.0.0.1", port)), False)


class Server:
  """Passes each request that comes to `answer(peer, message)`, which sends
  as it likes. One thread per connection."""

  def __init__(self, codec, answer):
    self._codec = codec
    self._answer = answer
    self._listener = socket.create_server(("127.0.0.1", 0))
    self.port = self._listener.getsockname()[1]
    self.address = f"{codec.scheme}://127.0.0.1:{self.port}"
    self.mistakes = []
    threading.Thread(target=self._accept, daemon=True).start()

  def close(self):
    self._listener.shutdown(socket.SHUT_RDWR)
    self._listener.close()

  def _accept(self):
    while True:
      try:
        connected, _ = self._listener.accept()
      except OSError:
        return
      threading.Thread(target=self._serve, args=(connected,),
                       daemon=True).start()

  def _serve(self, connected):
    with Peer(self._codec, connected, True) as peer:
      try:
        while (message := peer.receive()) is not None:
          self._answer(peer, message)
      except OSError:
        pass  # It went away.
      except Exception as mistake:  # pylint: disable=broad-except
        self.mistakes.append(repr(mistake))
