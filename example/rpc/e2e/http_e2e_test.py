#!/usr/bin/python3
"""Plain HTTP/1.1 on the server's port, down to the bytes, and by curl over
HTTP/2: the pages `/` (an index, GET only) and `/echo` (answers with the body it
was sent)."""

import re
import socket
import subprocess
import tempfile

import harness
import wire


class Response:

  def __init__(self, status, fields, body, raw_head):
    self.status = status
    self.fields = fields  # Lower-case name -> last value.
    self.body = body
    self.raw_head = raw_head


class RawHttp:
  """A socket on which bytes are sent as given and responses are read."""

  def __init__(self, port):
    self.socket = socket.create_connection(("127.0.0.1", port),
                                           harness.PATIENCE_S)
    self._input = b""

  def send(self, data):
    self.socket.sendall(data)

  def is_at_end(self):
    """Waits for the end of the connection; False if there is more instead."""
    return not self._input and not self._fill()

  def response(self, has_body=True):
    while b"\r\n\r\n" not in self._input:
      assert self._fill(), f"the connection ended within {self._input!r}"
    head, self._input = self._input.split(b"\r\n\r\n", 1)
    lines = head.decode("latin-1").split("\r\n")
    match = re.fullmatch(r"HTTP/1\.1 (\d{3}) [^\r\n]*", lines[0])
    assert match, f"not a status line: {lines[0]!r}"
    fields = {}
    for line in lines[1:]:
      name, value = line.split(":", 1)
      fields[name.lower()] = value.strip()
    status = int(match[1])
    body = b""
    if has_body and status >= 200 and status not in (204, 304):
      body = self._body(fields)
    return Response(status, fields, body, head)

  def _body(self, fields):
    if fields.get("transfer-encoding", "").lower() == "chunked":
      body = b""
      while chunk := self._exactly(int(self._line(), 16)):
        body += chunk
        assert self._line() == b""
      assert self._line() == b""
      return body
    return self._exactly(int(fields["content-length"]))

  def _line(self):
    while b"\r\n" not in self._input:
      assert self._fill(), "the connection ended within a line"
    line, self._input = self._input.split(b"\r\n", 1)
    return line

  def _exactly(self, size):
    while len(self._input) < size:
      assert self._fill(), "the connection ended within a body"
    taken, self._input = self._input[:size], self._input[size:]
    return taken

  def _fill(self):
    try:
      data = self.socket.recv(65536)
    except ConnectionResetError:
      data = b""
    self._input += data
    return bool(data)


def get(target="/", *fields, method="GET", version="1.1"):
  return request(method, target, b"", *fields, version=version)


def post(body, *fields, target="/echo"):
  return request("POST", target, body, f"Content-Length: {len(body)}", *fields)


def request(method, target, body, *fields, version="1.1"):
  lines = [f"{method} {target} HTTP/{version}", "Host: test", *fields, "", ""]
  return "\r\n".join(lines).encode("latin-1") + body


def chunked(*chunks, trailer=b""):
  encoded = b"".join(b"%x\r\n%s\r\n" % (len(c), c) for c in chunks)
  head = request("POST", "/echo", b"", "Transfer-Encoding: chunked")
  return head + encoded + b"0\r\n" + trailer + b"\r\n"


class HttpTest(harness.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    port = harness.free_port()
    cls.server = harness.Program("server", "--logtostderr", f"--port={port}")
    cls.addClassCleanup(cls.server.kill)
    cls.port = port
    harness.wait_until(lambda: harness.can_connect(port), str(cls.server))

  def tearDown(self):
    self.assertTrue(wire.echo_works(self.port), self.server)

  def connect(self):
    connection = RawHttp(self.port)
    self.addCleanup(connection.socket.close)
    return connection

  def ask(self, data, **options):
    connection = self.connect()
    connection.send(data)
    return connection.response(**options)


class Counting(HttpTest):

  def test_pages_count_as_requests(self):
    port = harness.free_port()
    server = self.start_server(port=port)
    connection = RawHttp(port)
    self.addCleanup(connection.socket.close)
    for data in (get("/"), post(b"1"), post(b"2")):
      connection.send(data)
      self.assertEqual(connection.response().status, 200)
    self.assertEqual(server.stop(), 0, server)
    server.wait_for(r"Processed 3 request\(s\) in total")


class KeepAlive(HttpTest):

  def test_connection_stays_for_http_1_1(self):
    connection = self.connect()
    for i in range(50):
      connection.send(post(b"%d" % i))
      response = connection.response()
      self.assertEqual((response.status, response.body), (200, b"%d" % i))
      self.assertNotEqual(response.fields.get("connection", "").lower(),
                          "close")

  def test_connection_close_is_honoured(self):
    connection = self.connect()
    connection.send(post(b"last", "Connection: close"))
    response = connection.response()
    self.assertEqual(response.body, b"last")
    self.assertEqual(response.fields["connection"].lower(), "close")
    self.assertTrue(connection.is_at_end())

  def test_requests_behind_connection_close_are_not_served(self):
    connection = self.connect()
    connection.send(post(b"1", "Connection: close") + post(b"2"))
    self.assertEqual(connection.response().body, b"1")
    self.assertTrue(connection.is_at_end())

  def test_http_1_0_closes_unless_asked(self):
    connection = self.connect()
    connection.send(get(version="1.0"))
    self.assertEqual(connection.response().status, 200)
    self.assertTrue(connection.is_at_end())

    connection = self.connect()
    for _ in range(2):
      connection.send(get("/", "Connection: keep-alive", version="1.0"))
      response = connection.response()
      self.assertEqual(response.status, 200)
      self.assertEqual(response.fields["connection"].lower(), "keep-alive")

  def test_empty_lines_between_requests_are_skipped(self):
    connection = self.connect()
    for body in (b"a", b"b", b"c"):
      connection.send(post(body) + b"\r\n")
      self.assertEqual(connection.response().body, body)


class Pipelining(HttpTest):

  def test_replies_come_in_order(self):
    connection = self.connect()
    bodies = [b"%d" % i * (1 + i * 37 % 100) for i in range(300)]
    connection.send(b"".join(post(body) for body in bodies))
    self.assertEqual([connection.response().body for _ in bodies], bodies)

  def test_errors_keep_their_place(self):
    connection = self.connect()
    connection.send(post(b"1") + get("/nothing/here") + post(b"3") +
                    get("/echo", method="DELETE") + post(b"5"))
    self.assertEqual([connection.response().status for _ in range(5)],
                     [200, 404, 200, 405, 200])

  def test_split_at_every_byte(self):
    connection = self.connect()
    stream = post(b"abc") + chunked(b"de", b"f") + get()
    for byte in stream:
      connection.send(bytes([byte]))
    self.assertEqual(connection.response().body, b"abc")
    self.assertEqual(connection.response().body, b"def")
    self.assertEqual(connection.response().status, 200)


class Bodies(HttpTest):

  def test_large_body(self):
    body = bytes(range(256)) * 8000
    self.assertEqual(self.ask(post(body)).body, body)

  def test_empty_body(self):
    response = self.ask(post(b""))
    self.assertEqual((response.status, response.body), (200, b""))

  def test_chunked(self):
    self.assertEqual(self.ask(chunked(b"one,", b"two", b"x" * 5000)).body,
                     b"one,two" + b"x" * 5000)

  def test_chunk_extensions_and_trailers_are_skipped(self):
    data = request("POST", "/echo", b"", "Transfer-Encoding: chunked")
    data += b"3;name=value\r\nabc\r\n0;last\r\nX-Trailer: y\r\n\r\n"
    connection = self.connect()
    connection.send(data + post(b"next"))
    self.assertEqual(connection.response().body, b"abc")
    self.assertEqual(connection.response().body, b"next")

  def test_expect_100_continue(self):
    connection = self.connect()
    connection.send(request("POST", "/echo", b"", "Content-Length: 4",
                            "Expect: 100-continue"))
    self.assertEqual(connection.response().status, 100)
    connection.send(b"body")
    self.assertEqual(connection.response().body, b"body")


class Methods(HttpTest):

  def test_index_page(self):
    response = self.ask(get())
    self.assertEqual(response.status, 200)
    self.assertTrue(response.fields["content-type"].startswith("text/html"))
    self.assertIn(b"example.protobuf_echo.EchoService", response.body)

  def test_query_is_not_part_of_the_path(self):
    self.assertEqual(self.ask(get("/?a=b")).status, 200)

  def test_head_has_the_length_but_no_body(self):
    length = len(self.ask(get()).body)
    connection = self.connect()
    connection.send(get(method="HEAD"))
    response = connection.response(has_body=False)
    self.assertEqual(response.status, 200)
    self.assertEqual(int(response.fields["content-length"]), length)
    connection.send(post(b"in step"))
    self.assertEqual(connection.response().body, b"in step")

  def test_not_found(self):
    response = self.ask(get("/no/such/page"))
    self.assertEqual(response.status, 404)
    self.assertTrue(response.body)

  def test_method_not_allowed(self):
    for method in ("POST", "PUT", "DELETE", "PATCH"):
      with self.subTest(method=method):
        self.assertEqual(
            self.ask(request(method, "/", b"", "Content-Length: 0")).status,
            405)


# Requests that must be answered with 400 and the end of the connection, because
# where the next request begins is not certain.
MALFORMED = {
    "no version": b"GET /\r\n\r\n",
    "space in the target": b"GET /a b HTTP/1.1\r\nHost: x\r\n\r\n",
    "no colon": b"GET / HTTP/1.1\r\nHost\r\n\r\n",
    "space before the colon": b"GET / HTTP/1.1\r\nHost : x\r\n\r\n",
    "empty name": b"GET / HTTP/1.1\r\n: x\r\n\r\n",
    "folded line": b"GET / HTTP/1.1\r\nHost: x\r\nA: b\r\n c\r\n\r\n",
    "bare CR": b"GET / HTTP/1.1\r\nHost: x\r\nA: b\rc\r\n\r\n",
    "NUL": b"GET / HTTP/1.1\r\nHost: x\r\nA: b\0c\r\n\r\n",
    "negative length":
        b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
    "length that is no number":
        b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1x\r\n\r\n",
    "two lengths":
        b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n"
        b"Content-Length: 2\r\n\r\nab",
    "length and chunks":
        b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunk size that is no number":
        b"POST /echo HTTP/1.1\r\nHost: x\r\n"
        b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n",
    "chunk longer than it says":
        b"POST /echo HTTP/1.1\r\nHost: x\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n0\r\n\r\n",
}


class Http2(HttpTest):

  def curl(self, *arguments, path="/echo"):
    """Returns the status, the version of HTTP, and the body."""
    done = subprocess.run(
        ["curl", "-sS", "--http2-prior-knowledge", "--noproxy", "*",
         "--max-time", "60", "-w", "\n%{http_code} %{http_version}",
         *arguments, f"http://127.0.0.1:{self.port}{path}"],
        capture_output=True)
    self.assertEqual(done.returncode, 0, done.stderr)
    body, _, said = done.stdout.rpartition(b"\n")
    status, version = said.decode().split()
    return int(status), version, body

  def test_pages(self):
    for path in ("/", "/inspect", "/inspect/server"):
      status, version, body = self.curl(path=path)
      self.assertEqual((status, version), (200, "2"))
      self.assertTrue(body, path)
    self.assertEqual(self.curl(path="/nowhere")[:2], (404, "2"))
    self.assertEqual(self.curl("--head", path="/")[:2], (200, "2"))
    self.assertEqual(self.curl()[:2], (405, "2"))

  def test_bodies(self):
    with tempfile.NamedTemporaryFile() as file:
      body = bytes(range(256)) * 8000
      file.write(body)
      file.flush()
      self.assertEqual(self.curl("--data-binary", "@" + file.name),
                       (200, "2", body))
      # Larger than a message may be.
      file.truncate(5_000_000)
      self.assertEqual(self.curl("--data-binary", "@" + file.name)[:2],
                       (413, "2"))

  def test_calls(self):
    path = "/rpc/example.protobuf_echo.EchoService.Echo"
    self.assertEqual(
        self.curl("-H", "Content-Type: application/x-proto3-json",
                  "-d", '{"body": "hello"}', path=path),
        (200, "2", b'{"body":"hello"}'))
    status, version, body = self.curl(
        "-H", "Content-Type: application/x-proto3-json", "-d", "no",
        path=path)
    self.assertEqual((status, version), (500, "2"))
    self.assertIn(b'"code":', body)
    # By Connect.
    self.assertEqual(
        self.curl("-H", "Content-Type: application/json",
                  "-H", "Connect-Protocol-Version: 1",
                  "-d", '{"body": "hello"}',
                  path="/example.protobuf_echo.EchoService/Echo"),
        (200, "2", b'{"body":"hello"}'))


class Malformed(HttpTest):

  def test_is_answered_with_400_and_closed(self):
    for what, data in MALFORMED.items():
      with self.subTest(what):
        connection = self.connect()
        connection.send(data)
        self.assertEqual(connection.response().status, 400)
        self.assertTrue(connection.is_at_end())

  def test_good_requests_before_it_are_answered_first(self):
    connection = self.connect()
    connection.send(post(b"good") + MALFORMED["no colon"])
    self.assertEqual(connection.response().body, b"good")
    self.assertEqual(connection.response().status, 400)
    self.assertTrue(connection.is_at_end())

  def test_header_without_end(self):
    connection = self.connect()
    connection.send(b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"a" * 20000)
    self.assertIn(connection.response().status, (400, 431))
    self.assertTrue(connection.is_at_end())

  def test_too_many_fields(self):
    fields = [f"F{i}: v" for i in range(1000)]
    response = self.ask(get("/", *fields))
    self.assertIn(response.status, (400, 431))

  def test_unknown_version(self):
    response = self.ask(b"GET / HTTP/3.7\r\nHost: x\r\n\r\n")
    self.assertIn(response.status, (400, 505))

  def test_body_beyond_the_limit(self):
    response = self.ask(request("POST", "/echo", b"",
                                f"Content-Length: {10**12}"))
    self.assertEqual(response.status, 413)


if __name__ == "__main__":
  harness.main()
