"""A server for the part of Google Cloud Storage's JSON interface that gcsfs, google-cloud-storage and TensorStore use.

It keeps objects in memory, and fails by plan. `STORAGE_EMULATOR_HOST` points Python clients to it, and
`TENSORSTORE_GCS_HTTP_URL` TensorStore: `Server.environment` has both. By hand:

    python -m tests.bucket BUCKET...

Reference: https://cloud.google.com/storage/docs/json_api/v1. What a client sees was compared with
googleapis/storage-testbench (`tests/buckets/test_runs.py`).
"""

import base64
import contextlib
import dataclasses
import datetime
import email.parser
import email.policy
import hashlib
import http.server
import itertools
import json
import re
import socket
import struct
import sys
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator

import google_crc32c

CUT, LOST, FROZEN = "cut", "lost", "frozen"  # the connection ends before, or after, the work is done; no answer at all
Plan = Callable[["Asked"], int | float | str | None]


@dataclasses.dataclass(frozen=True)
class Asked:
    """A request, as a plan of failures sees it.

    number: count of requests before it.
    kind: `bucket` for the description of a bucket, `list`, `describe` or `read` for an object, or `write`, which are
        also deletions.
    bucket: name of the bucket.
    name: name of the object; the prefix, of a listing; empty for the bucket itself.
    """

    number: int
    kind: str
    bucket: str
    name: str

    @property
    def is_write(self) -> bool:
        return self.kind == "write"


@dataclasses.dataclass(frozen=True)
class Stored:
    """An object: its bytes, content type, custom metadata, generation, and the time of its creation."""

    data: bytes
    content_type: str
    metadata: dict[str, str] | None
    generation: int
    created: str

    def resource(self, bucket: str, name: str) -> dict:
        """Return the description that the interface sends."""
        found = {
            "kind": "storage#object",
            "id": f"{bucket}/{name}/{self.generation}",
            "name": name,
            "bucket": bucket,
            "generation": str(self.generation),
            "metageneration": "1",
            "contentType": self.content_type,
            "storageClass": "STANDARD",
            "size": str(len(self.data)),
            "timeCreated": self.created,
            "updated": self.created,
            "etag": base64.b64encode(str(self.generation).encode()).decode(),
            **self.hashes(),
        }
        return found | ({"metadata": self.metadata} if self.metadata else {})

    def hashes(self) -> dict[str, str]:
        """Return the checksums of the bytes, under the names of the interface."""
        crc = struct.pack(">I", google_crc32c.value(self.data))
        return {
            "md5Hash": base64.b64encode(hashlib.md5(self.data).digest()).decode(),
            "crc32c": base64.b64encode(crc).decode(),
        }


class Refused(Exception):
    """An answer with an error's status."""

    def __init__(self, status: int, message: str = ""):
        super().__init__(message)
        self.status, self.message = status, message or http.client.responses.get(status, "")


class Server(http.server.ThreadingHTTPServer):
    """The server, which runs from its creation until `close`.

    buckets: {bucket: {name: object}}.
    plan: request -> how it fails: a status, seconds of delay as a float, `CUT`, `LOST` or `FROZEN`; None answers it.
    asked: the requests so far.
    written: names of the objects that were written so far, in order.
    """

    daemon_threads = True

    def __init__(self, *buckets: str):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.buckets: dict[str, dict[str, Stored]] = {name: {} for name in buckets}
        self.uploads: dict[str, dict] = {}
        self.lock, self.numbers = threading.RLock(), itertools.count(time.time_ns() // 1000)
        self.asked: list[Asked] = []
        self.written: list[str] = []
        self.thawed = threading.Event()
        self._plan: Plan = answer_all
        self.url = f"http://127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables that point clients to this server."""
        names = ("STORAGE_EMULATOR_HOST", "TENSORSTORE_GCS_HTTP_URL")
        # TensorStore prints a line where there are no credentials.
        return dict.fromkeys(names, self.url) | {"GOOGLE_AUTH_TOKEN_FOR_TESTING": "none"}

    @property
    def plan(self) -> Plan:
        return self._plan

    @plan.setter
    def plan(self, plan: Plan) -> None:
        self._plan = plan
        self.thawed.set()  # ends what is frozen by the plan before
        self.thawed = threading.Event()

    def reset(self, *buckets: str) -> None:
        """Empty the server: buckets without objects, no failures, no record of requests."""
        with self.lock:
            self.buckets, self.uploads = {name: {} for name in buckets}, {}
            self.asked.clear()
            self.written.clear()
        self.plan = answer_all

    def close(self) -> None:
        """Stop answering."""
        self.plan = answer_all
        self.shutdown()
        self.server_close()

    def handle_error(self, request, client_address):
        """Be silent about connections that clients end."""
        if not isinstance(sys.exception() if hasattr(sys, "exception") else sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)

    def write(self, bucket: str, name: str, data: bytes, options: dict, resource: dict) -> dict:
        """Store an object if the conditions of `options` hold; return its description."""
        with self.lock:
            objects = self.objects(bucket)
            self.check(objects.get(name), options)
            now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
            kind = resource.get("contentType") or "application/octet-stream"
            made = Stored(data, kind, resource.get("metadata"), next(self.numbers), now)
            for key, value in made.hashes().items():
                if resource.get(key, value) != value:
                    raise Refused(400, f"{key} {resource[key]} does not match {value}")
            objects[name] = made
            self.written.append(name)
            return made.resource(bucket, name)

    def objects(self, bucket: str) -> dict[str, Stored]:
        """Return the objects of a bucket."""
        if bucket not in self.buckets:
            raise Refused(404, "The specified bucket does not exist.")
        return self.buckets[bucket]

    def find(self, bucket: str, name: str, options: dict) -> Stored:
        """Return an object if the conditions of `options` hold."""
        with self.lock:
            found = self.objects(bucket).get(name)
            if found is None or options.get("generation", str(found.generation)) != str(found.generation):
                raise Refused(404, f"No such object: {bucket}/{name}")
            self.check(found, options)
            return found

    @staticmethod
    def check(found: Stored | None, options: dict) -> None:
        """Raise `Refused` if an object, or its absence, does not satisfy the conditions of a request."""
        generation = found.generation if found else 0
        if int(options.get("ifGenerationMatch", generation)) != generation:
            raise Refused(412, "At least one of the pre-conditions you specified did not hold.")
        if int(options.get("ifGenerationNotMatch", -1)) == generation:
            raise Refused(304)
        if int(options.get("ifMetagenerationMatch", 1)) != 1:
            raise Refused(412)

    def listing(self, bucket: str, options: dict) -> dict:
        """Return a page of the names of a bucket."""
        prefix, delimiter = options.get("prefix", ""), options.get("delimiter", "")
        start, end = options.get("startOffset", ""), options.get("endOffset")
        after = base64.urlsafe_b64decode(options.get("pageToken", "")).decode()
        most = int(options.get("maxResults") or 1000)
        items, prefixes, last = [], [], None
        with self.lock:
            for name, stored in sorted(self.objects(bucket).items(), key=lambda entry: entry[0].encode()):
                if not name.startswith(prefix) or name < start or (end and name >= end):
                    continue
                cut = name.find(delimiter, len(prefix)) if delimiter else -1
                entry = name if cut < 0 else name[: cut + len(delimiter)]
                if (after and entry <= after) or entry in prefixes[-1:]:
                    continue
                if len(items) + len(prefixes) == most:
                    return {"nextPageToken": base64.urlsafe_b64encode(last.encode()).decode()} | _page(items, prefixes)
                last = entry
                if cut < 0:
                    items.append(stored.resource(bucket, name))
                else:
                    prefixes.append(entry)
        return _page(items, prefixes)


class _Handler(http.server.BaseHTTPRequestHandler):
    """Answers the requests of one connection."""

    protocol_version, disable_nagle_algorithm, wbufsize = "HTTP/1.1", True, -1
    server: Server

    def log_message(self, format, *arguments):
        """Be silent."""

    def do_GET(self):
        """Answer a request, or fail as the plan says."""
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        url = urllib.parse.urlsplit(self.path)
        options = dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True))
        parts = [urllib.parse.unquote(part) for part in url.path.split("/") if part]
        bucket, name = _names(parts, options)
        kind = "write"
        if self.command == "GET":
            is_read = parts[0] == "download" or options.get("alt") == "media"
            kind = "read" if is_read else {4: "bucket", 5: "list"}.get(len(parts), "describe")
        with self.server.lock:
            asked = Asked(len(self.server.asked), kind, bucket, name)
            self.server.asked.append(asked)
            plan, thawed = self.server.plan, self.server.thawed
        fault = plan(asked)
        if isinstance(fault, float):
            time.sleep(fault)
        elif isinstance(fault, int):
            self.fail(Refused(fault, "planned failure"))
            return
        if fault == FROZEN:
            thawed.wait()
        if fault in (CUT, FROZEN):
            return self.cut()
        try:
            status, headers, content = self.answer(parts, options, body)
        except Refused as refused:
            if fault == LOST:
                return self.cut()
            self.fail(refused)
            return
        if fault == LOST:
            return self.cut()
        self.send(status, headers, content)

    do_POST = do_PUT = do_DELETE = do_PATCH = do_GET

    def cut(self):
        """End the connection without a word."""
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def fail(self, refused: Refused):
        """Send an error."""
        reason = {403: "forbidden", 404: "notFound", 412: "conditionNotMet"}.get(refused.status, "backendError")
        problem = {"message": refused.message, "domain": "global", "reason": reason}
        content = json.dumps({"error": {"code": refused.status, "message": refused.message, "errors": [problem]}})
        self.send(refused.status, {}, b"" if refused.status == 304 else content.encode())

    def send(self, status: int, headers: dict[str, str], content: bytes):
        """Send an answer."""
        self.send_response(status)
        for key, value in ({"Content-Type": "application/json; charset=UTF-8"} | headers).items():
            self.send_header(key, value)
        if status not in (204, 304):
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def answer(self, parts: list[str], options: dict, body: bytes) -> tuple[int, dict[str, str], bytes]:
        """Return status, headers and content of the answer."""
        match self.command, parts:
            case "POST", ["upload", "storage", "v1", "b", bucket, "o"] if "upload_id" not in options:
                return self.begin(bucket, options, body)
            case _, ["upload", "storage", "v1", "b", _, "o"]:
                return self.resume(options["upload_id"], body)
            case "GET", ["storage", "v1", "b", bucket]:
                self.server.objects(bucket)
                return _json({"kind": "storage#bucket", "id": bucket, "name": bucket, "location": "US"})
            case "GET", ["storage", "v1", "b", bucket, "o"]:
                return _json(self.server.listing(bucket, options))
            case "GET", [*first, "storage", "v1", "b", bucket, "o", name] if first in ([], ["download"]):
                found = self.server.find(bucket, name, options)
                if first or options.get("alt") == "media":
                    return self.download(found)
                return _json(found.resource(bucket, name))
            case "DELETE", ["storage", "v1", "b", bucket, "o", name]:
                with self.server.lock:
                    found = self.server.objects(bucket).get(name)
                    self.server.check(found, options)
                    self.server.find(bucket, name, {key: options[key] for key in options if key == "generation"})
                    del self.server.buckets[bucket][name]
                return 204, {}, b""
            case "POST", ["storage", "v1", "b", bucket, "o", name, "rewriteTo", "b", other, "o", copy]:
                made = self.copy(bucket, name, other, copy, options)
                sizes = {"totalBytesRewritten": made["size"], "objectSize": made["size"]}
                return _json({"kind": "storage#rewriteResponse", "done": True, "resource": made} | sizes)
            case "POST", ["storage", "v1", "b", bucket, "o", name, "copyTo", "b", other, "o", copy]:
                return _json(self.copy(bucket, name, other, copy, options))
            case "POST", ["storage", "v1", "b", bucket, "o", name, "moveTo", "o", other]:
                with self.server.lock:
                    made = self.copy(bucket, name, bucket, other, options)
                    del self.server.buckets[bucket][name]
                return _json(made)
        raise Refused(501, f"{self.command} {self.path} is none of the requests that this server knows")

    def begin(self, bucket: str, options: dict, body: bytes) -> tuple[int, dict[str, str], bytes]:
        """Store an object that is sent in one request, or begin an upload in parts."""
        self.server.objects(bucket)
        kind = options.get("uploadType")
        if kind == "media":
            resource, data = {"name": options["name"], "contentType": self.headers.get("Content-Type")}, body
        elif kind == "multipart":
            resource, data = _related(self.headers["Content-Type"], body)
        else:
            resource = json.loads(body or b"{}")
            resource.setdefault("contentType", self.headers.get("X-Upload-Content-Type"))
            resource["name"] = resource.get("name") or options["name"]
            number = f"upload-{next(self.server.numbers)}"
            self.server.uploads[number] = {"bucket": bucket, "resource": resource, "options": options, "data": b""}
            query = urllib.parse.urlencode(options | {"upload_id": number})
            return 200, {"Location": f"{self.server.url}/upload/storage/v1/b/{bucket}/o?{query}"}, b""
        name = resource.get("name") or options["name"]
        return _json(self.server.write(bucket, name, data, options, resource))

    def resume(self, number: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
        """Add a part to an upload, tell how much of it is there, or abandon it."""
        with self.server.lock:
            upload = self.server.uploads.get(number)
            if upload is None:
                raise Refused(404, "no such upload")
            if self.command == "DELETE":
                del self.server.uploads[number]
                return 499, {}, b""
            if "made" in upload:  # the answer to the last part was lost
                return _json(upload["made"])
            given = re.fullmatch(r"bytes (?:(\d+)-\d+|\*)/(\d+|\*)", self.headers.get("Content-Range") or "bytes 0-0/*")
            if given is None:
                raise Refused(400, "Content-Range")
            first = int(given[1] or len(upload["data"]))
            if first > len(upload["data"]):
                raise Refused(503, f"bytes {len(upload['data'])} to {first} are missing")
            upload["data"] += body[len(upload["data"]) - first :]
            total = None if given[2] == "*" else int(given[2])
            if "Content-Range" in self.headers and total != len(upload["data"]):
                reached = {"Range": f"bytes=0-{len(upload['data']) - 1}"} if upload["data"] else {}
                return 308, reached, b""
            resource = upload["resource"]
            made = self.server.write(upload["bucket"], resource["name"], upload["data"], upload["options"], resource)
            upload["made"] = made
            return _json(made)

    def download(self, found: Stored) -> tuple[int, dict[str, str], bytes]:
        """Return an object's bytes, or those of the range that is asked for."""
        hashes = ",".join(f"{key.removesuffix('Hash')}={value}" for key, value in found.hashes().items())
        headers = {"Content-Type": found.content_type, "x-goog-generation": str(found.generation)}
        headers |= {"x-goog-hash": hashes, "x-goog-stored-content-length": str(len(found.data))}
        size = len(found.data)
        given = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range") or "")
        if not given or given[0] == "bytes=-":
            return 200, headers, found.data
        if given[1]:
            first, last = int(given[1]), min(int(given[2] or size), size - 1)
        else:
            first, last = max(0, size - int(given[2])), size - 1
        if first >= size or last < first:
            raise Refused(416, "The requested range cannot be satisfied.")
        return 206, headers | {"Content-Range": f"bytes {first}-{last}/{size}"}, found.data[first : last + 1]

    def copy(self, bucket: str, name: str, other: str, copy: str, options: dict) -> dict:
        """Copy an object; return the description of the copy."""
        with self.server.lock:
            wanted = {"generation": options["sourceGeneration"]} if "sourceGeneration" in options else {}
            found = self.server.find(bucket, name, wanted)
            resource = {"contentType": found.content_type, "metadata": found.metadata}
            return self.server.write(other, copy, found.data, options, resource)


def answer_all(asked: Asked) -> None:
    """Plan of a store that does not fail."""


def _names(parts: list[str], options: dict) -> tuple[str, str]:
    """Return the bucket and the object that a request names."""
    at = parts.index("b") if "b" in parts else len(parts)
    bucket, name = (*parts[at + 1 : at + 2], *parts[at + 3 : at + 4], "", "")[:2]
    return bucket, name or options.get("name") or options.get("prefix") or ""


def _page(items: list[dict], prefixes: list[str]) -> dict:
    entries = ({"items": items} if items else {}) | ({"prefixes": prefixes} if prefixes else {})
    return {"kind": "storage#objects"} | entries


def _json(content: dict) -> tuple[int, dict[str, str], bytes]:
    return 200, {}, json.dumps(content).encode()


def _related(content_type: str, body: bytes) -> tuple[dict, bytes]:
    """Return the description and the bytes of a multipart upload."""
    header = email.parser.Parser(policy=email.policy.HTTP).parsestr(f"Content-Type: {content_type}\n\n")
    mark = b"--" + header.get_boundary().encode()
    line = b"\r\n" if body.startswith(mark + b"\r\n") else b"\n"
    first, _, rest = body.removeprefix(mark + line).partition(line + mark + line)
    second, _, _ = rest.rpartition(line + mark + b"--")
    (_, described), (head, data) = (part.split(line * 2, 1) for part in (first, second))
    kind = re.search(rb"content-type: *([^\r\n]*)", head, re.IGNORECASE)
    resource = json.loads(described)
    resource.setdefault("contentType", kind and kind[1].decode())
    return resource, data


def main(buckets: list[str]) -> Iterator[str]:
    """Serve buckets until the process is interrupted; yields the lines to show."""
    server = Server(*buckets)
    yield from (f"export {name}={value}" for name, value in server.environment.items())
    with contextlib.suppress(KeyboardInterrupt):
        threading.Event().wait()
    server.close()


if __name__ == "__main__":
    for line in main(sys.argv[1:] or ["bucket"]):
        print(line, flush=True)
