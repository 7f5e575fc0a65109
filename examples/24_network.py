"""What a sandbox may reach: nothing but what is listed. Refusals are in the result, and the list can change.

A sandbox's own loopback is not the host's, so a service of this machine is reached through the window's proxy.
"""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from corral import Sandbox


class Greeter(BaseHTTPRequestHandler):
    """A service of this machine."""

    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"hello from the host")

    def log_message(self, *words):
        pass


service = ThreadingHTTPServer(("127.0.0.1", 0), Greeter)
threading.Thread(target=service.serve_forever, daemon=True).start()
address = f"127.0.0.1:{service.server_port}"

ASK = f"""
import urllib.request
through = urllib.request.build_opener(urllib.request.ProxyHandler({{"http": "http://127.77.0.1:3128"}}))
try:
    print(through.open("http://{address}/", timeout=10).read().decode())
except OSError as error:
    print("refused:", error)
"""

with Sandbox() as box:  # network="none" is the default
    asked = box.exec("getent hosts example.org")  # fails at once; the name is not looked up
    print("none:   ", asked.exit_code, [f"{each} ({each.rule})" for each in asked.denied])

    box.set_network([address])  # names, *.names, addresses, ranges; each with or without a port
    print("listed: ", box.run_code(ASK).stdout.strip())

    box.set_network([])  # an empty list permits nothing
    asked = box.run_code(ASK)
    print("unlisted:", asked.stdout.strip(), [f"{each} ({each.rule})" for each in asked.denied])

service.shutdown()
