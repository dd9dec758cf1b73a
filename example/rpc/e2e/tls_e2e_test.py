#!/usr/bin/python3
"""TLS on both sides, with foreign peers: `openssl s_client` and `s_server`,
curl, Python's ssl. Certificates are made by tools/make_test_ca for each run."""

import os
import re
import shutil
import socket
import ssl
import subprocess
import tempfile
import threading
import unittest
import urllib.error
import urllib.request

import grpc
import harness

MAKE_TEST_CA = os.path.join(harness.SOURCE_TREE, "tools", "make_test_ca")
PROTOCOLS = ("flare", "http+pb", "http+proto3-json", "http+pb-text",
             "baidu-std", "trpc", "bolt", "grpc")
HELLO = b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello"


class TlsTest(harness.TestCase):
  CERTIFICATES = ()  # Names of tools/make_test_ca; none: all.
  # Where each look takes a handshake, and servers act once a second.
  POLL_S = 0.1

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.ca = harness.tempfile.mkdtemp(prefix="flare_ca_")
    cls.addClassCleanup(shutil.rmtree, cls.ca, ignore_errors=True)
    subprocess.run([MAKE_TEST_CA, cls.ca, *cls.CERTIFICATES], check=True)
    cls.leave_openssl_to_itself()

  @classmethod
  def leave_openssl_to_itself(cls):
    """ThreadSanitizer sees memory that OpenSSL copies, and not the atomics by
    which OpenSSL, which isn't instrumented, hands it from thread to thread."""
    if "TSAN_OPTIONS" not in os.environ:
      return
    suppressions = os.path.join(cls.ca, "tsan_suppressions")
    with open(suppressions, "w", encoding="ascii") as file:
      file.write("called_from_lib:libcrypto.so.3\n"
                 "called_from_lib:libssl.so.3\n")
    if suppressions not in os.environ["TSAN_OPTIONS"]:
      os.environ["TSAN_OPTIONS"] += ":suppressions=" + suppressions

  def file(self, name):
    return os.path.join(self.ca, name)

  def pair(self, name):
    return (f"--tls_certificate={self.file(name + '.crt')}",
            f"--tls_key={self.file(name + '.key')}")

  def start_tls_server(self, *arguments, name="server", **options):
    return self.start_server(*self.pair(name), *arguments, **options)

  def press(self, address, *arguments, requests=20, max_pending=4):
    """Returns the output of press."""
    _, text = self.run_to_end(
        "press", f"--server_addr={address}", f"--requests={requests}",
        f"--max_pending={max_pending}", "--timeout=20000", "--body=hello",
        "--verify", "--logtostderr",
        "--flare_rpc_client_connect_timeout_ms=20000", *arguments)
    return text

  def trusting(self, *arguments):
    return (f"--tls_ca={self.file('ca.crt')}", *arguments)

  def expect_all_answered(self, text, requests=20):
    self.assertRegex(text, rf"Finished: {requests} call.* failures: 0\.")

  def context(self, client=None, version=None):
    context = ssl.create_default_context(cafile=self.file("ca.crt"))
    if client:
      context.load_cert_chain(self.file(client + ".crt"),
                              self.file(client + ".key"))
    if version:
      context.minimum_version = context.maximum_version = version
    return context

  def connect(self, server, context=None, name="localhost"):
    plain = socket.create_connection(("127.0.0.1", server.port),
                                     harness.PATIENCE_S)
    self.addCleanup(plain.close)
    return (context or self.context()).wrap_socket(plain, server_hostname=name)

  def echo(self, secure):
    """One request by HTTP; returns its reply's body."""
    secure.sendall(HELLO)
    text = b""
    while not text.endswith(b"hello"):
      data = secure.recv(65536)
      assert data, text
      text += data
    return text


  def provoke(self, server, attempt, text):
    """Repeats `attempt` until `server` logs `text`: it logs one line about
    connections in a second, and the harness's own may be that."""
    after = len(server.log())

    def logged():
      attempt()
      return re.search(text, server.log()[after:])

    harness.wait_until(logged, f"/{text}/ from {server}", poll_s=self.POLL_S)


class ServerTest(TlsTest):

  def test_access_rules_by_flags(self):
    with tempfile.TemporaryDirectory() as folder:
      rules = os.path.join(folder, "access.json")
      tokens = os.path.join(folder, "tokens")
      with open(rules, "w", encoding="ascii") as file:
        file.write('{"rules": [{"who": "identity:alice", "method": "/echo"}]}')
      with open(tokens, "w", encoding="ascii") as file:
        file.write("# callers\nalice wonder\nbob bricks\n")
      server = self.start_tls_server(f"--access_rules={rules}",
                                     f"--access_tokens={tokens}")

      def status(**headers):
        request = urllib.request.Request(
            f"https://localhost:{server.port}/echo", b"hello", headers)
        try:
          with urllib.request.urlopen(request, timeout=harness.PATIENCE_S,
                                      context=self.context()) as reply:
            return reply.status
        except urllib.error.HTTPError as refusal:
          with refusal:
            return refusal.code

      self.assertEqual(status(Authorization="Bearer wonder"), 200)
      self.assertEqual(status(Authorization="Bearer bricks"), 403)
      self.assertEqual(status(Authorization="Bearer guess"), 401)
      self.assertEqual(status(), 401)
      with open(tokens, "w", encoding="ascii") as file:
        file.write("alice\n")
      code, log = self.run_to_end("server", "--port=0",
                                  f"--access_tokens={tokens}")
      self.assertEqual(code, 2, log)
      self.assertIn(f"--access_tokens: {tokens}:1: ", log)
      code, log = self.run_to_end("server", "--port=0",
                                  "--access_rules=/no/such/file")
      self.assertEqual(code, 2, log)
      self.assertIn("--access_rules: ", log)

  def test_pages_by_tls_for_readers_with_credentials(self):
    with tempfile.TemporaryDirectory() as folder:
      file = os.path.join(folder, "readers")

      def let_in(line):
        with open(file + ".new", "w", encoding="ascii") as new:
          new.write(line + "\n")
        os.rename(file + ".new", file)

      let_in("bearer first")
      server = self.start_tls_server(
          "--flare_rpc_server_admin_address=127.0.0.1:0",
          "--flare_rpc_server_admin_tls",
          f"--flare_rpc_server_pages_credentials_file={file}")
      port = server.wait_for(r"Pages are on 127\.0\.0\.1:(\d+)\.$").group(1)

      def get(authorization):
        request = urllib.request.Request(
            f"https://localhost:{port}/metrics",
            headers={"Authorization": authorization})
        try:
          with urllib.request.urlopen(request, timeout=harness.PATIENCE_S,
                                      context=self.context()) as reply:
            return reply.status, reply.read().decode()
        except urllib.error.HTTPError as refusal:
          with refusal:
            return refusal.code, refusal.headers["WWW-Authenticate"]

      self.assertEqual(get("Bearer second"), (401, 'Bearer realm="pages"'))
      status, page = get("Bearer first")
      self.assertEqual(status, 200)
      # That of the reader before, and this one.
      self.assertRegex(page, r'flare_tls_handshakes_total{side="server",'
                       r'outcome="(full|resumed)"} [1-9]')
      self.assertTrue(page.endswith("\n"))
      let_in("bearer second")
      harness.wait_until(lambda: get("Bearer second")[0] == 200,
                         "the new credentials", poll_s=self.POLL_S)
      self.assertEqual(get("Bearer first")[0], 401)
      # In the clear nobody is answered.
      with socket.create_connection(("127.0.0.1", int(port)),
                                    harness.PATIENCE_S) as plain:
        plain.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        self.assertNotIn(b"flare_", plain.recv(65536))
      server.wait_for("the admin port, connection from .* speaks no TLS")
  """Our server and foreign clients."""

  def test_python_by_both_versions(self):
    server = self.start_tls_server()
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
      with self.connect(server, self.context(version=version)) as secure:
        self.assertTrue(self.echo(secure).startswith(b"HTTP/1.1 200"))
        self.assertEqual(secure.version(), version.name.replace("_", "."))
        # Ends both directions, in good order.
        secure.unwrap()

  def curl(self, server, size):
    """Has so many bytes echoed. Returns the status and whether they came."""
    body, echo = self.path("body"), self.path("echo")
    with open(body, "wb") as f:
      f.write(os.urandom(size))
    done = subprocess.run(
        ["curl", "-sS", "--max-time", "60", "--cacert", self.file("ca.crt"),
         "--noproxy", "*", "-H", "Expect:", "--data-binary", "@" + body,
         "-o", echo, "-w", "%{http_code}",
         f"https://localhost:{server.port}/echo"],
        capture_output=True, text=True)
    self.assertEqual(done.returncode, 0, done.stderr)
    with open(body, "rb") as sent, open(echo, "rb") as received:
      return int(done.stdout), sent.read() == received.read()

  def test_curl(self):
    server = self.start_tls_server()
    self.assertEqual(self.curl(server, 3_000_000), (200, True))
    # Larger than a message may be.
    self.assertEqual(self.curl(server, 5_000_000), (413, False))

  def test_page_over_http2(self):
    server = self.start_tls_server()
    context = self.context()
    context.set_alpn_protocols(["h2"])
    with self.connect(server, context) as secure:
      self.assertEqual(secure.selected_alpn_protocol(), "h2")
      # SETTINGS, and the head of GET https://localhost/ with the stream's end.
      head = b"\x82\x87\x84\x41\x09localhost"
      secure.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
                     b"\0\0\0\4\0\0\0\0\0"
                     b"\0\0" + bytes([len(head)]) + b"\1\5\0\0\0\1" + head)
      replies = secure.makefile("rb")
      page = b""
      while True:
        frame = replies.read(9)
        payload = replies.read(int.from_bytes(frame[:3], "big"))
        if frame[3] == 1:
          self.assertEqual(payload[:1], b"\x88")  # :status 200
        elif frame[3] == 0:
          page += payload
        if frame[3] in (0, 1) and frame[4] & 1:
          break
      self.assertIn(b"flare echo server", page)

  def test_grpcio(self):
    server = self.start_tls_server()

    def call(roots, request, method="/example.protobuf_echo.EchoService/Echo"):
      with grpc.secure_channel(f"localhost:{server.port}",
                               grpc.ssl_channel_credentials(roots)) as channel:
        return channel.unary_unary(method)(request, timeout=60)

    with open(self.file("ca.crt"), "rb") as f:
      roots = f.read()
    self.assertEqual(call(roots, b"\x0a\x05hello"), b"\x12\x05hello")
    with self.assertRaises(grpc.RpcError) as unknown:
      call(roots, b"", method="/a.B/C")
    self.assertEqual(unknown.exception.code(), grpc.StatusCode.UNIMPLEMENTED)
    # By the system's roots, which don't vouch for the server.
    with self.assertRaises(grpc.RpcError) as untrusted:
      call(None, b"")
    self.assertEqual(untrusted.exception.code(), grpc.StatusCode.UNAVAILABLE)

  def s_client(self, server, *arguments):
    done = subprocess.run(
        ["openssl", "s_client", "-connect", f"127.0.0.1:{server.port}",
         "-CAfile", self.file("ca.crt"), *arguments],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    return done.stdout + done.stderr

  def test_alpn(self):
    server = self.start_tls_server()
    for offered, chosen in (("http/1.1", "http/1.1"), ("flare", "flare"),
                            ("trpc,nonsense", "trpc")):
      self.assertIn(f"ALPN protocol: {chosen}",
                    self.s_client(server, "-alpn", offered))
    self.assertIn("No ALPN negotiated",
                  self.s_client(server, "-alpn", "nonsense"))

  def test_certificate_by_name(self):
    server = self.start_server(
        "--tls_certificate=" + ",".join(
            self.file(n + ".crt") for n in ("server", "other")),
        "--tls_key=" + ",".join(
            self.file(n + ".key") for n in ("server", "other")))
    for name in ("localhost", "other.example", "a.wild.example"):
      with self.connect(server, name=name) as secure:
        self.echo(secure)
    with self.assertRaises(ssl.SSLCertVerificationError):
      self.connect(server, name="a.b.wild.example")

  def test_resumption(self):
    server = self.start_tls_server()
    session = None
    context = self.context(version=ssl.TLSVersion.TLSv1_3)
    for resumed in (False, True):
      plain = socket.create_connection(("127.0.0.1", server.port))
      with context.wrap_socket(plain, server_hostname="localhost",
                               session=session) as secure:
        self.echo(secure)
        self.assertEqual(secure.session_reused, resumed)
        session = secure.session

  def test_no_renegotiation(self):
    server = self.start_tls_server()
    client = subprocess.run(
        ["openssl", "s_client", "-tls1_2", "-connect",
         f"127.0.0.1:{server.port}", "-CAfile", self.file("ca.crt")],
        input="R\n", capture_output=True, text=True, timeout=60)
    self.assertIn("no renegotiation", client.stdout + client.stderr)

  def test_too_old_version(self):
    server = self.start_tls_server("--tls_min_version=1.3")

    def connect():
      with self.assertRaisesRegex(ssl.SSLError, "PROTOCOL_VERSION"):
        self.connect(server, self.context(version=ssl.TLSVersion.TLSv1_2))

    self.provoke(server, connect,
                 "TLS: the peer speaks too old a version of TLS")

  def test_no_common_cipher(self):
    server = self.start_tls_server()  # Its key is of an elliptic curve.
    context = self.context(version=ssl.TLSVersion.TLSv1_2)
    context.set_ciphers("AES128-SHA")

    def connect():
      with self.assertRaisesRegex(ssl.SSLError, "HANDSHAKE_FAILURE"):
        self.connect(server, context)

    self.provoke(server, connect,
                 "TLS: the two sides have no cipher in common")

  def test_plaintext_peer(self):
    server = self.start_tls_server()

    def connect():
      with socket.create_connection(("127.0.0.1", server.port)) as plain:
        plain.sendall(HELLO)
        self.drain(plain)

    self.provoke(server, connect,
                 "the peer speaks no TLS: what it sent begins with 50 4f")

  def drain(self, plain):
    try:
      while plain.recv(4096):
        pass
    except ConnectionResetError:
      pass

  def test_tls_peer_of_a_plain_server(self):
    server = self.start_server()

    def connect():
      with self.assertRaises(OSError):  # ssl.SSLError is one.
        self.connect(server)

    self.provoke(server, connect, "the peer speaks TLS, this server doesn't")

  def test_client_certificates(self):
    server = self.start_tls_server(f"--tls_client_ca={self.file('ca.crt')}",
                                   f"--tls_crl={self.file('ca.crl')}")
    with self.connect(server, self.context("client")) as secure:
      self.echo(secure)
    for client, text in (
        (None, "the client has shown no certificate, which this server"),
        ("unknown_client", "the client's certificate is refused: its root is "
                           "unknown here"),
        ("revoked_client", "the client's certificate is refused: it is "
                           "revoked"),
        ("server", "the client's certificate is refused: it is not for this "
                   "purpose")):
      with self.subTest(client=client):
        context = self.context(client)

        def connect():
          with self.assertRaises(OSError):
            with self.connect(server, context) as secure:
              # By TLS 1.3 a client learns of it with its first read.
              secure.sendall(HELLO)
              if not secure.recv(4096):
                raise ConnectionResetError

        self.provoke(server, connect, text)

  def test_identity(self):
    server = self.start_tls_server(
        "--tell_identity", f"--tls_client_ca={self.file('ca.crt')}",
        "--tls_client_certificates=request")
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
      for client, told in (
          ("client", b"verified CN=alice,O=flare test "
                     b"spiffe://test.example/alice"),
          ("unknown_client", b"unverified CN=mallory "),
          (None, b"nobody")):
        with self.subTest(client=client, version=version):
          with self.connect(server, self.context(client, version)) as secure:
            secure.sendall(
                b"POST /rpc/example.protobuf_echo.EchoService.Echo HTTP/1.1\r\n"
                b"Host: x\r\nContent-Type: application/x-proto3-json\r\n"
                b"Content-Length: 2\r\nConnection: close\r\n\r\n{}")
            reply = b""
            while data := secure.recv(65536):
              reply += data
            self.assertIn(b'"' + told + b'"', reply.replace(b"\\/", b"/"))

  def test_half_of_a_handshake(self):
    """Neither silent peers nor those that stop keep others from being served;
    a peer that hangs up is noticed at once."""
    server = self.start_tls_server("--flare_concurrency_hint=1")
    idle = []
    for i in range(100):
      peer = socket.create_connection(("127.0.0.1", server.port))
      self.addCleanup(peer.close)
      # The beginning of a record that says it has 256 bytes.
      peer.sendall(b"\x16\x03\x01\x01\x00\x01\x00"[:i % 8])
      idle.append(peer)
    with self.connect(server) as secure:
      self.echo(secure)
    idle[7].shutdown(socket.SHUT_WR)
    idle[7].settimeout(harness.PATIENCE_S)
    self.assertEqual(idle[7].recv(100), b"")
    with self.connect(server) as secure:
      self.echo(secure)
    self.assertEqual(server.stop(), 0)

  def test_garbage_after_the_handshake(self):
    server = self.start_tls_server()

    def connect():
      with self.connect(server) as secure:
        self.echo(secure)
        raw = socket.socket(fileno=os.dup(secure.fileno()))
      with raw:
        raw.settimeout(harness.PATIENCE_S)
        raw.sendall(b"\x17\x03\x03\x00\x20" + bytes(32))
        self.drain(raw)

    self.provoke(server, connect, "TLS: .*(bad record mac|decryption failed)")
    with self.connect(server) as secure:
      self.echo(secure)

  def test_half_closed(self):
    """A peer that has said that it sends no more still gets its answer."""
    server = self.start_tls_server()
    plain = socket.create_connection(("127.0.0.1", server.port),
                                     harness.PATIENCE_S)
    self.addCleanup(plain.close)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    secure = self.context().wrap_bio(incoming, outgoing,
                                     server_hostname="localhost")

    def run(step, *arguments):
      while True:
        try:
          return step(*arguments)
        except ssl.SSLWantReadError:
          plain.sendall(outgoing.read())
          data = plain.recv(65536)
          self.assertTrue(data)
          incoming.write(data)

    run(secure.do_handshake)
    secure.write(HELLO)
    with self.assertRaises(ssl.SSLWantReadError):
      secure.unwrap()  # Queues close_notify.
    text = b""
    while not text.endswith(b"hello"):
      text += run(secure.read, 65536)

  def test_new_certificate(self):
    """Taken up without a restart; open connections stay."""
    folder = self.path("rotated")
    os.mkdir(folder)
    for name in ("server.crt", "server.key"):
      shutil.copy(self.file(name), folder)
    certificate = os.path.join(folder, "server.crt")
    key = os.path.join(folder, "server.key")
    server = self.start_server(f"--tls_certificate={certificate}",
                               f"--tls_key={key}")
    old = self.connect(server)
    first = old.getpeercert()["serialNumber"]

    def serial():
      with self.connect(server) as secure:
        self.echo(secure)
        return secure.getpeercert()["serialNumber"]

    self.assertEqual(serial(), first)
    # A broken one is refused, and the old one stays in use.
    with open(certificate + ".new", "w") as f:
      f.write("-----BEGIN CERTIFICATE-----\nnonsense\n")
    os.rename(certificate + ".new", certificate)
    harness.wait_until(
        lambda: serial() == first and "stay in use" in server.log(),
        f"a complaint of {server}", poll_s=self.POLL_S)
    # The wrong key, too.
    shutil.copy(self.file("wrong_host.crt"), certificate + ".new")
    os.rename(certificate + ".new", certificate)
    harness.wait_until(
        lambda: serial() == first and "belong to the cert" in server.log(),
        f"a complaint of {server}", poll_s=self.POLL_S)
    for name in ("server.crt", "server.key"):
      new = os.path.join(folder, name)
      shutil.copy(self.file(name.replace("server", "other")), new + ".new")
      os.rename(new + ".new", new)

    def changed():
      try:
        with self.connect(server, name="other.example"):
          return True
      except ssl.SSLCertVerificationError:
        return False

    harness.wait_until(changed, "the new certificate", poll_s=self.POLL_S)
    self.echo(old)
    old.close()


class ClientTest(TlsTest):
  """Our client, and both ends ours."""

  def test_every_protocol(self):
    server = self.start_tls_server()
    for protocol in PROTOCOLS:
      with self.subTest(protocol=protocol):
        text = self.press(f"tls+{protocol}://localhost:{server.port}",
                          *self.trusting())
        self.expect_all_answered(text)

  def test_plain_http(self):
    server = self.start_tls_server()
    address = f"tls+http://localhost:{server.port}/echo"
    self.expect_all_answered(self.press(address, *self.trusting()))
    # Nothing vouches for the server.
    refused = self.press(address)
    self.assertRegex(refused, r"Finished: 20 call.* failures: 20\.")
    self.assertIn("certificate", refused)

  def test_flare_call(self):
    server = self.start_tls_server()
    for protocol in PROTOCOLS:
      call = ("flare_call", "--timeout=20000",
              f"--server_addr=tls+{protocol}://localhost:{server.port}",
              f"--proto={harness.PROTO_FILE}",
              "--method=example.protobuf_echo.EchoService.Echo",
              '--data={"body": "secret"}')
      with self.subTest(protocol=protocol):
        self.assertEqual(self.run_to_end(*call, *self.trusting()),
                         (0, '{"body":"secret"}\n'))
        self.assertEqual(self.run_to_end(*call, "--tls_insecure_skip_verify"),
                         (0, '{"body":"secret"}\n'))
        status, text = self.run_to_end(*call)
        self.assertEqual(status, 3, text)  # Nobody vouches for the server.
        self.assertIn("certificate", text)

  def test_large_messages(self):
    server = self.start_tls_server()
    text = self.press(f"tls+flare://127.0.0.1:{server.port}",
                      *self.trusting("--body=", "--body_size=1-2000000"))
    self.expect_all_answered(text)

  def test_rotation_under_load(self):
    folder = self.path("rotated")
    os.mkdir(folder)
    for name in ("server.crt", "server.key"):
      shutil.copy(self.file(name), folder)
    certificate = os.path.join(folder, "server.crt")
    server = self.start_server(
        f"--tls_certificate={certificate}",
        f"--tls_key={os.path.join(folder, 'server.key')}")
    press = self.start(
        "press", f"--server_addr=tls+flare://localhost:{server.port}",
        "--max_pending=4", "--qps=200", "--timeout=20000",
        "--connections=short",
        "--flare_rpc_client_connect_timeout_ms=20000", *self.trusting(),
        "--report_interval=1")
    for _ in range(3):
      after = len(server.log())
      # Both files are replaced; in between they don't fit each other.
      subprocess.run([MAKE_TEST_CA, self.ca, "server"], check=True)
      for name in ("server.key", "server.crt"):
        new = os.path.join(folder, name)
        shutil.copy(self.file(name), new + ".new")
        os.rename(new + ".new", new)
      server.wait_for("again", after)
    self.assertEqual(press.stop(), 0, press)
    self.assertRegex(press.log(), r"Finished: \d+ call.* failures: 0\.")

  def failure(self, server, *arguments, host="localhost"):
    return self.press(f"tls+flare://{host}:{server.port}", *arguments,
                      requests=1, max_pending=1)

  def test_refused_certificates(self):
    for name, text in (
        ("expired", "the server's certificate is refused: it has expired"),
        ("future", "the server's certificate is refused: it is not yet valid"),
        ("wrong_host",
         "the server's certificate is refused: it is for another host"),
        ("self_signed",
         "the server's certificate is refused: it is self-signed"),
        ("unknown",
         "the server's certificate is refused: its root is unknown here"),
        ("revoked", "the server's certificate is refused: it is revoked")):
      with self.subTest(name=name):
        server = self.start_tls_server(name=name)
        more = ([f"--tls_crl={self.file('ca.crl')}"] if name == "revoked"
                else [])
        self.assertIn(text, self.failure(server, *self.trusting(*more)))
        # By default only the system's authorities are trusted.
        if name == "unknown":
          self.assertIn("its root is unknown here", self.failure(server))
          self.expect_all_answered(
              self.failure(server, "--tls_insecure_skip_verify"), 1)
        server.kill()

  def test_server_name(self):
    server = self.start_tls_server(name="other")
    self.assertIn("it is for another host",
                  self.failure(server, *self.trusting()))
    self.expect_all_answered(
        self.failure(server,
                     *self.trusting("--tls_server_name=other.example")), 1)

  def test_missing_client_certificate(self):
    server = self.start_tls_server(f"--tls_client_ca={self.file('ca.crt')}")
    self.assertIn("the server requires a client certificate",
                  self.failure(server, *self.trusting()))
    self.expect_all_answered(
        self.failure(server, *self.trusting(*self.pair("client"))), 1)

  def test_server_that_leaves_clients_without_a_certificate(self):
    """Without saying why, as servers of gRPC's core do."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(self.file("server.crt"), self.file("server.key"))
    context.load_verify_locations(self.file("ca.crt"))
    context.verify_mode = ssl.CERT_OPTIONAL
    listener = socket.create_server(("127.0.0.1", 0))
    self.addCleanup(listener.close)

    def leave():
      try:
        while True:
          peer, _ = listener.accept()
          secure = context.wrap_socket(peer, server_side=True)
          secure.recv(4096)
          secure.close()  # Which sends no close_notify.
      except OSError:
        pass

    threading.Thread(target=leave, daemon=True).start()
    text = self.press(
        f"tls+flare://localhost:{listener.getsockname()[1]}",
        *self.trusting(), requests=1, max_pending=1)
    self.assertIn("asked for a client certificate, got none", text)

  def test_wrong_key(self):
    server = self.start_tls_server()
    text = self.failure(server, *self.trusting(
        f"--tls_certificate={self.file('client.crt')}",
        f"--tls_key={self.file('server.key')}"))
    self.assertRegex(text, "the key .* doesn't belong to the certificate")
    status, text = self.run_to_end(
        "server", f"--port={harness.free_port()}", "--logtostderr",
        f"--tls_certificate={self.file('server.crt')}",
        f"--tls_key={self.file('client.key')}")
    self.assertNotEqual(status, 0)
    self.assertRegex(text, "the key .* doesn't belong to the certificate")

  def test_plain_server(self):
    server = self.start_server()
    text = self.failure(server, *self.trusting())
    self.assertIn("does it speak TLS on this port?", text)

  def test_server_that_speaks_no_tls(self):
    listener = socket.create_server(("127.0.0.1", 0))
    self.addCleanup(listener.close)

    def answer():
      try:
        while True:
          peer, _ = listener.accept()
          peer.sendall(b"220 ready\r\n")
          peer.recv(4096)
          peer.close()
      except OSError:
        pass

    threading.Thread(target=answer, daemon=True).start()
    text = self.press(
        f"tls+flare://127.0.0.1:{listener.getsockname()[1]}",
        *self.trusting(), requests=1, max_pending=1)
    self.assertIn("the peer speaks no TLS: what it sent begins with 32 32",
                  text)

  def test_openssl_server(self):
    reply = (b"HTTP/1.1 200 OK\r\nContent-Type: application/x-proto3-json\r\n"
             b"Content-Length: 16\r\n%s\r\n\r\n" + b'{"body":"hello"}')
    for version in ("-tls1_2", "-tls1_3"):
      with self.subTest(version=version):
        port = harness.free_port()
        foreign = subprocess.Popen(
            ["openssl", "s_server", "-accept", f"127.0.0.1:{port}", version,
             "-cert", self.file("server.crt"), "-key", self.file("server.key"),
             "-CAfile", self.file("ca.crt"), "-Verify", "1",
             "-verify_return_error", "-alpn", "http/1.1"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, preexec_fn=harness.die_with_parent)
        self.addCleanup(foreign.wait)
        self.addCleanup(foreign.kill)
        self.read_until(foreign, b"ACCEPT")
        press = self.start(
            "press", f"--server_addr=tls+http+proto3-json://localhost:{port}",
            "--requests=1", "--max_pending=1", "--timeout=60000",
            "--body=hello", "--verify",
            "--flare_rpc_client_connect_timeout_ms=60000",
            *self.trusting(*self.pair("client")))
        seen = self.read_until(foreign, rb'"hello"\s*}')
        self.assertIn(b"/rpc/example.protobuf_echo.EchoService.Echo", seen)
        number = re.search(rb"(?i)^Rpc-SeqNo: *\d+", seen, re.MULTILINE)[0]
        foreign.stdin.write(reply % number)
        foreign.stdin.flush()
        self.assertEqual(press.wait(), 0, press)
        self.expect_all_answered(press.log(), 1)
        foreign.kill()

  def read_until(self, process, pattern):
    text = b""
    while not re.search(pattern, text):
      data = os.read(process.stdout.fileno(), 65536)
      self.assertTrue(data, text)
      text += data
    return text


if __name__ == "__main__":
  harness.main()
