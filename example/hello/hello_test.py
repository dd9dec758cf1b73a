"""The programs of the README do what it says."""

import os
import signal
import socket
import subprocess
import time
import unittest
import urllib.request

import unittest_xml

HERE = os.path.dirname(os.path.abspath(__file__))
ADDRESS = ('127.0.0.1', 5570)
PATIENCE_S = 60

# Quoted by docs/http_calls.md.
NO_SUCH_METHOD = b"""\
HTTP/1.1 404 Not Found
Content-Type: application/x-proto3-json
Rpc-SeqNo: 0
Rpc-Error-Code: 10
Rpc-Error-Reason: Method [example.protobuf_echo.EchoService.Nothing] is not implemented.
Content-Length: 0

"""


def accepts():
    with socket.socket() as probe:
        return probe.connect_ex(ADDRESS) == 0


def catches(pid, number):
    """Whether the process has a handler for the signal."""
    with open('/proc/%d/status' % pid) as f:
        caught = next(line for line in f if line.startswith('SigCgt:'))
    return int(caught.split()[1], 16) >> (number - 1) & 1


class HelloTest(unittest.TestCase):

    def setUp(self):
        if accepts():
            self.skipTest('somebody else listens on port %d' % ADDRESS[1])
        self.server = subprocess.Popen([os.path.join(HERE, 'server')])
        self.addCleanup(self.stop)
        deadline = time.monotonic() + PATIENCE_S
        while not accepts():
            self.assertIsNone(self.server.poll(), 'the server did not start')
            self.assertLess(time.monotonic(), deadline, 'nobody listens')
            time.sleep(0.01)  # Between two looks.

    def stop(self):
        if self.server.poll() is None:
            self.server.kill()
        self.server.wait()

    def test_client_gets_its_words_back(self):
        client = subprocess.run([os.path.join(HERE, 'client')],
                                stdout=subprocess.PIPE, timeout=PATIENCE_S,
                                check=True)
        self.assertEqual(client.stdout, b'Hello, fibers.\n')

    def test_json_over_http_does_as_well(self):
        request = urllib.request.Request(
            'http://%s:%d/rpc/example.protobuf_echo.EchoService.Echo' % ADDRESS,
            data=b'{"body": "Hello, fibers."}',
            headers={'Content-Type': 'application/x-proto3-json'})
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as reply:
            self.assertEqual(reply.read(), b'{"body":"Hello, fibers."}')

    def test_curl_gets_what_the_document_says(self):
        calls = subprocess.run(['bash', os.path.join(HERE, 'calls.sh')],
                               stdout=subprocess.PIPE, timeout=PATIENCE_S,
                               check=True)
        json, protobuf, failure = calls.stdout.split(b'\n', 2)
        self.assertEqual(json, b'{"body":"Hello, fibers."}')
        self.assertEqual(protobuf, b'\x12\x0eHello, fibers.')
        self.assertEqual(failure.replace(b'\r', b''), NO_SUCH_METHOD)

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
