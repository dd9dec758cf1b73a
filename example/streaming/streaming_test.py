"""The programs of docs/streaming.md do what it says."""

import os
import socket
import subprocess
import tempfile
import time
import unittest

import unittest_xml

HERE = os.path.dirname(os.path.abspath(__file__))
PATIENCE_S = 60

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

    def check(self, name):
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
        client = subprocess.run([os.path.join(HERE, 'client'),
                                 'flare://unix:' + path],
                                stdout=subprocess.PIPE, timeout=PATIENCE_S,
                                check=True)
        self.assertEqual(client.stdout.decode(), SAID)

    def test_blocking_service(self):
        self.check('server')

    def test_service_with_futures(self):
        self.check('async_server')


if __name__ == '__main__':
    unittest_xml.main()
