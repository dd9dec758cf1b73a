"""The short examples (docs/examples.md) do what they say."""

import os
import signal
import subprocess
import tempfile
import unittest
import urllib.error
import urllib.request

import unittest_xml

HERE = os.path.dirname(os.path.abspath(__file__))
TOOLS = os.path.join(os.path.dirname(os.path.dirname(HERE)), 'tools')
PATIENCE_S = 120


class ShortTest(unittest.TestCase):

    def check(self, name, said, *arguments):
        done = subprocess.run([os.path.join(HERE, name), *arguments],
                              stdout=subprocess.PIPE, timeout=PATIENCE_S,
                              check=True)
        self.assertEqual(done.stdout.decode(), said)

    def test_fibers(self):
        self.check('fibers', 'sum of squares: 338350\n')

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

    def test_tls(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        subprocess.run([os.path.join(TOOLS, 'make_test_ca'), folder.name, 'ca',
                        'server', 'client'], check=True,
                       stderr=subprocess.DEVNULL)
        self.check('tls', 'refused\nhello, CN=alice,O=flare test\n', folder.name)

    def test_rest(self):
        server = subprocess.Popen([os.path.join(HERE, 'rest')],
                                  stdout=subprocess.PIPE)
        self.addCleanup(server.stdout.close)
        self.addCleanup(server.wait)
        self.addCleanup(server.kill)
        url = server.stdout.readline().decode().strip() + '/prices/north'

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
