#!/usr/bin/env python3
"""A small S3 server for tests, which believes nothing: it verifies every signature by an own reading of Signature Version 4,
the hash of every body, and the time of every request. Objects are kept in memory.

  s3_server.py --bucket NAME [--access-key ID] [--secret KEY] [--token TOKEN] [--region NAME] [--page N]
               [--certificate FILE --key FILE]        prints two ports, and serves until it is ended
  s3_server.py --self-test                            the verifier against signatures that AWS has published

Knows GET with ranges, PUT with If-None-Match, DELETE and ListObjectsV2, with the bucket in the path or in the host's name.

Tests speak to it by POST to "/-" on a second port, without TLS and signature: a line "faults KIND=N ..." makes it go wrong with
the next N requests that fit, "clock SECONDS" sets its clock off, "token TEXT" expects another session token, "counts" answers
with JSON: how often each verb was answered with each status, and the headers that were seen.

Kinds of faults: 429, 500, 503 (with Retry-After where RETRY=N is given), reset (the connection ends in the middle of the
answer), truncate (fewer bytes than promised), flip (a bit of an object's payload), tamper (a bit of a body on its way here),
hang (no answer), slow (a second), html (an answer that is no S3), noranges,
endless (a list that goes on and on). "put-503" and so on: for one verb only."""
import argparse
import calendar
import collections
import email.utils
import hashlib
import hmac
import http.server
import json
import re
import ssl
import sys
import threading
import time
import urllib.parse
import xml.sax.saxutils

EMPTY_HASH = hashlib.sha256(b"").hexdigest()
ALLOWED_SKEW = 15 * 60


class Refused(Exception):
    def __init__(self, status, code, message="", more=""):
        super().__init__(code)
        self.status, self.code, self.message, self.more = status, code, message, more


def encoded(text, keeps_slashes=False):
    return urllib.parse.quote(text, safe="-._~" + ("/" if keeps_slashes else ""))


def canonical_request(verb, raw_path, raw_query, headers, signed, payload_hash):
    """As the documentation has it, from what came over the wire."""
    pairs = []
    for part in raw_query.split("&") if raw_query else []:
        name, _, value = part.partition("=")
        pairs.append((encoded(urllib.parse.unquote(name)), encoded(urllib.parse.unquote(value))))
    query = "&".join(f"{name}={value}" for name, value in sorted(pairs))
    path = encoded(urllib.parse.unquote(raw_path), keeps_slashes=True) or "/"
    lines = "".join(f"{name}:{' '.join(headers[name].split())}\n" for name in signed)
    return "\n".join([verb, path, query, lines, ";".join(signed), payload_hash])


def signature(secret, day, region, time_text, canonical):
    key = ("AWS4" + secret).encode()
    for part in (day, region, "s3", "aws4_request"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    text = "\n".join(["AWS4-HMAC-SHA256", time_text, f"{day}/{region}/s3/aws4_request",
                      hashlib.sha256(canonical.encode()).hexdigest()])
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


class Bucket:
    """What all connections share."""

    def __init__(self, wish):
        self.wish, self.lock, self.objects, self.written = wish, threading.Lock(), {}, {}
        self.faults, self.counts, self.seen = collections.Counter(), collections.Counter(), collections.Counter()
        self.clock, self.retry_after, self.token, self.endless = 0, 0, wish.token, 0

    def now(self):
        return time.time() + self.clock

    def takes_fault(self, kind, verb):
        with self.lock:
            for name in (kind, f"{verb.lower()}-{kind}"):
                if self.faults[name] > 0:
                    self.faults[name] -= 1
                    return True
        return False

    def order(self, line):
        word, *rest = line.split()
        with self.lock:
            if word == "faults":
                for text in rest:
                    name, _, number = text.partition("=")
                    if name == "RETRY":
                        self.retry_after = int(number)
                    else:
                        self.faults[name] = int(number)
            elif word == "clock":
                self.clock = int(rest[0])
            elif word == "token":
                self.token = rest[0]
            elif word == "wipe":
                self.objects.clear()
            return json.dumps({**self.counts, **self.seen, "objects": len(self.objects)})


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    disable_nagle_algorithm = True

    def log_message(self, *_):
        pass

    # -- answers -------------------------------------------------------------------------------------------------------

    def answer(self, status, body=b"", headers=()):
        bucket = self.server.bucket
        with bucket.lock:
            bucket.counts[f"{self.command} {status}"] += 1
        self.send_response_only(status)
        self.send_header("Date", email.utils.formatdate(bucket.now(), usegmt=True))
        for name, value in headers:
            self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        short = 200 <= status < 300 and body and self.command == "GET"
        if short and (bucket.takes_fault("reset", "GET") or bucket.takes_fault("truncate", "GET")):
            self.wfile.write(body[:len(body) // 2])
            self.close_connection = True
        else:
            self.wfile.write(body)
        self.wfile.flush()

    def refuse(self, refused):
        text = (f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{refused.code}</Code>'
                f"<Message>{xml.sax.saxutils.escape(refused.message or refused.code)}</Message>{refused.more}</Error>")
        headers = [("Content-Type", "application/xml")]
        if refused.status == 503 and self.server.bucket.retry_after:
            headers.append(("Retry-After", str(self.server.bucket.retry_after)))
        self.answer(refused.status, text.encode(), headers)

    # -- requests ------------------------------------------------------------------------------------------------------

    def serve(self):
        length = int(self.headers.get("Content-Length", 0))
        body = self.rfile.read(length)
        if self.path == "/-":
            answer = self.server.bucket.order(body.decode()).encode()
            self.send_response_only(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)
            return
        bucket = self.server.bucket
        try:
            if bucket.takes_fault("hang", self.command):
                time.sleep(3600)
            if bucket.takes_fault("slow", self.command):
                time.sleep(1)
            for status, code in ((429, "TooManyRequests"), (500, "InternalError"), (503, "SlowDown")):
                if bucket.takes_fault(str(status), self.command):
                    raise Refused(status, code)
            if bucket.takes_fault("html", self.command):
                self.answer(200, b"<html><body>Welcome</body></html>")
                return
            if body and bucket.takes_fault("tamper", self.command):
                body = body[:-1] + bytes([body[-1] ^ 1])
            self.verify(body)
            name, query = self.address()
            {"GET": self.get, "PUT": self.put, "DELETE": self.delete}[self.command](name, query, body)
        except Refused as refused:
            self.refuse(refused)

    do_GET = do_PUT = do_DELETE = do_POST = serve

    def verify(self, body):
        bucket = self.server.bucket
        found = re.fullmatch(r"AWS4-HMAC-SHA256 Credential=([^/]+)/(\d{8})/([^/]+)/([^/]+)/aws4_request, ?"
                             r"SignedHeaders=([^,]+), ?Signature=([0-9a-f]{64})", self.headers.get("Authorization", ""))
        if not found:
            raise Refused(403, "AccessDenied", "no signature of version 4")
        key, day, region, service, names, given = found.groups()
        headers = {name.lower(): value for name, value in self.headers.items()}
        signed = names.split(";")
        if region != bucket.wish.region or service != "s3":
            raise Refused(400, "AuthorizationHeaderMalformed", f"the region '{region}' is wrong",
                          f"<Region>{bucket.wish.region}</Region>")
        if key != bucket.wish.access_key:
            raise Refused(403, "InvalidAccessKeyId")
        must = {"host"} | {name for name in headers if name.startswith("x-amz-")} | {"x-amz-date", "x-amz-content-sha256"}
        if signed != sorted(signed) or not must <= set(signed) or not set(signed) <= set(headers):
            raise Refused(403, "AccessDenied", "headers that were not signed")
        time_text = headers["x-amz-date"]
        then = calendar.timegm(time.strptime(time_text, "%Y%m%dT%H%M%SZ"))
        if not time_text.startswith(day) or abs(then - bucket.now()) > ALLOWED_SKEW:
            raise Refused(403, "RequestTimeTooSkewed", "the difference between the times is too large")
        payload_hash = headers["x-amz-content-sha256"]
        path, _, query = self.path.partition("?")
        canonical = canonical_request(self.command, path, query, headers, signed, payload_hash)
        if not hmac.compare_digest(given, signature(bucket.wish.secret, day, region, time_text, canonical)):
            raise Refused(403, "SignatureDoesNotMatch", "the signature is another one")
        if headers.get("x-amz-security-token", "") != bucket.token:
            raise Refused(400 if bucket.token else 403, "ExpiredToken" if bucket.token else "InvalidToken")
        if payload_hash == "UNSIGNED-PAYLOAD":
            if not bucket.wish.certificate:
                raise Refused(403, "AccessDenied", "an unsigned body, and no TLS")
        elif hashlib.sha256(body).hexdigest() != payload_hash:
            raise Refused(400, "XAmzContentSHA256Mismatch", "the body is another one than was signed")
        with bucket.lock:
            bucket.seen["signed bodies"] += bool(body) and payload_hash != "UNSIGNED-PAYLOAD"
            bucket.seen["unsigned bodies"] += bool(body) and payload_hash == "UNSIGNED-PAYLOAD"
            bucket.seen["ranges"] += "range" in headers
            bucket.seen["conditions"] += "if-none-match" in headers

    def address(self):
        """The object's name, "" for the bucket, and the query."""
        path, _, query = self.path.partition("?")
        path = urllib.parse.unquote(path).lstrip("/")
        bucket = self.server.bucket.wish.bucket
        if self.headers.get("Host", "").startswith(bucket + "."):
            name = path
            with self.server.bucket.lock:
                self.server.bucket.seen["virtual hosts"] += 1
        else:
            first, _, name = path.partition("/")
            if first != bucket:
                raise Refused(404, "NoSuchBucket", "the specified bucket does not exist")
        return name, dict(urllib.parse.parse_qsl(query, keep_blank_values=True))

    def get(self, name, query, _body):
        bucket = self.server.bucket
        if not name:
            return self.list_objects(query)
        with bucket.lock:
            data = bucket.objects.get(name)
            written = bucket.written.get(name)
        if data is None:
            raise Refused(404, "NoSuchKey")
        headers = [("ETag", f'"{hashlib.md5(data).hexdigest()}"'),
                   ("Last-Modified", email.utils.formatdate(written, usegmt=True))]
        if bucket.takes_fault("flip", "GET"):
            at = len(data) // 2
            data = data[:at] + bytes([data[at] ^ 4]) + data[at + 1:]
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if not wanted or bucket.takes_fault("noranges", "GET"):
            return self.answer(200, data, headers)
        first, last = int(wanted[1]), min(int(wanted[2] or len(data)), len(data) - 1)
        if first > last:
            raise Refused(416, "InvalidRange")
        return self.answer(206, data[first:last + 1], headers + [("Content-Range", f"bytes {first}-{last}/{len(data)}")])

    def put(self, name, _query, body):
        bucket = self.server.bucket
        with bucket.lock:
            if self.headers.get("If-None-Match") == "*" and name in bucket.objects:
                raise Refused(412, "PreconditionFailed")
            bucket.objects[name] = body
            bucket.written[name] = bucket.now()
        self.answer(200, b"", [("ETag", f'"{hashlib.md5(body).hexdigest()}"')])

    def delete(self, name, _query, _body):
        with self.server.bucket.lock:
            self.server.bucket.objects.pop(name, None)
        self.answer(204)

    def list_objects(self, query):
        bucket = self.server.bucket
        if query.get("list-type") != "2":
            raise Refused(400, "InvalidArgument")
        with bucket.lock:
            names = sorted((name, len(data), bucket.written[name]) for name, data in bucket.objects.items()
                           if name.startswith(query.get("prefix", "")))
        if bucket.takes_fault("endless", "GET"):
            names = [(f"{query.get('prefix', '')}-{bucket.endless}", 1, 0), ("~", 1, 0)]
            bucket.endless += 1
            query = {"max-keys": "1"}
        # A token with what has to be encoded in a query.
        after = query.get("continuation-token", "").removeprefix("+/= &")
        names = [one for one in names if one[0] > after]
        page = names[:min(bucket.wish.page, int(query.get("max-keys", 1000)))]
        text = ['<?xml version="1.0" encoding="UTF-8"?>\n<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">',
                f"<Name>{bucket.wish.bucket}</Name><KeyCount>{len(page)}</KeyCount>",
                f"<IsTruncated>{'true' if len(page) < len(names) else 'false'}</IsTruncated>"]
        if len(page) < len(names):
            token = xml.sax.saxutils.escape("+/= &" + page[-1][0])
            text.append(f"<NextContinuationToken>{token}</NextContinuationToken>")
        for name, size, written in page:
            modified = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(written))
            text.append(f"<Contents><Key>{xml.sax.saxutils.escape(name)}</Key><LastModified>{modified}</LastModified>"
                        f"<Size>{size}</Size></Contents>")
        self.answer(200, "".join(text + ["</ListBucketResult>"]).encode(), [("Content-Type", "application/xml")])


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, *_):
        pass  # a client that has gone


def self_test():
    """Signatures from Amazon's documentation of S3, "Signature Calculations: Transferring Payload in a Single Chunk"."""
    secret, day, when = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "20130524", "20130524T000000Z"
    host = {"host": "examplebucket.s3.amazonaws.com", "x-amz-date": when}
    put_hash = hashlib.sha256(b"Welcome to Amazon S3.").hexdigest()
    for verb, path, query, more, payload_hash, expected in (
            ("GET", "/test.txt", "", {"range": "bytes=0-9"}, EMPTY_HASH,
             "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"),
            ("PUT", "/test%24file.text", "",
             {"date": "Fri, 24 May 2013 00:00:00 GMT", "x-amz-storage-class": "REDUCED_REDUNDANCY"}, put_hash,
             "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd"),
            ("GET", "/", "lifecycle", {}, EMPTY_HASH, "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"),
            ("GET", "/", "max-keys=2&prefix=J", {}, EMPTY_HASH,
             "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7")):
        headers = {**host, **more, "x-amz-content-sha256": payload_hash}
        canonical = canonical_request(verb, path, query, headers, sorted(headers), payload_hash)
        found = signature(secret, day, "us-east-1", when, canonical)
        if found != expected:
            print(f"{verb} {path}?{query}: found {found}, expected {expected}")
            return 1
    print("4 passed, 0 failed")
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bucket", default="blocks")
    parser.add_argument("--access-key", default="AKIATEST")
    parser.add_argument("--secret", default="secret/of+the=test")
    parser.add_argument("--token", default="")
    parser.add_argument("--region", default="eu-west-1")
    parser.add_argument("--page", type=int, default=1000)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--certificate")
    parser.add_argument("--key")
    parser.add_argument("--self-test", action="store_true")
    wish = parser.parse_args()
    if wish.self_test:
        return self_test()
    server = Server(("127.0.0.1", wish.port), Handler)
    server.bucket = Bucket(wish)
    if wish.certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(wish.certificate, wish.key)
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    orders = Server(("127.0.0.1", 0), Handler)
    orders.bucket = server.bucket
    threading.Thread(target=orders.serve_forever, daemon=True).start()
    print(server.server_address[1], orders.server_address[1], flush=True)
    server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
