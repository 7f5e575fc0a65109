"""A git server over HTTP, to be run inside a sandbox: below /private a name and a password are asked for."""

import base64
import http.server
import os
import shutil
import subprocess
import sys

NAME, PASSWORD = "ann", "open-sesame-12"
GIT = shutil.which("git") or "git"
"""The system's, whatever is put on PATH later."""


class Handler(http.server.BaseHTTPRequestHandler):
    """Passes everything to git's own CGI program."""

    folder = sys.argv[2] if len(sys.argv) > 2 else "."

    def do_GET(self) -> None:
        if self.path.startswith("/private/") and not self._is_known():
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="git"')
            self.end_headers()
            return
        path, _, query = self.path.partition("?")
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        env = os.environ | {
            "GIT_PROJECT_ROOT": self.folder,
            "GIT_HTTP_EXPORT_ALL": "1",
            "REMOTE_USER": NAME,
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "REQUEST_METHOD": self.command,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "CONTENT_LENGTH": str(len(body)),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
        }
        answer = subprocess.run([GIT, "http-backend"], input=body, env=env, stdout=subprocess.PIPE).stdout
        head, _, content = answer.partition(b"\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n"))
        self.send_response(int(headers.pop("Status", "200 OK").split()[0]))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    do_POST = do_GET  # noqa: N815 - the names are those of http.server

    def _is_known(self) -> bool:
        word = base64.b64encode(f"{NAME}:{PASSWORD}".encode()).decode()
        return self.headers.get("Authorization") == f"Basic {word}"


if __name__ == "__main__":
    http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
