#!/usr/bin/python3
"""The server seen by strangers: a client written from the protocol document
with the stock protobuf package, and curl."""

import gzip
import http.client
import json
import shutil
import subprocess

import harness
import wire

GZIP = 2
STATUS_SERVICE_NOT_FOUND = 9
STATUS_METHOD_NOT_FOUND = 10
PATH = f"/rpc/{wire.ECHO}"
BINARY = "application/x-protobuf"
JSON = "application/x-proto3-json"
TEXT = "text/x-protobuf"


class ServerTest(harness.TestCase):

  def setUp(self):
    super().setUp()
    self.server = self.start_server()
    self.connections = []

  def closed_at_the_end(self, connection):
    self.connections.append(connection)
    return connection

  def connect_http(self):
    return self.closed_at_the_end(http.client.HTTPConnection(
        "127.0.0.1", self.server.port, timeout=harness.PATIENCE_S))

  def tearDown(self):
    # First, since a server that stops waits a moment for its clients to leave.
    for connection in self.connections:
      connection.close()
    self.assertTrue(wire.echo_works(self.server.port), self.server)
    self.assertEqual(self.server.stop(), 0, self.server)


class FlareProtocol(ServerTest):

  def connect(self):
    return self.closed_at_the_end(wire.FlareConnection(self.server.port))

  def test_documented_bytes(self):
    request = bytes.fromhex(
        "43505246330000000400000000000000"
        "08012a2d1226" + wire.ECHO.encode().hex() + "20d00f303e3801"
        "0a026869")
    reply = bytes.fromhex(
        "43505246080000000400000000000000" "0801320208003801" "12026869")
    self.assertEqual(wire.echo_frame(1, "hi"), request)
    connection = self.connect()
    connection.send(request)
    received = b""
    while len(received) < len(reply):
      received += connection.socket.recv(len(reply) - len(received))
    self.assertEqual(received, reply)

  def test_echo_with_attachment(self):
    attachment = bytes(range(256)) * 300
    reply = self.connect().call(wire.echo_frame(7, "body", attachment))
    self.assertEqual((reply.meta.correlation_id, reply.status, reply.text,
                      reply.attachment), (7, 0, "body", attachment))

  def test_empty_body(self):
    reply = self.connect().call(wire.echo_frame(1, ""))
    self.assertEqual((reply.status, reply.text), (0, ""))

  def test_correlation_ids_of_64_bits(self):
    for correlation_id in (0, 1, 2**32, 2**63, 2**64 - 1):
      reply = self.connect().call(wire.echo_frame(correlation_id, "x"))
      self.assertEqual(reply.meta.correlation_id, correlation_id)

  def test_many_calls_on_one_connection(self):
    connection = self.connect()
    connection.send(b"".join(
        wire.echo_frame(i, f"text {i}") for i in range(1, 501)))
    replies = [connection.receive() for _ in range(500)]
    self.assertEqual({reply.meta.correlation_id: reply.text
                      for reply in replies},
                     {i: f"text {i}" for i in range(1, 501)})

  def test_frame_that_arrives_byte_by_byte(self):
    connection = self.connect()
    for byte in wire.echo_frame(5, "slowly", b"attached"):
      connection.send(bytes([byte]))
    reply = connection.receive()
    self.assertEqual((reply.text, reply.attachment), ("slowly", b"attached"))

  def test_compressed_request(self):
    frame = wire.frame(wire.request_meta(3, compression=GZIP),
                       gzip.compress(wire.echo_body("z" * 10000)),
                       gzip.compress(b"a" * 10000))
    reply = self.connect().call(frame)
    self.assertEqual(reply.status, 0)
    if reply.meta.HasField("compression_algorithm"):
      self.assertEqual(reply.meta.compression_algorithm, GZIP)
      reply.raw_body = gzip.decompress(reply.raw_body)
      if reply.meta.attachment_compressed:
        reply.attachment = gzip.decompress(reply.attachment)
    self.assertEqual((reply.text, reply.attachment),
                     ("z" * 10000, b"a" * 10000))

  def test_unknown_names(self):
    for method, statuses in (
        ("example.protobuf_echo.EchoService.NoSuch",
         {STATUS_METHOD_NOT_FOUND}),
        ("no.such.Service.Method",
         {STATUS_METHOD_NOT_FOUND, STATUS_SERVICE_NOT_FOUND}),
        ("", {STATUS_METHOD_NOT_FOUND, STATUS_SERVICE_NOT_FOUND})):
      with self.subTest(method=method):
        reply = self.connect().call(wire.echo_frame(9, "x", method=method))
        self.assertIn(reply.status, statuses)
        self.assertTrue(reply.meta.response_meta.description)

  def test_body_that_is_no_message_is_answered_with_an_error(self):
    reply = self.connect().call(
        wire.frame(wire.request_meta(11), b"\x0a\xff\xff"))
    self.assertEqual(reply.meta.correlation_id, 11)
    self.assertNotEqual(reply.status, 0)

  def test_body_that_is_not_compressed_as_said(self):
    for algorithm in (2, 3, 4, 5, 77):
      with self.subTest(algorithm=algorithm):
        reply = self.connect().call(
            wire.frame(wire.request_meta(12, compression=algorithm),
                       b"not compressed at all", b"nor this"))
        self.assertEqual(reply.meta.correlation_id, 12)
        self.assertNotEqual(reply.status, 0)


class HttpProtocols(ServerTest):

  def post(self, content_type, body, path=PATH, headers=()):
    client = self.connect_http()
    client.request("POST", path, body,
                   {"Content-Type": content_type, **dict(headers)})
    response = client.getresponse()
    return response, response.read()

  def test_binary(self):
    echo, _ = wire.messages()
    response, body = self.post(BINARY, wire.echo_body("over http"),
                               headers={"Rpc-SeqNo": "77"})
    self.assertEqual(response.status, 200)
    self.assertEqual(response.getheader("Content-Type"), BINARY)
    self.assertEqual(response.getheader("Rpc-SeqNo"), "77")
    self.assertEqual(echo.EchoResponse.FromString(body).body, "over http")

  def test_json(self):
    response, body = self.post(JSON, json.dumps({"body": "Grüße"}))
    self.assertEqual(response.status, 200)
    self.assertEqual(json.loads(body), {"body": "Grüße"})

  def test_text(self):
    response, body = self.post(TEXT, 'body: "as text"')
    self.assertEqual(response.status, 200)
    self.assertIn(b'body: "as text"', body)

  def test_calls_one_after_another_on_one_connection(self):
    echo, _ = wire.messages()
    client = self.connect_http()
    for i in range(100):
      client.request("POST", PATH, wire.echo_body(str(i)),
                     {"Content-Type": BINARY, "Rpc-SeqNo": str(i)})
      response = client.getresponse()
      self.assertEqual(
          echo.EchoResponse.FromString(response.read()).body, str(i))

  def test_errors(self):
    response, _ = self.post(BINARY, b"", "/rpc/no.such.Service.Method")
    self.assertEqual(response.status, 404)
    self.assertIn(response.getheader("Rpc-Error-Code"), ("9", "10"))
    self.assertTrue(response.getheader("Rpc-Error-Reason"))
    for content_type, body in ((BINARY, b"\x0a\xff\xff"), (JSON, "{oops"),
                               (TEXT, "body: 17 }")):
      with self.subTest(content_type=content_type):
        response, _ = self.post(content_type, body)
        self.assertIn(response.status, (400, 500))
        self.assertNotEqual(response.getheader("Rpc-Error-Code"), "0")

  def curl(self, *arguments, path=PATH, fail=True):
    """The documented curl command lines; returns their output."""
    if shutil.which("curl") is None:
      self.skipTest("curl is not installed")
    return subprocess.run(
        ["curl", "--silent", "--show-error", *(["--fail"] if fail else []),
         "--max-time", "30", *arguments,
         f"http://127.0.0.1:{self.server.port}{path}"],
        check=True, capture_output=True).stdout

  def test_curl_binary(self):
    echo, _ = wire.messages()
    request = self.path("req.pb")
    with open(request, "wb") as f:
      f.write(wire.echo_body("from curl"))
    body = self.curl("--data-binary", f"@{request}",
                     "-H", f"Content-Type: {BINARY}")
    self.assertEqual(echo.EchoResponse.FromString(body).body, "from curl")

  def test_curl_json(self):
    body = self.curl("--data", '{"body": "from curl"}',
                     "-H", f"Content-Type: {JSON}")
    self.assertEqual(json.loads(body), {"body": "from curl"})

  def test_curl_with_expect_and_a_large_body(self):
    # curl announces bodies beyond 1 MiB with `Expect: 100-continue`.
    echo, _ = wire.messages()
    request = self.path("large.pb")
    with open(request, "wb") as f:
      f.write(wire.echo_body("x" * 2_000_000))
    body = self.curl("--data-binary", f"@{request}",
                     "-H", f"Content-Type: {BINARY}",
                     "-H", "Expect: 100-continue")
    self.assertEqual(len(echo.EchoResponse.FromString(body).body), 2_000_000)

  def test_curl_chunked(self):
    body = self.curl("--data", '{"body": "in chunks"}',
                     "-H", "Transfer-Encoding: chunked",
                     "-H", f"Content-Type: {JSON}")
    self.assertEqual(json.loads(body), {"body": "in chunks"})


  def test_curl_as_clients_of_other_frameworks_call(self):
    echo, _ = wire.messages()
    for path in ("/example.protobuf_echo.EchoService/Echo",
                 "/EchoService/Echo"):
      body = self.curl("--data", '{"body": "from curl", "unknown": [1]}',
                       "-H", "Content-Type: application/json", path=path)
      self.assertEqual(json.loads(body), {"body": "from curl"})
      for content_type in ("application/proto", "application/octet-stream"):
        response, body = self.post(content_type, wire.echo_body("x"), path)
        self.assertEqual(response.getheader("Content-Type"), content_type)
        self.assertEqual(echo.EchoResponse.FromString(body).body, "x")

  def test_curl_compressed_both_ways(self):
    request = self.path("req.json.gz")
    text = "words " * 10_000
    with gzip.open(request, "wb") as f:
      f.write(json.dumps({"body": text}).encode())
    arguments = ["--data-binary", f"@{request}",
                 "-H", "Content-Encoding: gzip",
                 "-H", "Content-Type: application/json"]
    self.assertEqual(json.loads(self.curl(*arguments)), {"body": text})
    self.assertEqual(json.loads(self.curl("--compressed", *arguments)),
                     {"body": text})
    packed = self.curl("-H", "Accept-Encoding: gzip", *arguments)
    self.assertLess(len(packed), 2000)
    self.assertEqual(json.loads(gzip.decompress(packed)), {"body": text})

  def test_curl_failure_in_json(self):
    for path in ("/rpc/example.protobuf_echo.EchoService.NoSuch",
                 "/EchoService/NoSuch"):
      body = self.curl("--data", "{}", "-H", "Content-Type: application/json",
                       path=path, fail=False)
      self.assertEqual(json.loads(body), {
          "code": STATUS_METHOD_NOT_FOUND,
          "message": "Method [example.protobuf_echo.EchoService.NoSuch] is "
                     "not implemented."})


class WebPages(ServerTest):

  def setUp(self):
    harness.TestCase.setUp(self)
    self.server = self.start_server(
        "--flare_http_cors_origins=http://page.example")
    self.connections = []

  def test_preflight_and_call(self):
    client = self.connect_http()
    client.request("OPTIONS", PATH, headers={
        "Origin": "http://page.example",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "content-type"})
    response = client.getresponse()
    self.assertEqual((response.status, response.read()), (204, b""))
    self.assertEqual(response.getheader("Access-Control-Allow-Origin"),
                     "http://page.example")
    client.request("POST", PATH, "{}", {
        "Origin": "http://page.example", "Content-Type": JSON})
    response = client.getresponse()
    self.assertEqual((response.status, response.read()), (200, b"{}"))
    self.assertEqual(response.getheader("Access-Control-Allow-Origin"),
                     "http://page.example")


class OnePortManyProtocols(ServerTest):

  def test_flare_http_and_index_page_at_the_same_time(self):
    with wire.FlareConnection(self.server.port) as flare:
      web = self.connect_http()
      for i in range(10):
        self.assertEqual(flare.call(wire.echo_frame(i, "x")).text, "x")
        web.request("GET", "/")
        response = web.getresponse()
        self.assertEqual(response.status, 200)
        self.assertIn(b"EchoService", response.read())


if __name__ == "__main__":
  harness.main()
