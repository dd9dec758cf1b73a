"""The two RPC protocols as a stranger would write them: from the documented
byte layout and the protobuf package, with nothing of flare's own code.

    from wire import FlareConnection, messages
"""

import functools
import importlib
import os
import socket
import struct
import subprocess
import sys
import tempfile

import harness

MAGIC = b"CPRF"
HEADER = struct.Struct("<4sIII")
ECHO = "example.protobuf_echo.EchoService.Echo"
SINGLE = 1

# The meta message of the flare protocol.
RPC_META_PROTO = """
syntax = "proto2";
package flare_wire;
message RpcRequestMeta {
  required string method_name = 2;
  optional uint32 request_id = 3;
  optional uint32 timeout = 4;
  optional bytes tracing_context = 5;
  optional uint64 acceptable_compression_algorithms = 6;
}
message RpcResponseMeta {
  required int32 status = 1;
  optional string description = 2;
}
message RpcMeta {
  required uint64 correlation_id = 1;
  optional RpcRequestMeta request_meta = 5;
  optional RpcResponseMeta response_meta = 6;
  required uint32 method_type = 7;  // An enum: any number is to be tried here.
  optional uint64 flags = 8;
  optional uint32 compression_algorithm = 9;
  optional bool attachment_compressed = 10;
}
"""


@functools.lru_cache(maxsize=None)
def messages():
  """The generated modules (echo, meta), made by protoc on first use."""
  folder = tempfile.mkdtemp(prefix="flare_e2e_pb_")
  with open(os.path.join(folder, "wire_meta.proto"), "w") as f:
    f.write(RPC_META_PROTO)
  with open(harness.PROTO_FILE) as source:
    with open(os.path.join(folder, "wire_echo.proto"), "w") as f:
      f.write(source.read())
  subprocess.run(
      ["protoc", f"-I{folder}", f"--python_out={folder}",
       "wire_meta.proto", "wire_echo.proto"],
      cwd=folder, check=True)
  sys.path.insert(0, folder)
  return (importlib.import_module("wire_echo_pb2"),
          importlib.import_module("wire_meta_pb2"))


def crc32c(data):
  crc = 0xFFFFFFFF
  for byte in data:
    crc ^= byte
    for _ in range(8):
      crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
  return crc ^ 0xFFFFFFFF


def frame(meta, body=b"", attachment=b""):
  packed = meta if isinstance(meta, bytes) else meta.SerializeToString()
  header = HEADER.pack(MAGIC, len(packed), len(body), len(attachment))
  return header + packed + body + attachment


def request_meta(correlation_id, method=ECHO, method_type=SINGLE, timeout=2000,
                 compression=None):
  meta = messages()[1].RpcMeta(
      correlation_id=correlation_id, method_type=method_type)
  meta.request_meta.method_name = method
  meta.request_meta.timeout = timeout
  meta.request_meta.acceptable_compression_algorithms = 0x3E
  if compression is not None:
    meta.compression_algorithm = compression
    meta.attachment_compressed = True
  return meta


def echo_body(text):
  return messages()[0].EchoRequest(body=text).SerializeToString()


def echo_frame(correlation_id, text, attachment=b"", **options):
  return frame(request_meta(correlation_id, **options), echo_body(text),
               attachment)


def echo_reply_frame(request):
  """The right answer to a request that a server's end has received."""
  echo = messages()[0]
  meta = messages()[1].RpcMeta(correlation_id=request.meta.correlation_id,
                               method_type=SINGLE)
  meta.response_meta.status = 0
  body = echo.EchoResponse(
      body=echo.EchoRequest.FromString(request.raw_body).body)
  return frame(meta, body.SerializeToString(), request.attachment)


class Reply:
  """One response of the flare protocol."""

  def __init__(self, meta, body, attachment):
    self.meta = meta
    self.raw_body = body
    self.attachment = attachment

  @property
  def status(self):
    return self.meta.response_meta.status

  @property
  def text(self):
    return messages()[0].EchoResponse.FromString(self.raw_body).body


class FlareConnection:
  """A blocking connection that speaks flare://."""

  def __init__(self, port, limit_s=harness.PATIENCE_S):
    self._begin(socket.create_connection(("127.0.0.1", port), limit_s))

  @classmethod
  def over(cls, accepted):
    """The server's end of a connection: receive() then gives requests."""
    connection = cls.__new__(cls)
    accepted.settimeout(harness.PATIENCE_S)
    connection._begin(accepted)
    return connection

  def _begin(self, connected):
    self.socket = connected
    self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    self._input = b""

  def __enter__(self):
    return self

  def __exit__(self, *unused):
    self.close()

  def close(self):
    self.socket.close()

  def send(self, data):
    self.socket.sendall(data)

  def receive(self):
    """The next reply; None at the end of the connection. A reset counts as
    the end too."""
    header = self._take(HEADER.size)
    if header is None:
      return None
    magic, meta_size, body_size, attachment_size = HEADER.unpack(header)
    assert magic == MAGIC, f"not a flare frame: {header!r}"
    meta = messages()[1].RpcMeta.FromString(self._must_take(meta_size))
    body = self._must_take(body_size)
    return Reply(meta, body, self._must_take(attachment_size))

  def receive_all(self):
    """All replies until the end of the connection."""
    replies = []
    while (reply := self.receive()) is not None:
      replies.append(reply)
    return replies

  def call(self, data):
    self.send(data)
    return self.receive()

  def _must_take(self, size):
    data = self._take(size)
    assert data is not None, "the connection ended inside a frame"
    return data

  def _take(self, size):
    while len(self._input) < size:
      try:
        data = self.socket.recv(65536)
      except ConnectionResetError:
        data = b""
      if not data:
        return None
      self._input += data
    taken, self._input = self._input[:size], self._input[size:]
    return taken


def echo_works(port, text="still here"):
  """Does a fresh connection get a right answer?"""
  with FlareConnection(port) as connection:
    reply = connection.call(echo_frame(1, text))
    return reply is not None and reply.status == 0 and reply.text == text
