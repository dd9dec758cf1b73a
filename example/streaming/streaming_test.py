"""The programs of docs/streaming.md do as it says."""

import os
import socket
import subprocess
import tempfile
import time
import unittest

import unittest_xml

HERE = os.path.dirname(os.path.abspath(__file__))
PATIENCE_S = 60
HTTP_VERSIONS = ['--http1.1', '--http2-prior-knowledge']

SAID = """\
echo
sum: 5050
1 2 3 and that is all
[1001] There is nothing to count.
You said: hello
You said: goodbye
no answer to nothing
You said: something
first: 1
"""


def accepts(path):
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(path) == 0


class StreamingTest(unittest.TestCase):

    def start(self, name):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        path = os.path.join(folder.name, 'socket')
        server = subprocess.Popen([os.path.join(HERE, name),
                                   '--address=unix:' + path])
        self.addCleanup(server.wait)
        self.addCleanup(server.kill)
        deadline = time.monotonic() + PATIENCE_S
        while not accepts(path):
            self.assertIsNone(server.poll(), 'the server did not start')
            self.assertLess(time.monotonic(), deadline, 'nobody listens')
            time.sleep(0.01)  # Between two looks.
        return path

    def check(self, name):
        path = self.start(name)
        client = subprocess.run([os.path.join(HERE, 'client'),
                                 'flare://unix:' + path],
                                stdout=subprocess.PIPE, timeout=PATIENCE_S,
                                check=True)
        self.assertEqual(client.stdout.decode(), SAID)

    def test_blocking_service(self):
        self.check('server')

    def test_service_with_futures(self):
        self.check('async_server')

    def curl(self, path, value, version):
        return subprocess.Popen(
            ['curl', '-sN', version, '--unix-socket', path, '-d',
             '{"value": "%d"}' % value, '-H', 'Content-Type: application/json',
             'http://server/example.streaming.Demo/Count'],
            stdout=subprocess.PIPE)

    def test_curl_reads_a_stream_in_json(self):
        path = self.start('server')
        for version in HTTP_VERSIONS:
            with self.curl(path, 3, version) as curl:
                self.assertEqual(
                    curl.stdout.read().decode(),
                    '{"value":"1"}\n{"value":"2"}\n{"value":"3"}\n')
            self.assertEqual(curl.returncode, 0)

    def test_curl_reads_message_by_message(self):
        path = self.start('server')
        for version in HTTP_VERSIONS:
            # One that doesn't end.
            with self.curl(path, 1 << 60, version) as curl:
                for i in range(1, 1000):
                    self.assertEqual(curl.stdout.readline().decode(),
                                     '{"value":"%d"}\n' % i)
                curl.kill()


if __name__ == '__main__':
    unittest_xml.main()
