"""The programs of the README do as it says."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import unittest
import urllib.error
import urllib.request

import unittest_xml

HERE = os.path.dirname(os.path.abspath(__file__))
RPC_EXAMPLES = os.path.join(os.path.dirname(HERE), 'rpc')
ADDRESS = ('127.0.0.1', 5570)
FRONT = ('127.0.0.1', 5571)
ECHO_PORT = 5572  # For example/rpc/server, which echoes attachments, too.
PATIENCE_S = 60
# The system's, which has protobuf; this test may run in another one.
PYTHON = '/usr/bin/python3'

# Quoted by docs/http_calls.md.
NO_SUCH_METHOD = b"""\
HTTP/1.1 404 Not Found
Content-Type: application/x-proto3-json
Rpc-SeqNo: 0
Rpc-Error-Code: 10
Rpc-Error-Reason: Method [example.protobuf_echo.EchoService.Nothing] is not implemented.
Content-Length: 94

{"code":10,"message":"Method [example.protobuf_echo.EchoService.Nothing] is not implemented."}
"""


def accepts(address=ADDRESS):
    with socket.socket() as probe:
        return probe.connect_ex(address) == 0


def echo_by_json(address, fields):
    """Status and text of the reply."""
    request = urllib.request.Request(
        'http://%s:%d/rpc/example.protobuf_echo.EchoService.Echo' % address,
        data=b'{"body": "Hello, fibers."}',
        headers={'Content-Type': 'application/x-proto3-json', **fields})
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as reply:
            return reply.status, reply.read()
    except urllib.error.HTTPError as error:
        return error.code, error.headers['Rpc-Error-Reason']


def catches(pid, number):
    """Whether the process has a handler for the signal."""
    with open('/proc/%d/status' % pid) as f:
        caught = next(line for line in f if line.startswith('SigCgt:'))
    return int(caught.split()[1], 16) >> (number - 1) & 1


class HelloTest(unittest.TestCase):

    def setUp(self):
        self.server = self.start([os.path.join(HERE, 'server')], ADDRESS)

    def start(self, command, address):
        if accepts(address):
            self.skipTest('somebody else listens on port %d' % address[1])
        server = subprocess.Popen(command)
        self.addCleanup(self.stop, server)
        deadline = time.monotonic() + PATIENCE_S
        while not accepts(address):
            self.assertIsNone(server.poll(), 'the server did not start')
            self.assertLess(time.monotonic(), deadline, 'nobody listens')
            time.sleep(0.01)  # Between two looks.
        return server

    def start_echo_server(self):
        self.start([os.path.join(RPC_EXAMPLES, 'server'),
                    '--port=%d' % ECHO_PORT], ('127.0.0.1', ECHO_PORT))

    def stop(self, server):
        if server.poll() is None:
            server.kill()
        server.wait()

    def test_interceptors_wrap_calls(self):
        done = subprocess.run([os.path.join(HERE, 'intercepted')],
                              capture_output=True, timeout=PATIENCE_S,
                              check=True)
        method = 'example.protobuf_echo.EchoService.Echo of 127.0.0.1'
        self.assertEqual(done.stdout.decode().splitlines(), [
            method + ' failed', method + ' succeeded',
            'say the word', 'sesame'])

    def test_one_call_reaches_several_servers(self):
        done = subprocess.run([os.path.join(HERE, 'fan_out')],
                              capture_output=True, timeout=PATIENCE_S,
                              check=True)
        north, south, any_of_them, apple, again, one = (
            done.stdout.decode().splitlines())
        self.assertEqual([north, south, one], [
            'all from north', 'all from south', 'one from south'])
        self.assertIn(any_of_them, ('any from north', 'any from south'))
        self.assertEqual(apple, again)

    def test_calls_are_allowed_by_rules(self):
        done = subprocess.run([os.path.join(HERE, 'authorized'),
                               os.path.join(HERE, 'access.json')],
                              capture_output=True, timeout=PATIENCE_S,
                              check=True)
        self.assertEqual(done.stdout.decode().splitlines(), [
            'alice says hello',
            'bob may not call example.protobuf_echo.EchoService.Echo',
            'the token is unknown'])

    def test_calls_end_when_nobody_waits(self):
        done = subprocess.run([os.path.join(HERE, 'cancelled')],
                              capture_output=True, timeout=PATIENCE_S,
                              check=True)
        self.assertEqual(done.stdout.decode().splitlines(), [
            'sleep: ended in time', 'wait: ended in time',
            'busy: ended in time', 'shared: ended in time'])

    def test_client_gets_its_words_back(self):
        client = subprocess.run([os.path.join(HERE, 'client')],
                                stdout=subprocess.PIPE, timeout=PATIENCE_S,
                                check=True)
        self.assertEqual(client.stdout, b'Hello, fibers.\n')

    def test_metadata_travels_over_each_protocol(self):
        program = subprocess.run([os.path.join(HERE, 'metadata')],
                                 stdout=subprocess.PIPE, timeout=PATIENCE_S,
                                 check=True)
        self.assertEqual(program.stdout.decode(), ''.join(
            '%s\n'
            'hello from north-1, trace of 3 bytes\n'
            '1401: no token, or a wrong one\n'
            'it wants Bearer\n' % protocol for protocol in
            ('flare', 'http+pb', 'baidu-std', 'trpc', 'bolt')))

    def test_json_over_http_does_as_well(self):
        self.assertEqual(echo_by_json(ADDRESS, {}),
                         (200, b'{"body":"Hello, fibers."}'))

    def test_curl_gets_what_the_document_says(self):
        calls = subprocess.run(['bash', os.path.join(HERE, 'calls.sh')],
                               stdout=subprocess.PIPE, timeout=PATIENCE_S,
                               check=True)
        json, protobuf, failure = calls.stdout.split(b'\n', 2)
        self.assertEqual(json, b'{"body":"Hello, fibers."}')
        self.assertEqual(protobuf, b'\x12\x0eHello, fibers.')
        self.assertEqual(failure.replace(b'\r', b'') + b'\n', NO_SUCH_METHOD)

    def test_python_calls_over_the_flare_protocol(self):
        self.start_echo_server()
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder)
        for proto_folder, proto in ((HERE, 'flare_meta.proto'),
                                    (RPC_EXAMPLES, 'echo_service.proto')):
            subprocess.run(['protoc', '-I' + proto_folder,
                            '--python_out=' + folder, proto], check=True)
        shutil.copy(os.path.join(HERE, 'call.py'), folder)
        calls = subprocess.run([PYTHON,
                                os.path.join(folder, 'call.py'),
                                str(ECHO_PORT), 'Hello, fibers.'],
                               stdout=subprocess.PIPE, timeout=PATIENCE_S,
                               check=True)
        self.assertEqual(
            calls.stdout.decode(),
            "Hello, fibers. b'beside it'\n"
            '10 Method [example.protobuf_echo.EchoService.Nothing] is not '
            'implemented.\n')

    def check_with_echo_server(self, program, said):
        self.start_echo_server()
        done = subprocess.run([os.path.join(HERE, program),
                               'flare://127.0.0.1:%d' % ECHO_PORT,
                               '--flare_rpc_client_default_rpc_timeout_ms=30000'],
                              stdout=subprocess.PIPE, timeout=PATIENCE_S,
                              check=True)
        self.assertEqual(done.stdout.decode(), said)

    def test_calls_of_all_kinds(self):
        self.check_with_echo_server(
            'calls', 'body, and 100000 bytes beside it: aaa...\n'
            'cancelled\none\ntwo\n')

    def test_coroutines_call_side_by_side(self):
        self.check_with_echo_server('coroutines', 'one!!\ntwo!!\nthree!!\n')

    def test_channels_with_options(self):
        self.check_with_echo_server('channels', 'optional\noptional\n')

    def test_front_calls_its_backend_twice(self):
        # Without a deadline that is handed on nobody has the patience for this.
        self.start([os.path.join(HERE, 'front'),
                    '--flare_rpc_client_default_rpc_timeout_ms=600000'], FRONT)
        self.assertEqual(echo_by_json(FRONT, {}),
                         (200, b'{"body":"Hello, fibers. Hello, fibers."}'))
        # Nobody answers any more: its caller's deadline ends its calls.
        self.server.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.server.pid, os.WSTOPPED)
        for patience in ('300', '3000'):
            status, reason = echo_by_json(FRONT, {'Rpc-Timeout': patience})
            if 'backend' in reason:
                break  # It had the time to call.
        self.assertEqual(status, 500)
        self.assertIn('backend: [3] no reply', reason)

    def test_a_signal_ends_the_server_in_order(self):
        # It accepts a moment before it waits for signals.
        deadline = time.monotonic() + PATIENCE_S
        while not catches(self.server.pid, signal.SIGTERM):
            self.assertLess(time.monotonic(), deadline, 'it does not wait')
            time.sleep(0.01)  # Between two looks.
        self.server.send_signal(signal.SIGTERM)
        self.assertEqual(self.server.wait(PATIENCE_S), 0)


if __name__ == '__main__':
    unittest_xml.main()
