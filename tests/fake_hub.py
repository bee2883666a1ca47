"""A model hub of one's own: an HTTP server in a thread that answers what huggingface_hub asks."""

import hashlib
import json
import re
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

COMMIT = "0123456789abcdef0123456789abcdef01234567"
API = re.compile(r"/api/models/(?P<id>[^/]+/[^/]+)/(?P<kind>revision|tree)/(?P<revision>[^/?]+)")
FILE = re.compile(r"/(?P<id>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<path>.+)")


class FakeHub:
    """`add` a folder under an id; `requests` holds (method, path, range header, bytes sent) of every answer."""

    def __init__(self):
        self.folders = {}
        self.errors = {}
        """id → (HTTP status, X-Error-Code or None): what the files of this repository answer with."""
        self.hidden = {}
        """id → HTTP status that the repository itself answers with."""
        self.requests = []

    def add(self, id_, folder):
        self.folders[id_] = folder
        return id_

    def sent(self, suffix):
        """(method, range header, bytes) of all answers about files that end so."""
        found = [(path.split("?")[0], (method, range_, size)) for method, path, range_, size in self.requests]
        return [answer for path, answer in found if path.endswith(suffix)]

    @contextmanager
    def installed(self, monkeypatch, cache):
        """Running, and what huggingface_hub asks, with an empty cache."""
        from huggingface_hub import constants

        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr("huggingface_hub.utils.get_token", lambda: None)
        with self.running() as address:
            monkeypatch.setattr(constants, "ENDPOINT", address)
            monkeypatch.setattr("huggingface_hub.hf_api.api.endpoint", address)
            template = address + "/{repo_id}/resolve/{revision}/{filename}"
            monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
            yield self

    @contextmanager
    def running(self):
        """Gives the address."""
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                hub.answer(self)

            do_HEAD = do_GET

            def log_message(self, *_):
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            server.server_close()
            thread.join()

    def answer(self, handler):
        range_ = handler.headers.get("Range")
        status, headers, body = self._answer(handler.path, range_)
        sent = len(body) if handler.command == "GET" else 0
        self.requests.append((handler.command, handler.path, range_, sent))
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        if handler.command == "GET":
            handler.wfile.write(body)

    def _answer(self, path, range_):
        asked = API.match(path) or FILE.match(path)
        if asked is None:
            return 404, {}, b""
        id_ = asked["id"]
        if id_ in self.hidden:
            return self.hidden[id_], {}, b""
        if id_ not in self.folders:
            return 401, {"X-Error-Code": "RepoNotFound"}, b""
        if asked["revision"] not in ("main", COMMIT):
            return 404, {"X-Error-Code": "RevisionNotFound"}, b""
        folder = self.folders[id_]
        if "kind" in asked.groupdict():
            files = [file for file in sorted(folder.rglob("*")) if file.is_file()]
            names = {file.relative_to(folder).as_posix(): file.stat().st_size for file in files}
            info = {"id": id_, "sha": COMMIT, "siblings": [{"rfilename": name} for name in names]}
            tree = [{"type": "file", "path": name, "size": size, "oid": name} for name, size in names.items()]
            body = info if asked["kind"] == "revision" else tree
            return 200, {"Content-Type": "application/json"}, json.dumps(body).encode()
        if id_ in self.errors:
            status, code = self.errors[id_]
            return status, {"X-Error-Code": code} if code else {}, b""
        file = folder / asked["path"]
        if not file.is_file():
            return 404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT}, b""
        content = file.read_bytes()
        headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{hashlib.sha1(content).hexdigest()}"', "Accept-Ranges": "bytes"}
        if range_ is None:
            return 200, headers, content
        first, last = map(int, range_.removeprefix("bytes=").split("-"))
        part = content[first : last + 1]
        span = f"bytes {first}-{first + len(part) - 1}/{len(content)}"
        return 206, headers | {"Content-Range": span}, part
