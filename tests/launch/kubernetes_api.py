"""A server that speaks the part of the Kubernetes API by which kubectl creates, looks up and deletes a JobSet."""

import contextlib
import http.server
import json
import pathlib
import threading
from collections.abc import Iterator
from typing import Any

GROUP, VERSION = "jobset.x-k8s.io", "v1alpha2"
API = f"{GROUP}/{VERSION}"


class Server(http.server.ThreadingHTTPServer):
    """The server, on a free port of this machine.

    stored: the JobSets, {name: manifest}.
    requests: method and path of each request that changes something.
    has_jobsets: whether the JobSet controller is installed.
    """

    def __init__(self, has_jobsets: bool = True):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.stored: dict[str, dict] = {}
        self.requests: list[str] = []
        self.has_jobsets = has_jobsets

    @contextlib.contextmanager
    def serving(self, folder: pathlib.Path) -> Iterator[pathlib.Path]:
        """Serve within the context, which is a config file for kubectl in the folder."""
        thread = threading.Thread(target=self.serve_forever, daemon=True)
        thread.start()
        path = folder / "kubeconfig"
        path.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "clusters": [{"name": "it", "cluster": {"server": f"http://127.0.0.1:{self.server_port}"}}],
                    "contexts": [{"name": "it", "context": {"cluster": "it", "user": "me"}}],
                    "users": [{"name": "me", "user": {}}],
                    "current-context": "it",
                }
            )
        )
        try:
            yield path
        finally:
            self.shutdown()
            self.server_close()
            thread.join()

    def discovery(self) -> dict[str, Any]:
        """What kubectl asks for before each command, {path: answer}."""
        group = {"groupVersion": API, "version": VERSION}
        kind = {"group": GROUP, "version": VERSION, "kind": "JobSet"}
        resource = {"name": "jobsets", "singularName": "jobset", "namespaced": True, "kind": "JobSet"}
        # By this kubectl learns that the server rejects unknown fields.
        patch = {
            "parameters": [{"name": "fieldValidation", "in": "query", "schema": {"type": "string"}}],
            "x-kubernetes-group-version-kind": kind,
            "responses": {},
        }
        return {
            "/api": {"kind": "APIVersions", "versions": ["v1"]},
            "/api/v1": {"kind": "APIResourceList", "groupVersion": "v1", "resources": []},
            "/apis": {
                "kind": "APIGroupList",
                "groups": [{"name": GROUP, "versions": [group], "preferredVersion": group}] if self.has_jobsets else [],
            },
            f"/apis/{API}": {
                "kind": "APIResourceList",
                "groupVersion": API,
                "resources": [resource | {"verbs": ["create", "delete", "get", "list", "watch"]}],
            },
            "/openapi/v3": {"paths": {f"apis/{API}": {"serverRelativeURL": "/openapi/v3/jobset"}}},
            "/openapi/v3/jobset": {
                "openapi": "3.0.0",
                "info": {"title": "JobSet", "version": VERSION},
                "paths": {f"/apis/{API}/namespaces/{{namespace}}/jobsets/{{name}}": {"patch": patch}},
            },
        }


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *_) -> None:
        pass

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        name = path.rpartition("/")[2]
        found = self.server.discovery().get(path) or self.server.stored.get(name)
        self._answer(200, found) if found else self._refuse(404, "NotFound", f'jobsets "{name}" not found')

    def do_POST(self) -> None:
        self.server.requests.append(f"POST {self.path}")
        made = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        name = made["metadata"]["name"]
        if name in self.server.stored:
            self._refuse(409, "AlreadyExists", f'jobsets "{name}" already exists')
        else:
            self.server.stored[name] = made
            self._answer(201, made)

    def do_DELETE(self) -> None:
        options = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or "{}")
        self.server.requests.append(f"DELETE {self.path} {options['propagationPolicy']}")
        name = self.path.partition("?")[0].rpartition("/")[2]
        self.server.stored.pop(name)
        self._answer(200, {"kind": "Status", "apiVersion": "v1", "status": "Success", "details": {"name": name}})

    def _refuse(self, code: int, reason: str, message: str) -> None:
        status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code}
        self._answer(code, status | {"reason": reason, "message": message})

    def _answer(self, code: int, value: Any) -> None:
        data = json.dumps(value).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
