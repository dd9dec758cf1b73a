#!/usr/bin/python3
"""rpc_proxy between the real echo server and the real load generator, in all
protocols on both sides."""

import http.client
import http.server
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading

HERE = os.path.dirname(os.path.realpath(__file__))  # Bazel runs it by a link.
sys.path.append(os.path.join(HERE, "..", "..", "rpc", "e2e"))
import harness  # noqa: E402
from foreign_protos import brpc, trpc  # noqa: E402
from foreign_wire import BaiduStd, Message, Trpc, connect  # noqa: E402

PROXY = "proxy/rpc_proxy"
SERVICE = "example.protobuf_echo.EchoService"
ECHO = SERVICE + ".Echo"
NAMELESS = ("flare", "http+pb", "baidu-std", "trpc", "bolt", "grpc")
PROTOCOLS = NAMELESS + ("http+proto3-json", "http+pb-text")
WITH_ATTACHMENTS = ("flare", "baidu-std", "trpc")

# One report of press: its latency line with rate and failures behind it.
REPORT = re.compile(r"(?:max: \d+us|No call has succeeded)\. "
                    r"QPS: (\d+), failures: (\d+)")


class RpcProxyTest(harness.TestCase):

  def setUp(self):
    super().setUp()
    self.descriptors = self.path("echo.pb")
    subprocess.run(
        ["protoc", "--include_imports",
         f"--descriptor_set_out={self.descriptors}",
         f"--proto_path={os.path.dirname(harness.PROTO_FILE)}",
         os.path.basename(harness.PROTO_FILE)],
        check=True, timeout=harness.PATIENCE_S)

  def start_proxy(self, routes, *flags, opaque=False):
    if not opaque:
      flags += (f"--descriptors={self.descriptors}",)
    return self.start_server(f"--routes={routes}", "--flare_concurrency_hint=2",
                             *flags, name=PROXY)

  def press(self, port, protocols, *flags):
    """Starts press on all these protocols, side by side."""
    targets = ";".join(f"{p}://127.0.0.1:{port}" for p in protocols)
    return self.start("press", f"--server_addr={targets}", "--max_pending=14",
                      "--flare_concurrency_hint=2", "--verify",
                      "--timeout=20000", f"--json={self.path('press.json')}",
                      *flags)

  def figures(self):
    with open(self.path("press.json")) as f:
      return json.load(f)

  def next_report(self, press, is_wanted, what, after=0):
    """Waits for a report with is_wanted(qps, failures); returns the offset
    behind it."""

    def look():
      for match in REPORT.finditer(press.log(), after):
        if is_wanted(int(match[1]), int(match[2])):
          return match.end()
      self.assertTrue(press.is_running(), press)
      return None

    return harness.wait_until(look, f"{what} in the reports of {press}")


class Pairs(RpcProxyTest):

  def check(self, route, protocols, *flags, opaque=False):
    """Calls in all these protocols get across."""
    proxy = self.start_proxy(route, opaque=opaque)
    calls = 50 * len(protocols)
    press = self.press(proxy.port, protocols, f"--requests={calls}",
                       "--body_size=0-3000", *flags)
    self.assertEqual(press.wait(), 0, press)
    figures = self.figures()
    self.assertEqual((figures["requests"], figures["failures"]), (calls, 0))
    for target in figures.get("targets", []):
      self.assertEqual(target["requests"], 50, target["server_addr"])
    self.assertEqual(proxy.stop(), 0, proxy)
    self.assertIn(f"Processed {calls} request(s) in total.", proxy.log())

  def test_with_descriptors(self):
    server = self.start_server()
    for backend in PROTOCOLS:
      with self.subTest(backend=backend):
        self.check(f"*={backend}://127.0.0.1:{server.port}", PROTOCOLS)

  def test_without_descriptors(self):
    server = self.start_server()
    for backend in NAMELESS:
      with self.subTest(backend=backend):
        self.check(f"{ECHO}={backend}://127.0.0.1:{server.port}", NAMELESS,
                   opaque=True)

  def test_attachments(self):
    server = self.start_server()
    for backend in WITH_ATTACHMENTS:
      with self.subTest(backend=backend):
        self.check(f"{SERVICE}={backend}://127.0.0.1:{server.port}",
                   WITH_ATTACHMENTS, "--attachment_size=100000")

  def test_compressed_requests(self):
    server = self.start_server()
    self.check(f"*=flare://127.0.0.1:{server.port}", ("flare", "trpc"),
               "--compression_algorithm=gzip")


class Tls(RpcProxyTest):
  """On both sides of the proxy, by certificates of tools/make_test_ca."""

  def setUp(self):
    super().setUp()
    self.ca = self.path("ca")
    subprocess.run([os.path.join(harness.SOURCE_TREE, "tools", "make_test_ca"),
                    self.ca], check=True)

  def file(self, name):
    return os.path.join(self.ca, name)

  def pair(self, name, prefix="--tls"):
    return (f"{prefix}_certificate={self.file(name + '.crt')}",
            f"{prefix}_key={self.file(name + '.key')}")

  def test_listener_and_backend(self):
    # Whom the backend serves by its certificate is the proxy.
    server = self.start_server(*self.pair("server"), "--tell_identity",
                               f"--tls_client_ca={self.file('ca.crt')}")
    proxy = self.start_proxy(
        f"*=tls+flare://localhost:{server.port}", *self.pair("server"),
        f"--backend_tls_ca={self.file('ca.crt')}",
        *self.pair("client", "--backend_tls"))
    # curl ...
    done = subprocess.run(
        ["curl", "-sS", "--max-time", "60", "--noproxy", "*", "--cacert",
         self.file("ca.crt"), "-H", "Content-Type: application/x-proto3-json",
         "-d", '{"body":"hello"}',
         f"https://localhost:{proxy.port}/rpc/{ECHO}"],
        capture_output=True, text=True, timeout=harness.PATIENCE_S)
    self.assertEqual(done.returncode, 0, done.stderr)
    self.assertIn("CN=alice", json.loads(done.stdout)["body"])
    # ... and our own client.
    _, text = self.run_to_end(
        "press", f"--server_addr=tls+flare://localhost:{proxy.port}",
        "--requests=20", "--max_pending=4", "--timeout=20000", "--logtostderr",
        f"--tls_ca={self.file('ca.crt')}")
    self.assertRegex(text, r"Finished: 20 call.* failures: 0\.")

  def test_a_backend_of_unknown_root_is_refused(self):
    server = self.start_server(*self.pair("unknown"))
    proxy = self.start_proxy(f"*=tls+flare://localhost:{server.port}",
                             f"--backend_tls_ca={self.file('ca.crt')}")
    connection = http.client.HTTPConnection("127.0.0.1", proxy.port,
                                            timeout=harness.PATIENCE_S)
    self.addCleanup(connection.close)
    connection.request("POST", f"/rpc/{ECHO}", '{"body":"hello"}',
                       {"Content-Type": "application/x-proto3-json"})
    reply = connection.getresponse()
    self.assertEqual(reply.status, 500)
    self.assertIn("its root is unknown here", reply.read().decode())


class Grpc(RpcProxyTest):
  """gRPC's interoperability cases through the proxy."""

  # With streams of requests, which HTTP/1.1 lacks.
  STREAMS = ("client_streaming", "ping_pong", "empty_stream",
             "cancel_after_begin", "cancel_after_first_response",
             "timeout_on_sleeping_server", "large_stream")
  CASES = ("empty_unary", "large_unary", "server_streaming", "custom_metadata",
           "special_status_message", "unimplemented_method",
           "unimplemented_service")

  def setUp(self):
    super().setUp()
    self.protos = os.path.join(harness.SOURCE_TREE, "example", "grpc")
    self.descriptors = self.path("testing.pb")
    subprocess.run(
        ["protoc", f"--descriptor_set_out={self.descriptors}",
         f"--proto_path={self.protos}", "testing.proto"],
        check=True, timeout=harness.PATIENCE_S)
    server = self.start("grpc/interop_server", "--port=0", "--logtostderr")
    self.port = int(server.wait_for(r"listens on [0-9.]+:(\d+)")[1])

  def check(self, backend, cases):
    proxy = self.start_proxy(f"*={backend}://127.0.0.1:{self.port}",
                             "--protocols=grpc,flare")
    client = self.start("grpc/interop_client", f"--server_port={proxy.port}",
                        "--test_case=" + ",".join(cases))
    self.assertEqual(client.wait(), 0, client)
    self.assertEqual(proxy.stop(), 0, proxy)

  def test_over_each_protocol_with_streams(self):
    for backend in ("grpc", "flare"):
      with self.subTest(backend):
        self.check(backend, self.CASES + self.STREAMS)

  def test_over_http(self):
    # Their statuses are one line.
    self.check("http+pb",
               [c for c in self.CASES if c != "special_status_message"])


class Json(RpcProxyTest):
  """Calls whose protocol has a number for their messages' format."""

  # Callers' numbers for JSON, and their errors if it can't be read.
  CALLERS = ((BaiduStd, lambda: brpc().RpcMeta(content_type=2), 102),
             (Trpc, lambda: trpc().RequestProtocol(content_type=2), 1))
  BODY = b'{"body":"hello"}'
  PROTOBUF = b"\x0a\x05hello"

  def test_with_descriptors(self):
    server = self.start_server()
    for backend in ("flare", "trpc", "http+proto3-json"):
      proxy = self.start_proxy(f"*={backend}://127.0.0.1:{server.port}")
      for codec, meta, _ in self.CALLERS:
        with self.subTest(codec.scheme, backend=backend):
          with connect(codec, proxy.port) as peer:
            reply = peer.call(Message(body=self.BODY, meta=meta()))
            self.assertEqual((reply.status, reply.text), (0, ""))
            self.assertEqual(json.loads(reply.body), {"body": "hello"})
            self.assertEqual(reply.meta.content_type, 2)

  def test_without_descriptors(self):
    """They are refused before the server hears of them, and the connection
    goes on."""
    server = self.start_server()
    proxy = self.start_proxy(f"{ECHO}=flare://127.0.0.1:{server.port}",
                             opaque=True)
    for codec, meta, status in self.CALLERS:
      with self.subTest(codec.scheme):
        with connect(codec, proxy.port) as peer:
          reply = peer.call(Message(id=1, body=self.BODY, meta=meta()))
          self.assertEqual((reply.id, reply.status, reply.body),
                           (1, status, b""))
          self.assertTrue(reply.text)
          reply = peer.call(Message(id=2, body=self.PROTOBUF))
          self.assertEqual((reply.id, reply.status), (2, 0))
          self.assertIn(b"hello", reply.body)
    self.assertEqual(proxy.stop(), 0, proxy)
    self.assertEqual(server.stop(), 0, server)
    self.assertIn("Processed 2 request(s) in total.", server.log())


class Backend:
  """An HTTP server that answers each call with `reply`, and keeps bodies."""

  def __init__(self, content_type, reply):
    self.bodies = bodies = []

    class Handler(http.server.BaseHTTPRequestHandler):
      protocol_version = "HTTP/1.1"

      def do_POST(self):
        bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(reply)))
        self.send_header("Rpc-SeqNo", self.headers.get("Rpc-SeqNo", "0"))
        self.end_headers()
        self.wfile.write(reply)

      def log_message(self, *args):
        pass

    self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    self.port = self.server.server_address[1]
    threading.Thread(target=self.server.serve_forever, daemon=True).start()

  def stop(self):
    self.server.shutdown()
    self.server.server_close()


class Conversions(RpcProxyTest):
  """Binary, text and JSON where a message is hostile, or newer than ours."""

  PROTO = """
      syntax = "proto3";
      package strange;
      import "google/protobuf/any.proto";
      message M { int32 n = 1; google.protobuf.Any any = 2; }
      service S { rpc Do(M) returns (M); }
      """
  BINARY, TEXT, JSON = ("application/x-protobuf", "text/x-protobuf",
                        "application/x-proto3-json")
  ANY = "type.googleapis.com/google.protobuf.Any"

  def start_both(self, scheme, content_type, reply=b""):
    with open(self.path("strange.proto"), "w") as f:
      f.write(self.PROTO)
    self.descriptors = self.path("strange.pb")
    subprocess.run(
        ["protoc", "--include_imports",
         f"--descriptor_set_out={self.descriptors}",
         f"--proto_path={os.path.dirname(self.descriptors)}", "strange.proto"],
        check=True, timeout=harness.PATIENCE_S)
    backend = Backend(content_type, reply)
    self.addCleanup(backend.stop)
    return backend, self.start_proxy(f"*={scheme}://127.0.0.1:{backend.port}")

  def call(self, proxy, content_type, body):
    """The code of the reply; 0 if it succeeded."""
    connection = http.client.HTTPConnection("127.0.0.1", proxy.port,
                                            timeout=harness.PATIENCE_S)
    try:
      connection.request("POST", "/rpc/strange.S.Do", body,
                         {"Content-Type": content_type})
      reply = connection.getresponse()
      reply.read()
      return int(reply.headers.get("Rpc-Error-Code", "0"))
    finally:
      connection.close()

  @staticmethod
  def field(number, content):
    size, length = len(content), b""
    while size > 127:
      length, size = length + bytes([size & 127 | 128]), size >> 7
    return bytes([number << 3 | 2]) + length + bytes([size]) + content

  def nested_any(self, depth):
    value = b""
    for _ in range(depth):
      value = self.field(1, self.ANY.encode()) + self.field(2, value)
    return self.field(2, value)

  def test_text_that_nests(self):
    backend, proxy = self.start_both("http+pb", self.BINARY)
    for depth, code in ((5, 0), (31, 0), (32, 102), (200, 102), (9999, 102)):
      with self.subTest(depth=depth):
        text = "any {" + f"[{self.ANY}] {{" * depth + "}" * depth + "}"
        self.assertEqual(self.call(proxy, self.TEXT, text.encode()), code)
    self.assertEqual(len(backend.bodies), 2)
    self.assertEqual(proxy.stop(), 0, proxy)

  def test_json_of_nested_any(self):
    backend, proxy = self.start_both("http+proto3-json", self.JSON, b"{}")
    for depth in (5, 98, 120, 170, 3000):
      with self.subTest(depth=depth):
        code = self.call(proxy, self.BINARY, self.nested_any(depth))
        self.assertEqual(code, 0 if depth < 100 else 4)
    self.assertEqual(len(backend.bodies), 2)
    self.assertEqual(proxy.stop(), 0, proxy)

  def test_replies_that_nest(self):
    """JSON for a caller, of a reply in binary."""
    _, proxy = self.start_both("http+pb", self.BINARY, self.nested_any(2000))
    self.assertEqual(self.call(proxy, self.BINARY, b""), 0)
    self.assertNotEqual(self.call(proxy, self.JSON, b"{}"), 0)
    self.assertEqual(self.call(proxy, self.TEXT, b""), 0)
    self.assertEqual(proxy.stop(), 0, proxy)

  def test_fields_that_are_not_known(self):
    message = b"\x08\x05" + b"\xc0\x0c\x4d"
    for scheme, content_type, reply, body in (
        ("http+pb-text", self.TEXT, b"", b"n: 5"),
        ("http+proto3-json", self.JSON, b"{}", b'{"n":5}')):
      with self.subTest(scheme):
        backend, proxy = self.start_both(scheme, content_type, reply)
        self.assertEqual(self.call(proxy, self.BINARY, message), 0)
        self.assertEqual(backend.bodies, [body])


class Routes(RpcProxyTest):

  def test_methods_have_backends_of_their_own(self):
    """Calls of Relay go press, proxy, relay_server, proxy, server."""
    server = self.start_server()
    proxy_port = harness.free_port()
    relay = self.start_server(f"--forward_to=flare://127.0.0.1:{proxy_port}",
                              name="relay_server")
    proxy = self.start_server(
        f"--descriptors={self.descriptors}",
        f"--routes={ECHO}=trpc://127.0.0.1:{server.port};"
        f"*=baidu-std://127.0.0.1:{relay.port}", port=proxy_port, name=PROXY)
    press = self.press(proxy.port, ["http+pb"], "--relay_stub",
                       "--requests=100")
    self.assertEqual(press.wait(), 0, press)
    for program, calls in ((proxy, 200), (relay, 100), (server, 100)):
      self.assertEqual(program.stop(), 0, program)
      self.assertIn(f"Processed {calls} request(s) in total.", program.log())

  def test_what_has_no_route_fails(self):
    proxy = self.start_proxy(
        "example.protobuf_echo.RelayService=flare://127.0.0.1:1")
    press = self.press(proxy.port, ["trpc"], "--requests=10")
    self.assertEqual(press.wait(), 1, press)
    self.assertEqual(self.figures()["failures_by_status"], {"9": 10})

  def test_failures_of_the_backend_keep_their_code(self):
    server = self.start_server("--fail_with=1234")
    proxy = self.start_proxy(f"*=trpc://127.0.0.1:{server.port}")
    press = self.press(proxy.port, ["flare"], "--requests=10")
    self.assertEqual(press.wait(), 1, press)
    self.assertEqual(self.figures()["failures_by_status"], {"1234": 10})
    self.assertIn("Failed with configured error.", press.log())


class Faults(RpcProxyTest):

  def test_the_backend_dies_and_comes_back(self):
    server = self.start_server()
    proxy = self.start_proxy(f"*=trpc://127.0.0.1:{server.port}")
    press = self.press(proxy.port, ["flare"], "--report_interval=0.25",
                       "--qps=500")
    seen = self.next_report(press, lambda qps, bad: qps > 0 and bad == 0,
                            "calls that succeed")
    server.kill()
    seen = self.next_report(press, lambda qps, bad: qps == 0 and bad > 0,
                            "nothing but failures", seen)
    press.wait_for(rf"127\.0\.0\.1:{server.port}.*Connection refused")
    self.start_server(port=server.port)
    self.next_report(press, lambda qps, bad: qps > 0 and bad == 0,
                     "calls that succeed again", seen)
    self.assertEqual(press.stop(signal.SIGINT), 1, press)
    # Broken while they were under way (104), and not sent at all (2).
    self.assertLessEqual(set(self.figures()["failures_by_status"]),
                         {"2", "104"})
    self.assertEqual(proxy.stop(), 0, proxy)

  def test_backends_are_checked(self):
    backends = [self.start_server() for _ in range(2)]
    addresses = ",".join(f"127.0.0.1:{b.port}" for b in backends)
    proxy = self.start_proxy(
        f"*=flare://{addresses}", "--health_check=grpc:" + SERVICE,
        "--health_check_interval_ms=20", "--health_check_timeout_ms=20000")
    press = self.press(proxy.port, ["flare"], "--qps=500")
    backends[0].wait_for(r"Processed [1-9]\d* request")
    backends[0].kill()
    proxy.wait_for(
        rf"server 127.0.0.1:{backends[0].port} fails its health checks")
    self.start_server(port=backends[0].port)
    proxy.wait_for(
        rf"server 127.0.0.1:{backends[0].port} passes its health checks again")
    press.stop(signal.SIGINT)

  def test_calls_under_way_are_answered_after_sigterm(self):
    server = self.start_server("--work=sleep_fiber", "--work_us=3000000")
    proxy = self.start_proxy(f"*=flare://127.0.0.1:{server.port}")
    press = self.press(proxy.port, ["flare"], "--requests=14")

    def all_have_come():  # It says each second how many have.
      counts = re.findall(r"Processed (\d+) request\(s\) in 1", proxy.log())
      return sum(map(int, counts)) == 14

    harness.wait_until(all_have_come, f"14 calls at {proxy}")
    self.assertEqual(proxy.stop(), 0, proxy)
    self.assertEqual(press.wait(), 0, press)
    self.assertIn("Processed 14 request(s) in total.", proxy.log())


class WrongFlags(RpcProxyTest):

  def check(self, why, *flags):
    """The program refuses the flags with one line, which says why."""
    ended, log = self.run_to_end(PROXY, "--port=0", *flags)
    self.assertEqual(ended, 2, log)
    # Besides the runtime's own lines.
    lines = [line for line in log.splitlines() if not line.startswith("I")]
    self.assertEqual(len(lines), 1, log)
    self.assertIn(why, lines[0])

  def test_routes(self):
    known = f"--descriptors={self.descriptors}"
    route = "*=flare://127.0.0.1:1"
    for why, *flags in (
        ("no routes", known),
        ("route 'x': write pattern=protocol://address", known, "--routes=x"),
        ("is neither package.Service.Method", known, "--routes=a-b=flare://x"),
        ("no such service or method", known, "--routes=a.B=flare://x:1"),
        ('unknown scheme "smoke"', known, "--routes=*=smoke://127.0.0.1:1"),
        # Although nothing would go there.
        ('unknown scheme "smoke"', known,
         f"--routes={SERVICE}=flare://127.0.0.1:1;"
         "example.protobuf_echo.RelayService=flare://127.0.0.1:1;"
         "*=smoke://127.0.0.1:1"),
        ("127.0.0.1:x", known, "--routes=*=flare://127.0.0.1:x"),
        ("+", known, f"--routes={route}", "--override_nslb=list"),
        ("can't read /no/such", "--descriptors=/no/such", f"--routes={route}"),
        ("is no descriptor set", f"--descriptors={harness.PROTO_FILE}",
         f"--routes={route}"),
        ("without descriptors each route must name a method",
         f"--routes={route}"),
        ("http+proto3-json can't be spoken without --descriptors",
         f"--routes={ECHO}=flare://127.0.0.1:1",
         "--protocols=flare,http+proto3-json"),
        ("can't be spoken without --descriptors",
         f"--routes={ECHO}=http+pb-text://127.0.0.1:1")):
      with self.subTest(flags=flags):
        self.check(why, *flags)

  def test_others(self):
    right = (f"--descriptors={self.descriptors}",
             "--routes=*=flare://127.0.0.1:1")
    for why, flag in (
        ("Bad --ip or --port", "--port=65536"),
        ("Bad --ip or --port", "--ip=localhost.or.so"),
        ('unknown protocol "smoke"', "--protocols=flare,smoke"),
        ("Bad --protocols", "--protocols="),
        ("Bad --health_check: 'tcp' is no health check", "--health_check=tcp"),
        ("Bad --health_check_...: interval", "--health_check_interval_ms=0"),
        ("nonsense", "--nonsense=1"),
        ("'routes' is no flag", "routes")):
      with self.subTest(flag=flag):
        self.check(why, *right, flag)

  def test_the_port_is_in_use(self):
    with socket.socket() as taken:
      taken.bind(("127.0.0.1", 0))
      taken.listen()
      status, log = self.run_to_end(
          PROXY, f"--descriptors={self.descriptors}",
          "--routes=*=flare://127.0.0.1:1",
          "--port=%d" % taken.getsockname()[1])
    self.assertEqual(status, 1, log)
    self.assertIn("Address already in use", log)


if __name__ == "__main__":
  harness.main()
