"""The shop of docs/from_grpc.md, by gRPC C++ and by flare: either client calls
either server."""

import os
import socket
import subprocess
import time
import unittest

import unittest_xml
from free_ports import free_port

HERE = os.path.dirname(os.path.abspath(__file__))
PATIENCE_S = 60
SAID = b"""\
tea costs 5, 12 left
not found: no gold
cup
tea
sum: 18
"""


class FromGrpcTest(unittest.TestCase):

    def serve(self, name):
        address = '127.0.0.1:%d' % free_port()
        server = subprocess.Popen(
            [os.path.join(HERE, name), '--serve=' + address])
        self.addCleanup(server.wait)
        self.addCleanup(server.kill)
        host, port = address.split(':')
        until = time.monotonic() + PATIENCE_S
        while True:
            with socket.socket() as probe:
                if probe.connect_ex((host, int(port))) == 0:
                    return address
            self.assertIsNone(server.poll())
            self.assertLess(time.monotonic(), until)
            time.sleep(0.01)

    def test_either_client_calls_either_server(self):
        for server in ('before', 'after'):
            address = self.serve(server)
            for client in ('before', 'after'):
                with self.subTest(server=server, client=client):
                    said = subprocess.check_output(
                        [os.path.join(HERE, client), '--call=' + address],
                        timeout=PATIENCE_S)
                    self.assertEqual(said, SAID)


if __name__ == '__main__':
    unittest_xml.main()
