"""The short examples (docs/examples.md) do as they say."""

import asyncio
import concurrent.futures
import contextlib
import gzip
import http.client
import http.server
import os
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import unittest
import urllib.error
import urllib.request

import unittest_xml

# Debian's websockets is for Debian's Python, which need not be the first one.
sys.path.append('/usr/lib/python3/dist-packages')

import websockets  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
TOOLS = os.path.join(os.path.dirname(os.path.dirname(HERE)), 'tools')
PATIENCE_S = 120


class Pages(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'

    def do_GET(self):
        if self.path == '/moved':
            self.send_response(302)
            self.send_header('Location', '/page')
            self.send_header('Content-Length', '0')
            self.end_headers()
            return
        body = b'hello ' * 1000
        self.send_response(200 if self.path == '/page' else 404)
        self.send_header('Content-Type', 'text/plain')
        if 'gzip' in self.headers.get('Accept-Encoding', ''):
            self.send_header('Content-Encoding', 'gzip')
            body = gzip.compress(body)
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass


class ShortTest(unittest.TestCase):

    def check(self, name, said, *arguments):
        done = subprocess.run([os.path.join(HERE, name), *arguments],
                              stdout=subprocess.PIPE, timeout=PATIENCE_S,
                              check=True)
        self.assertEqual(done.stdout.decode(), said)

    def test_fibers(self):
        self.check('fibers', 'sum of squares: 338350\n')

    def test_files(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        program = os.path.join(HERE, 'files')
        for run in 1, 2:
            said = subprocess.run([program, folder.name], check=True,
                                  stdout=subprocess.PIPE, timeout=PATIENCE_S)
            # Two fibers add them, in any order.
            self.assertEqual(sorted(said.stdout.decode().splitlines()),
                             ['apples 250'] * run + ['pears 250'] * run +
                             ['run %d' % run])

    def test_blocking_library(self):
        self.check('blocking', '20 visits\nno such table: nowhere\n')

    def test_interceptors(self):
        method = 'example.protobuf_echo.EchoService.Echo'
        self.check('auth', '%s: failed\n%s: ok\n'
                   'no token, or a wrong one\nwelcome\n' % (method, method))

    def test_long_poll(self):
        self.check('long_poll', 'no news\nanswered, 0 calls abandoned\n')

    def test_balancer(self):
        self.check('balancer', 'primary\nprimary\nstandby\n')

    def test_protocol(self):
        self.check('protocol', 'hello\n[1001] no body\n')

    def test_retries(self):
        self.check('retries', 'refuse: answered\n' * 2 + 'wait: answered\n' * 2)

    def test_discovery(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.check('discovery', 'north south west \nnorth west \nnorth \n',
                   os.path.join(folder.name, 'servers'))

    def test_gateway(self):
        self.check('gateway', ''.join(
            '%s: hello, alice\n%s: [1001] no body\n' % (protocol, protocol)
            for protocol in ('grpc', 'http+pb')))

    def test_recording(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        method = 'example.protobuf_echo.EchoService.Echo: status '
        self.check('recording', method + '0, 7 bytes\n' +
                   method + '1001, 0 bytes\n', folder.name)

    def test_tracing(self):
        done = subprocess.run([os.path.join(HERE, 'tracing')], check=True,
                              stdout=subprocess.PIPE, timeout=PATIENCE_S)
        lines = done.stdout.decode().splitlines()
        # On a slow machine spans are exported before it.
        lines.remove('hello')
        sent = 'example.protobuf_echo.EchoService/Echo, 7 bytes sent'
        self.assertEqual(lines, [
            'part: query, 0 bytes sent',
            'server: %s, asking the database' % sent, 'client: ' + sent,
            'server: ' + sent, 'client (begins the trace): ' + sent])

    def test_tls(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        subprocess.run([os.path.join(TOOLS, 'make_test_ca'), folder.name, 'ca',
                        'server', 'client'], check=True,
                       stderr=subprocess.DEVNULL)
        self.check('tls', 'refused\nhello, CN=alice,O=flare test\n', folder.name)

    # A server, and the first line that it prints.
    def serve(self, name, *arguments):
        server = subprocess.Popen([os.path.join(HERE, name), *arguments],
                                  stdout=subprocess.PIPE)
        self.addCleanup(server.stdout.close)
        self.addCleanup(server.wait)
        self.addCleanup(server.kill)
        return server, server.stdout.readline().decode().strip()

    # Pages by Python's server; `certificate`: a file, its key is beside it.
    def serve_pages(self, certificate=None):
        server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Pages)
        self.addCleanup(server.server_close)
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate + '.crt', certificate + '.key')
            server.socket = context.wrap_socket(server.socket,
                                                server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(server.shutdown)
        return '%s://127.0.0.1:%d' % ('https' if certificate else 'http',
                                      server.server_address[1])

    def test_fetch(self):
        url = self.serve_pages()
        self.check('fetch', '%s/page: 200, 6000 bytes of text/plain\n'
                   '%s/moved: 200, 6000 bytes of text/plain\n'
                   '%s/else: 404, 6000 bytes of text/plain\n'
                   'http://127.0.0.1:1: ERROR_FAIL_TO_CONNECT_SERVER\n'
                   % (url, url, url), url + '/page', url + '/moved',
                   url + '/else', 'http://127.0.0.1:1')
        with tempfile.NamedTemporaryFile() as saved:
            self.check('fetch', url + '/page: 200, 0 bytes of text/plain\n',
                       '--save=' + saved.name, url + '/page')
            self.assertEqual(saved.read(), b'hello ' * 1000)

    def test_fetch_by_tls(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        bad = ('expired', 'wrong_host', 'self_signed', 'unknown')
        subprocess.run([os.path.join(TOOLS, 'make_test_ca'), folder.name, 'ca',
                        'server', *bad], check=True, stderr=subprocess.DEVNULL)
        ca = '--ca=' + os.path.join(folder.name, 'ca.crt')

        def serve(name):
            return self.serve_pages(os.path.join(folder.name, name)) + '/page'

        url = serve('server')
        self.check('fetch', url + ': 200, 6000 bytes of text/plain\n', ca, url)
        # The system's roots don't vouch for it.
        self.check('fetch', url + ': ERROR_SSL\n', url)
        for name in bad:
            url = serve(name)
            self.check('fetch', url + ': ERROR_SSL\n', ca, url)

    def test_metrics(self):
        _, url = self.serve('metrics')

        def get(path):
            with urllib.request.urlopen(url + path, timeout=PATIENCE_S) as page:
                return page.read().decode()

        for _ in range(3):
            self.assertEqual(get('/prices/north'), '4900\n')
        with self.assertRaises(urllib.error.HTTPError) as raised:
            get('/prices/south')
        raised.exception.close()
        lines = get('/metrics').splitlines()
        for line in ('# TYPE shop_lookups_total counter',
                     'shop_lookups_total{interface="http",status="found"} 3',
                     'shop_lookups_total{interface="http",status="unknown"} 1',
                     'shop_lookups_running 0',
                     'shop_lookup_seconds_bucket{le="+Inf"} 4',
                     'shop_lookup_seconds_count 4'):
            self.assertIn(line, lines)
        [uptime] = [float(line.split()[1]) for line in lines
                    if line.startswith('shop_uptime_seconds ')]
        self.assertGreater(uptime, 0)

    # The clients are Python's websockets.
    def test_chat(self):
        server, url = self.serve('chat')
        with urllib.request.urlopen(url + '/', timeout=PATIENCE_S) as page:
            self.assertIn(b'new WebSocket', page.read())
        room = url.replace('http', 'ws') + '/room'

        async def chat():
            def enter():
                # It accepts no frame that is wrong in any way.
                return websockets.connect(room, subprotocols=['chess', 'chat'],
                                          compression='deflate')

            async with contextlib.AsyncExitStack() as members:
                one = await members.enter_async_context(enter())
                self.assertEqual(one.subprotocol, 'chat')
                self.assertEqual([each.name for each in one.extensions],
                                 ['permessage-deflate'])
                # Else the server might come to the second one's request first.
                self.assertEqual(await one.recv(), '(1 enters)')
                two = await members.enter_async_context(enter())
                self.assertEqual(await one.recv(), '(2 enters)')
                self.assertEqual(await two.recv(), '(2 enters)')
                await (await two.ping(b'are you there?'))
                # In fragments.
                await two.send(iter(['gr\u00fc', '\u00df', ' Gott']))
                for member in one, two:
                    self.assertEqual(await member.recv(),
                                     '2: gr\u00fc\u00df Gott')
                # Compressed both ways, where it is long enough.
                for text in 'to be or not ' * 60, 'short':
                    await one.send(text)
                    for member in one, two:
                        self.assertEqual(await member.recv(), '1: ' + text)
                await two.send(b'bytes')
                with self.assertRaises(websockets.ConnectionClosedError):
                    await two.recv()
                self.assertEqual(two.close_code, 1003)
                self.assertEqual(two.close_reason, 'text only')
                self.assertEqual(await one.recv(), '(2 leaves)')
                async with enter() as three:
                    await three.send('x' * 1001)
                    with self.assertRaises(websockets.ConnectionClosedError):
                        while True:
                            await three.recv()
                    self.assertEqual(three.close_code, 1009)
                self.assertEqual(await one.recv(), '(3 enters)')
                self.assertEqual(await one.recv(), '(3 leaves)')
                with self.assertRaises(websockets.InvalidStatusCode) as raised:
                    await websockets.connect(room, origin='http://evil')
                self.assertEqual(raised.exception.status_code, 403)
                server.send_signal(signal.SIGTERM)
                with self.assertRaises(websockets.ConnectionClosed):
                    await one.recv()
                self.assertEqual(one.close_code, 1001)

        asyncio.run(asyncio.wait_for(chat(), PATIENCE_S))
        self.assertIn(server.wait(PATIENCE_S), (0, -signal.SIGTERM))

    def test_deploy(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        with socket.socket() as taken:
            taken.bind(('127.0.0.1', 0))
            port = str(taken.getsockname()[1])
        arguments = (port, os.path.join(folder.name, 'door'))

        def get(path):
            with urllib.request.urlopen('http://127.0.0.1:%s%s' % (port, path),
                                        timeout=PATIENCE_S) as page:
                return page.read().decode().strip()

        older, said = self.serve('deploy', '1', *arguments)
        self.assertEqual(said, 'version 1 serves')
        self.assertEqual(get('/version'), '1')
        # A call that is in progress during the deploy, on a connection that
        # version 1 has accepted.
        slow = http.client.HTTPConnection('127.0.0.1', int(port),
                                          timeout=PATIENCE_S)
        self.addCleanup(slow.close)
        slow.request('GET', '/version')
        self.assertEqual(slow.getresponse().read(), b'1\n')
        slow.request('GET', '/slow')
        # And calls without a pause.
        over = threading.Event()

        def call():
            versions = []
            while not over.is_set():
                versions.append(get('/version'))
            return versions

        with concurrent.futures.ThreadPoolExecutor() as callers:
            fast = callers.submit(call)
            try:
                newer, said = self.serve('deploy', '2', *arguments)
                self.assertEqual(said, 'version 2 serves')
                self.assertEqual(slow.getresponse().read(), b'1\n')
                self.assertEqual(older.wait(PATIENCE_S), 0)
            finally:
                over.set()
            self.assertEqual(sorted(set(fast.result())), ['1', '2'])
        self.assertEqual(older.stdout.read().decode(),
                         'version 1 ends, 0 calls abandoned\n')
        self.assertEqual(get('/version'), '2')
        newer.send_signal(signal.SIGTERM)
        self.assertEqual(newer.wait(PATIENCE_S), 0)

    def test_sockets(self):
        server, said = self.serve('sockets')
        lines, datagrams = (('127.0.0.1', int(address.split(':')[1]))
                            for address in said.split())
        with socket.create_connection(lines, PATIENCE_S) as first, \
                socket.create_connection(lines, PATIENCE_S) as second, \
                second.makefile('r') as answers:
            # The first one's line isn't over, and holds up nobody.
            first.sendall(b'half a li')
            second.sendall(b'hello\nthe second line\n')
            self.assertEqual(answers.readline(), 'olleh\n')
            self.assertEqual(answers.readline(), 'enil dnoces eht\n')
            first.sendall(b'ne\n')
            self.assertEqual(first.recv(100), b'enil a flah\n')
            first.sendall(b'x' * 6000)
            with self.assertRaises(ConnectionError):
                if not first.recv(100):
                    raise ConnectionError('closed')
            with socket.socket(type=socket.SOCK_DGRAM) as peer:
                peer.settimeout(PATIENCE_S)
                for datagram in (b'hello', b''):
                    peer.sendto(datagram, datagrams)
                    self.assertEqual(peer.recvfrom(100), (datagram, datagrams))
            server.send_signal(signal.SIGTERM)
            self.assertEqual(answers.readline(), '')
        self.assertEqual(server.wait(PATIENCE_S), 0)

    def test_rest(self):
        server, url = self.serve('rest')
        url += '/prices/north'

        def ask(method, body=None):
            request = urllib.request.Request(url, data=body, method=method)
            try:
                with urllib.request.urlopen(request,
                                            timeout=PATIENCE_S) as reply:
                    return reply.status, reply.read().decode()
            except urllib.error.HTTPError as error:
                with error:
                    return error.code, ''

        price = '{"carrier":"north","cents":4900}\n'
        self.assertEqual(ask('GET'), (404, ''))
        self.assertEqual(ask('PUT', b'{"cents": "many"}'), (400, ''))
        self.assertEqual(ask('PUT', b'{"cents": 4900}'), (200, price))
        self.assertEqual(ask('GET'), (200, price))
        self.assertEqual(ask('POST', b'{}'), (405, ''))
        self.assertEqual(ask('DELETE'), (204, ''))
        self.assertEqual(ask('GET'), (404, ''))
        server.send_signal(signal.SIGTERM)
        self.assertIn(server.wait(PATIENCE_S), (0, -signal.SIGTERM))


if __name__ == '__main__':
    unittest_xml.main()
