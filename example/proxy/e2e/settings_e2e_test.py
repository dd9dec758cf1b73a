#!/usr/bin/python3
"""tcp_proxy's settings: the documented file."""

import os
import re
import socket

import proxy_harness
from proxy_harness import harness

DOCUMENT = os.path.join(harness.SOURCE_TREE, "docs", "proxy.md")


class TheDocumentedFile(proxy_harness.ProxyTest):

  def documented(self):
    """The file, with this test's ports, folders and servers in place of the
    example's, and its port."""
    with open(DOCUMENT) as f:
      text = re.search(r"^```\n(# proxy\.yaml\n.*?)^```$", f.read(),
                       re.MULTILINE | re.DOTALL)[1]
    port = harness.free_port()
    self.upstream(address=self.path("app.sock"))
    for theirs, ours in (
        ("app-1.example:8080", self.upstream().address),
        ("10.0.0.2:8080", self.upstream().address),
        (":8080", f":{port}"),
        ("127.0.0.1:9090", "127.0.0.1:0"),
        ("/run/", self.folder + "/"),
        ("/var/log/proxy/", self.folder + "/"),
    ):
      self.assertIn(theirs, text)
      text = text.replace(theirs, ours)
    return text, port

  def test_it_starts(self):
    with socket.socket(socket.AF_INET6) as probe:
      try:
        probe.bind(("::1", 0))
      except OSError as error:
        self.skipTest(f"no IPv6: {error}")
    text, port = self.documented()
    proxy = self.start(proxy_harness.PROXY, "--flare_concurrency_hint=2",
                       "--config=" + self.write_file("proxy.yaml", text))
    for address in (f"0.0.0.0:{port}", f"[::]:{port}",
                    "unix:" + self.path("proxy.sock")):
      proxy.wait_for("Proxy listens on " + re.escape(address) + r"\.$")
    for family, address in (
        (socket.AF_INET, ("127.0.0.1", port)),
        (socket.AF_INET6, ("::1", port)),
        (socket.AF_UNIX, self.path("proxy.sock")),
    ):
      with socket.socket(family) as client:
        client.settimeout(proxy_harness.LIMIT_S)
        client.connect(address)
        client.sendall(b"hello")
        self.assertEqual(proxy_harness.read_exactly(client, 5), b"hello")
    self.assertEqual(proxy.stop(), 0, proxy)


if __name__ == "__main__":
  proxy_harness.main()
