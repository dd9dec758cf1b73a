#!/usr/bin/python3
"""flare_call as people run it: against example/rpc/server over each protocol,
against the streaming example, and with all that people do wrong."""

from concurrent import futures
import http.server
import json
import os
import socket
import subprocess
import sys
import threading

import harness

# Debian's grpcio is for Debian's Python, which need not be the first one.
sys.path.append("/usr/lib/python3/dist-packages")

import grpc  # noqa: E402
from google.protobuf import descriptor_pb2  # noqa: E402

ECHO = "example.protobuf_echo.EchoService"
DEMO = "example.streaming.Demo"
PROTOCOLS = ("flare", "http+pb", "http+proto3-json", "http+pb-text",
             "baidu-std", "trpc", "bolt", "grpc")
DEMO_PROTO = os.path.join(harness.HERE, "..", "..", "streaming", "demo.proto")
FAILED, WRONG_INPUT, NOT_REACHED, TIMED_OUT = 1, 2, 3, 4


class CallTest(harness.TestCase):

  def command(self, *arguments):
    return [harness.find_binary("flare_call"),
            f"--timeout={int(harness.PATIENCE_S) * 1000}", *arguments]

  def call(self, *arguments, text=None, **options):
    """Runs it to its end; returns (exit status, stdout, stderr)."""
    if text is not None:
      options["input"] = text
    else:
      options.setdefault("stdin", subprocess.DEVNULL)
    options.setdefault("stdout", subprocess.PIPE)
    ended = subprocess.run(self.command(*arguments), **options,
                           stderr=subprocess.PIPE, encoding="utf-8",
                           timeout=2 * harness.PATIENCE_S)
    return ended.returncode, ended.stdout, ended.stderr

  def call_well(self, *arguments, text=None):
    """Runs it where nothing may fail; returns the lines of stdout."""
    status, output, errors = self.call(*arguments, text=text)
    self.assertEqual((status, errors), (0, ""))
    return output.splitlines()

  def refused(self, pattern, *arguments, status=WRONG_INPUT, text=None):
    """It must end with that status and say why in one line."""
    got, output, errors = self.call(*arguments, text=text)
    self.assertEqual((got, output), (status, ""), errors)
    self.assertRegex(errors, rf"\Aflare_call: .*{pattern}.*\n\Z")

  def descriptor_set(self, proto):
    path = self.path("set.bin")
    subprocess.run(["protoc", "--include_imports",
                    f"--descriptor_set_out={path}",
                    f"-I{os.path.dirname(proto)}", proto], check=True)
    return path


class Unary(CallTest):

  def setUp(self):
    super().setUp()
    self.server = self.start_server()
    self.proto = f"--proto={harness.PROTO_FILE}"

  def address(self, protocol="flare", port=None):
    return (f"--server_addr={protocol}://127.0.0.1:"
            f"{port or self.server.port}")

  def echo(self, *arguments, protocol="flare", method=f"{ECHO}.Echo"):
    return (self.address(protocol), self.proto, f"--method={method}",
            *arguments)

  def test_all_protocols(self):
    body = "gr\u00fc\u00dfe \"you\"\n" * 1000
    for protocol in PROTOCOLS:
      with self.subTest(protocol=protocol):
        lines = self.call_well(*self.echo(
            "--data=" + json.dumps({"body": body}), protocol=protocol))
        self.assertEqual([json.loads(line) for line in lines],
                         [{"body": body}])

  def test_ways_to_write_a_method(self):
    for method in (f"{ECHO}.Echo", f"{ECHO}/Echo", f"/{ECHO}/Echo"):
      self.assertEqual(
          self.call_well(*self.echo('--data={"body": "x"}', method=method)),
          ['{"body":"x"}'])

  def test_where_data_comes_from(self):
    self.assertEqual(self.call_well(*self.echo()), ["{}"])
    path = self.path("request.json")
    with open(path, "w", encoding="utf-8") as f:
      f.write('\n{\n  "body": "of a file"\n}\n')
    self.assertEqual(self.call_well(*self.echo("--data=@" + path)),
                     ['{"body":"of a file"}'])
    self.assertEqual(
        self.call_well(*self.echo("--data=@-"), text='{"body": "piped"}'),
        ['{"body":"piped"}'])

  def test_descriptor_set(self):
    path = self.descriptor_set(harness.PROTO_FILE)
    self.assertEqual(
        self.call_well(self.address(), f"--descriptor_set={path}",
                       f"--method={ECHO}.Echo", '--data={"body": "x"}'),
        ['{"body":"x"}'])
    self.assertEqual(self.call_well(f"--descriptor_set={path}", "--list"),
                     [ECHO, "example.protobuf_echo.RelayService"])

  def test_list_and_describe_need_no_server(self):
    self.assertEqual(self.call_well(self.proto, "--list"),
                     [ECHO, "example.protobuf_echo.RelayService"])
    text = "\n".join(self.call_well(self.proto, f"--describe={ECHO}"))
    self.assertRegex(text, r"\Aservice EchoService \{\n  rpc Echo\(")
    text = "\n".join(self.call_well(self.proto, f"--describe={ECHO}/Echo"))
    self.assertRegex(text, r"\Arpc Echo\([^}]*\nmessage EchoRequest \{\n"
                           r"  string body = 1;[^}]*\}\n\n"
                           r"message EchoResponse \{")
    for name, first in (("EchoRequest", "message EchoRequest {"),
                        ("Work", "enum Work {")):
      lines = self.call_well(self.proto,
                             f"--describe=example.protobuf_echo.{name}")
      self.assertEqual(lines[0], first)

  def test_failures_of_the_service(self):
    server = self.start_server("--fail_with=1234")
    for protocol in PROTOCOLS:
      with self.subTest(protocol=protocol):
        self.refused(r"the call has failed: .*\(1234\).*configured error",
                     self.address(protocol, server.port), self.proto,
                     f"--method={ECHO}.Echo", status=FAILED)

  def test_servers_that_are_not_there(self):
    port = harness.free_port()
    self.refused(f"STATUS_FAIL_TO_CONNECT.*{port}.*refused",
                 self.address("flare", port), self.proto,
                 f"--method={ECHO}.Echo", status=NOT_REACHED)
    with socket.socket() as silent:
      silent.bind(("127.0.0.1", 0))
      silent.listen()
      self.refused(r"STATUS_TIMEOUT \(3\)",
                   self.address("flare", silent.getsockname()[1]), self.proto,
                   f"--method={ECHO}.Echo", "--timeout=1000",
                   status=TIMED_OUT)

  def test_no_time_out(self):
    self.assertEqual(self.call_well(*self.echo("--timeout=0")), ["{}"])

  def test_bad_flags(self):
    for pattern, arguments in (
        ("--method, --list or --describe is missing", ()),
        ("exclude each other", ("--list", f"--method={ECHO}.Echo")),
        ("give --proto", ("--list",)),
        ("--proto, --descriptor_set and --reflection_addr exclude", (
            "--list", self.proto, "--descriptor_set=x")),
        ("--proto_path goes with --proto only", ("--list", "--proto_path=x")),
        ("bad address smoke://x", ("--list", "--reflection_addr=smoke://x")),
        ("--server_addr is missing", (self.proto, f"--method={ECHO}.Echo")),
        ("unknown scheme \"smoke\"", self.echo(protocol="smoke")),
        ("--timeout must not be negative", self.echo("--timeout=-1")),
        (f"{ECHO} has no method Ecko; it has: Echo",
         self.echo(method=f"{ECHO}.Ecko")),
        (f"no service a.B; known are: {ECHO}, ", self.echo(method="a.B.C")),
        ("'Echo' is no method", self.echo(method="Echo")),
        ("nothing called a.B; known services are", (
            self.proto, "--describe=a.B")),
        ("-H 'x' has no colon", self.echo("-H", "x")),
        ("-H 'grpc-x: y' can't be sent", self.echo("-H", "grpc-x: y")),
        ("-H 'x-bin: z' needs a hexadecimal", self.echo("-H", "x-bin: z")),
        ("can't read '/no/file': No such file", ("--proto=/no/file", "--list")),
        ("can't read .*: Is a directory", self.echo("--data=@/")),
        ("is no descriptor set", (
            f"--descriptor_set={harness.PROTO_FILE}", "--list"))):
      with self.subTest(pattern=pattern):
        self.refused(pattern, *arguments)

  def test_words_that_are_no_flags(self):
    status, _, errors = self.call("word")
    self.assertEqual(status, WRONG_INPUT)
    self.assertIn("'word' is no flag", errors)

  def test_bad_data(self):
    for pattern, data in (
        (r"--data isn't JSON: 1:11: expects a comma or }", '{"body":""'),
        (r"--data isn't JSON: 1:1: expects a value", "]"),
        (r"EchoRequest: 1:\d+: .*no field 'bod'", '{"bod": ""}'),
        (r"EchoRequest: 1:\d+: ", '{"workUs": -1}'),
        (r"has 2 messages.* takes one request", "{} {}")):
      with self.subTest(data=data):
        self.refused(pattern, *self.echo("--data=" + data))

  def test_bad_proto_files(self):
    path = self.path("bad.proto")
    for pattern, text in (
        (r"bad.proto: bad.proto:2:1: ", 'syntax = "proto3";\nmessag A {}\n'),
        (r"bad.proto: none.proto: File not found; --proto_path says",
         'syntax = "proto3";\nimport "none.proto";\n'),
        (r"\"B\" is not defined.*--proto_path",
         'syntax = "proto3";\nmessage A { B b = 1; }\n')):
      with self.subTest(text=text):
        with open(path, "w", encoding="utf-8") as f:
          f.write(text)
        self.refused(pattern, f"--proto={path}", "--list")

  def test_imports(self):
    os.mkdir(self.path("imports"))
    with open(self.path("imports/part.proto"), "w", encoding="utf-8") as f:
      f.write('syntax = "proto3";\nimport "google/protobuf/any.proto";\n'
              'import "flare/rpc/rpc_options.proto";\n'
              'message Part { google.protobuf.Any any = 1; }\n'
              'service S { rpc M(Part) returns (Part) {\n'
              '  option (flare.max_ongoing_requests) = 3; } }\n')
    whole = self.path("whole.proto")
    with open(whole, "w", encoding="utf-8") as f:
      f.write('syntax = "proto3";\nimport "part.proto";\n'
              'service T { rpc M(Part) returns (Part); }\n')
    self.refused("part.proto", f"--proto={whole}", "--list")
    imports = f"--proto_path={self.path('imports')}"
    self.assertEqual(
        self.call_well(f"--proto={whole}", imports, "--list"), ["T"])
    # Both files are of one folder each.
    self.assertEqual(
        self.call_well(f"--proto={self.path('imports/part.proto')},{whole}",
                       "--list"), ["S", "T"])

  def test_output_that_nobody_takes(self):
    with open("/dev/full", "w", encoding="utf-8") as full:
      status, _, errors = self.call(*self.echo(), stdout=full)
    self.assertEqual(status, FAILED)
    self.assertRegex(errors, "can't write to stdout: No space left on device")


def field(number, data):
  """A field of a message, as bytes: text, bytes or another message."""
  data = data.encode() if isinstance(data, str) else data
  size = len(data)
  varint = b""
  while size > 127:
    varint += bytes([size & 127 | 128])
    size >>= 7
  return bytes([number << 3 | 2]) + varint + bytes([size]) + data


class OldReflection(grpc.GenericRpcHandler):
  """A server by grpcio that knows v1alpha of reflection only. It gives files
  one by one, doesn't know methods by their names, and has protobuf's own files
  not at all. Its method T.M echoes."""

  VERSION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"

  def __init__(self, files):
    self.files = {file.name: file.SerializeToString() for file in files}

  def service(self, details):
    if details.method == self.VERSION:
      return grpc.stream_stream_rpc_method_handler(self.converse)
    if details.method == "/T/M":
      return grpc.unary_unary_rpc_method_handler(lambda request, _: request)
    return None

  def converse(self, requests, _):
    for request in requests:
      number, text = request[0] >> 3, request[2:].decode()
      if number == 7:
        yield field(6, field(1, field(1, "T")))
        continue
      name = "whole.proto" if number == 4 and text == "T" else text
      if name in self.files and (number == 3 or text == "T"):
        yield field(4, field(1, self.files[name]))
      else:
        yield field(7, b"\x08\x05" + field(2, "not found"))


class Reflection(CallTest):

  def test_by_the_protocols_that_have_streams(self):
    server = self.start_server()
    for protocol in ("flare", "baidu-std", "trpc", "grpc"):
      address = f"--server_addr={protocol}://127.0.0.1:{server.port}"
      with self.subTest(protocol=protocol):
        services = self.call_well(address, "--list")
        self.assertEqual(services, sorted(services))
        self.assertIn(ECHO, services)
        self.assertIn("grpc.reflection.v1.ServerReflection", services)
        self.assertEqual(
            self.call_well(address, f"--method={ECHO}/Echo",
                           '--data={"body": "hi"}'), ['{"body":"hi"}'])
        self.assertEqual(
            self.call_well(address, f"--describe={ECHO}")[0],
            "service EchoService {")
        self.assertEqual(
            self.call_well(address, f"--describe={ECHO}.Echo")[:3:2],
            ["rpc Echo(.example.protobuf_echo.EchoRequest) returns "
             "(.example.protobuf_echo.EchoResponse);", "message EchoRequest {"])
        self.refused(f"{ECHO} has no method Ecko; it has: Echo", address,
                     f"--method={ECHO}.Ecko")
        self.refused(f"server doesn't know a.B.C; its services are: {ECHO}, ",
                     address, "--method=a.B.C")
        self.refused("server doesn't know a.B", address, "--describe=a.B")

  def test_from_another_address(self):
    server = self.start_server()
    for protocol in PROTOCOLS:
      address = f"--server_addr={protocol}://127.0.0.1:{server.port}"
      with self.subTest(protocol=protocol):
        self.assertEqual(
            self.call_well(
                address, f"--method={ECHO}/Echo", '--data={"body": "hi"}',
                f"--reflection_addr=grpc://127.0.0.1:{server.port}"),
            ['{"body":"hi"}'])
        if protocol in ("flare", "baidu-std", "trpc", "grpc"):
          continue
        self.refused("reflection goes over flare, baidu-std, trpc and grpc, so "
                     "give --reflection_addr, --proto or --descriptor_set",
                     address, "--list")

  def test_servers_without_it(self):
    port = harness.free_port()
    self.refused("refused", f"--server_addr=flare://127.0.0.1:{port}",
                 "--list", status=NOT_REACHED)
    self.start("streaming/server", "--logtostderr",
               f"--address=127.0.0.1:{port}").wait_for("listens on")
    self.refused("it has no reflection, so give --reflection_addr, --proto or",
                 f"--server_addr=flare://127.0.0.1:{port}", "--list",
                 status=FAILED)

  def test_older_version_of_a_foreign_server(self):
    with open(self.path("part.proto"), "w", encoding="utf-8") as f:
      f.write('syntax = "proto3";\nimport "google/protobuf/duration.proto";\n'
              'message Part { google.protobuf.Duration time = 1; }\n')
    with open(self.path("whole.proto"), "w", encoding="utf-8") as f:
      f.write('syntax = "proto3";\nimport "part.proto";\n'
              'service T { rpc M(Part) returns (Part); }\n')
    with open(self.descriptor_set(self.path("whole.proto")), "rb") as f:
      files = descriptor_pb2.FileDescriptorSet.FromString(f.read()).file
    server = grpc.server(futures.ThreadPoolExecutor(4), handlers=[
        OldReflection(file for file in files if "google" not in file.name)])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
      address = f"--server_addr=grpc://127.0.0.1:{port}"
      self.assertEqual(self.call_well(address, "--list"), ["T"])
      self.assertEqual(
          self.call_well(address, "--method=T.M", '--data={"time": "1.5s"}'),
          ['{"time":"1.500s"}'])
      self.refused("server doesn't know U.M; its services are: T$", address,
                   "--method=U.M")
    finally:
      server.stop(None).wait()


class Metadata(CallTest):

  def test_both_ways(self):
    seen = []

    class Handler(http.server.BaseHTTPRequestHandler):
      protocol_version = "HTTP/1.1"

      def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        seen.append(self.headers)
        self.send_response(200)
        for name, value in (("Content-Type", "application/x-proto3-json"),
                            ("Rpc-SeqNo", self.headers["Rpc-SeqNo"]),
                            ("x-served-by", "north"), ("x-bin", "Af8"),
                            ("Content-Length", "2")):
          self.send_header(name, value)
        self.end_headers()
        self.wfile.write(b"{}")

      def log_message(self, *_):
        pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
      thread = threading.Thread(target=server.serve_forever)
      thread.start()
      try:
        status, output, errors = self.call(
            f"--server_addr=http+proto3-json://127.0.0.1:{server.server_port}",
            f"--proto={harness.PROTO_FILE}", f"--method={ECHO}.Echo",
            "--show_metadata", "-H", "X-Tenant: a: b", "--H=x-tenant:c",
            "-H", "t-bin: 01fF")
      finally:
        server.shutdown()
        thread.join()
    self.assertEqual((status, output), (0, "{}\n"), errors)
    self.assertEqual(seen[0].get_all("x-tenant"), ["a: b", "c"])
    self.assertEqual(seen[0]["t-bin"].rstrip("="), "Af8")
    lines = errors.lower().splitlines()
    self.assertIn("x-served-by: north", lines)
    self.assertIn("x-bin: 01ff", lines)


class Streams(CallTest):

  def setUp(self):
    super().setUp()
    port = harness.free_port()
    self.server = self.start("streaming/server", "--logtostderr",
                             f"--address=127.0.0.1:{port}")
    self.server.wait_for("listens on")
    self.port = port

  def demo(self, method, *arguments):
    return (f"--server_addr=flare://127.0.0.1:{self.port}",
            f"--proto={DEMO_PROTO}", f"--method={DEMO}.{method}", *arguments)

  def test_server_stream(self):
    self.assertEqual(self.call_well(*self.demo("Count", '--data={"value": 3}')),
                     ['{"value":"1"}', '{"value":"2"}', '{"value":"3"}'])
    self.assertEqual(self.call_well(*self.demo("Count")), [])

  def test_client_stream(self):
    lines = "".join(f'{{"value": {n}}}\n\n' for n in range(1, 1001))
    self.assertEqual(self.call_well(*self.demo("Sum"), text=lines),
                     ['{"value":"500500"}'])
    # Without the last line's end, and without a line.
    self.assertEqual(self.call_well(*self.demo("Sum"), text='{"value": 7}'),
                     ['{"value":"7"}'])
    self.assertEqual(self.call_well(*self.demo("Sum"), text=""), ["{}"])
    self.assertEqual(
        self.call_well(*self.demo("Sum", '--data={"value": 1}\n{"value":2}')),
        ['{"value":"3"}'])

  def test_conversation(self):
    """Each answer comes before the next request is written."""
    process = subprocess.Popen(
        self.command(*self.demo("Chat")), stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8",
        preexec_fn=harness.die_with_parent)
    self.addCleanup(process.kill)
    for text in ("one", "two"):
      process.stdin.write(json.dumps({"text": text}) + "\n")
      process.stdin.flush()
      self.assertEqual(json.loads(process.stdout.readline()),
                       {"text": "You said: " + text})
    output, errors = process.communicate(timeout=harness.PATIENCE_S)
    self.assertEqual((process.returncode, output, errors), (0, "", ""))

  def test_many_messages_both_ways(self):
    text = "x" * 1000
    lines = self.call_well(*self.demo("Chat"),
                           text=(json.dumps({"text": text}) + "\n") * 3000)
    self.assertEqual(len(lines), 3000)
    self.assertEqual(set(lines), {json.dumps({"text": "You said: " + text},
                                             separators=(",", ":"))})

  def test_bad_line_gives_the_call_up(self):
    self.refused(r"line 3 of stdin .*Number: 1:\d+: .*no field 'valu'",
                 *self.demo("Sum"), text='{"value":1}\n\n{"valu":1}\n')

  def test_call_that_ends_before_its_input(self):
    """It ends though somebody still holds the pipe to its stdin open."""
    reader, writer = os.pipe()
    try:
      status, output, errors = self.call(
          *self.demo("Chat", "--timeout=1000"), stdin=reader)
    finally:
      os.close(reader)
      os.close(writer)
    self.assertEqual((status, output), (TIMED_OUT, ""), errors)

  def test_failure_of_the_service(self):
    self.refused(r"\(1001\): There is nothing to count",
                 *self.demo("Count", '--data={"value": -1}'), status=FAILED)

  def test_conversation_over_each_protocol(self):
    server = self.start_server()
    for protocol in ("flare", "baidu-std", "trpc", "grpc"):
      with self.subTest(protocol=protocol):
        lines = self.call_well(
            f"--server_addr={protocol}://127.0.0.1:{server.port}",
            "--method=grpc.reflection.v1.ServerReflection.ServerReflectionInfo",
            text='{"listServices": "*"}\n{"fileByFilename": "none"}\n')
        listed, failed = map(json.loads, lines)
        self.assertIn({"name": ECHO},
                      listed["listServicesResponse"]["service"])
        self.assertIn("errorResponse", failed)

  def test_replies_are_printed_as_they_come(self):
    """The messages of a stream that has no end."""
    server = self.start_server()
    for protocol in ("flare", "baidu-std", "trpc", "grpc", "http+pb", "http+proto3-json"):
      with self.subTest(protocol=protocol):
        process = subprocess.Popen(
            self.command(f"--server_addr={protocol}://127.0.0.1:{server.port}",
                         f"--reflection_addr=grpc://127.0.0.1:{server.port}",
                         "--method=grpc.health.v1.Health.Watch"),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, encoding="utf-8",
            preexec_fn=harness.die_with_parent)
        try:
          self.assertEqual(process.stdout.readline(),
                           '{"status":"SERVING"}\n')
        finally:
          process.kill()
          process.communicate()

  def test_protocols_without_streams(self):
    server = self.start_server()
    self.refused("bolt has no streaming calls",
                 f"--server_addr=bolt://127.0.0.1:{server.port}",
                 f"--proto={DEMO_PROTO}", f"--method={DEMO}.Count",
                 status=FAILED)


if __name__ == "__main__":
  harness.main()
