"""Rows of the door's table that are about HTTP: what is no request, places, callers, sizes."""

from __future__ import annotations

import gzip
import json
import zlib

from tests.support.door.made import (
    JSON,
    MIB,
    TUNE,
    Case,
    Row,
    cases,
    chunked,
    drops,
    get,
    post,
    put,
    send,
)

NOBODY = "job_" + "0" * 32


def not_http() -> dict[str, Case]:
    """What cannot be read, is too long, or is odd and harmless."""
    stream = send("POST", "/v1/tunes", Transfer_Encoding="chunked", Content_Type=JSON)
    packed = send("POST", "/v1/tunes", b"{}", Transfer_Encoding="gzip")
    begun = b"GET /healthz HTTP/1.1\r\nHost: a\r\n"
    smuggled = send(
        "POST", "/v1/tunes", Transfer_Encoding="chunked", Content_Length="4", Content_Type=JSON
    )
    return {
        **cases(400, {
            "garbage": [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 64 + b"\r\n\r\n"],
            "no version": [b"GET /healthz\r\n\r\n"],
            "no host": [b"GET /healthz HTTP/1.1\r\n\r\n"],
            "two hosts": [b"GET /healthz HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"],
            "a header without a colon": [begun + b"nonsense\r\n\r\n"],
            "a space before the colon": [b"GET /healthz HTTP/1.1\r\nHost : a\r\n\r\n"],
            "a folded NUL": [begun + b"X: \x00\r\n\r\n"],
            "a length that is none": [send("POST", "/v1/tunes", b"{}", Content_Length="-1")],
            "a length with a sign": [send("POST", "/v1/tunes", b"{}", Content_Length="+2")],
            "two lengths": [send("POST", "/v1/tunes", b"{}", Content_Length="2, 3")],
            "an encoding that is none": [packed],
            "a bad chunk": [stream + b"zz\r\n{}\r\n0\r\n\r\n"],
            "a chunk of 2^64": [stream + b"fffffffffffffffffffff\r\n{}"],
            "a length and chunks": [
                smuggled + b"2\r\n{}\r\n0\r\n\r\nGET /v1/models HTTP/1.1\r\n\r\n"
            ],
        }),
        **cases(431, {
            "a header of 64 KiB": get("/healthz", X="x" * 65_536),
            "5,000 headers": get("/healthz", **{f"X{n}": "x" for n in range(5000)}),
            "a path of 64 KiB": get("/" + "a" * 65_536),
        }),
        **cases(200, {
            "HTTP/9.9": [b"GET /healthz HTTP/9.9\r\nHost: 127.0.0.1\r\n\r\n"],
            "upgrade to a socket": get("/v1/tunes", Upgrade="websocket", Connection="Upgrade"),
            "many at once": [send("GET", "/healthz") * 50],
        }),
        **cases(403, {"HTTP/2's preface": [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"]}),
        **cases(404, {
            "a whole URL": [
                b"GET http://evil.example/healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
            ],
        }),
    }  # fmt: skip


def late() -> dict[str, Case]:
    """Those that are answered when their time is over."""
    head = send("POST", "/v1/tunes", Content_Type=JSON, Content_Length="10")
    stream = send("POST", "/v1/tunes", Content_Type=JSON, Transfer_Encoding="chunked")
    return cases(408, {
        "a body that never comes": [head],
        "half a body": [head, b"{}"],
        "a body in drops": [head, *drops(b" ", 6)],
        "chunks in drops": [stream, *drops(b"1\r\n \r\n", 6)],
        "headers that never end": [b"GET /healthz HTTP/1.1\r\nHost: a\r\n"],
        "headers in drops": [b"GET /healthz HTTP/1.1\r\n", *drops(b"X: y\r\n", 14)],
        "nothing at all": [b""],
    }, late=True)  # fmt: skip


def places() -> dict[str, Case]:
    """Paths, methods and names."""
    methods = ("PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND")
    return {
        **cases(404, {
            "nowhere": get("/v2/tunes"),
            "a double slash": get("//v1//tunes"),
            "a slash at the end": get("/v1/tunes/"),
            "%2e%2e": get("/static/%2e%2e/app.py"),
            "%2e%2e%2f": get("/static/%2e%2e%2fapp.py"),
            "..%2f": get("/static/..%2fapp.py"),
            "..%5c": get("/static/..%5capp.py"),
            "%2e%2e for a file": get("/static/%2e%2e"),
            "../ in a profile": get("/v1/profiles/%2e%2e%2f%2e%2e%2fetc%2fpasswd"),
            "putting a ../": put(b"{}", "%2e%2e%2fetc"),
            "putting a/b": put(b"{}", "a%2fb"),
            "a file with NUL": get("/static/index.html%00.js"),
            "a file that ends in NUL": get("/static/app.js%00"),
            "a file that is not there": get("/static/nothing.js"),
            "a file that is the page": get("/static/page.html"),
            "an absolute path": get("/static//etc/passwd"),
            "a job that is not there": get(f"/v1/tunes/{NOBODY}"),
            "a job of any kind that is not there": get(f"/v1/jobs/{NOBODY}"),
            "validations of nobody": get(f"/v1/tunes/{NOBODY}/validations"),
            "a label for nobody": [send("PATCH", f"/v1/jobs/{NOBODY}", b'{"label": "mine"}')],
            "a model that is not there": [send("DELETE", "/v1/models/nobodys")],
        }),
        **cases(405, {
            **{method: [send(method, "/v1/tunes")] for method in methods},
            "a method of 99 letters": [send("X" * 99, "/v1/tunes")],
        }),
        **cases(409, {
            "deleting a preset": [send("DELETE", "/v1/models/gpt3-13b")],
            "deleting a bundled profile": [send("DELETE", "/v1/profiles/h100-dgx")],
        }),
        **cases(422, {
            "..": get("/v1/profiles/.."),
            "%2e%2e alone": get("/v1/profiles/%2e%2e"),
            "%2e": [send("DELETE", "/v1/profiles/%2e")],
            "a name with NUL": get("/v1/profiles/a%00b"),
            "a name with a newline": get("/v1/profiles/a%0a"),
            "a name in another script": get("/v1/models/%ef%bd%81"),
            "a name that is no UTF-8": get("/v1/models/%ff%fe"),
            "a name of 4,000": get("/v1/models/" + "a" * 4000),
            "putting ..": put(b"{}", "%2e%2e"),
            "putting A": put(b"{}", "A"),
            "putting a..b": put(b"{}", "a..b"),
            "a model's name with a path": post(b"{}", "/v1/models?name=../x"),
            "a model without a name": post(b"{}", "/v1/models?name="),
        }, at="name"),
        **cases(422, {
            "a job that is none": get("/v1/tunes/1"),
            "a job of words": get("/v1/tunes/nonsense"),
            "a job with NUL": get("/v1/tunes/job_%00"),
            "a job with SQL": get("/v1/sweeps/'%20OR%201=1%20--"),
        }, at="job_id"),
    }  # fmt: skip


def parameters() -> dict[str, Case]:
    """Queries."""
    label = json.dumps(TUNE).encode()
    jobs = {
        "an unknown query": ("tunes?limt=5", "limt"),
        "a query of another kind": ("tunes?sort=id", "sort"),
        "a query twice": ("tunes?limit=5&limit=6", "limit"),
        "a limit of 10^9": ("tunes?limit=1000000000", "limit"),
        "a limit of 1,000": ("tunes?limit=1000", "limit"),
        "a limit of 0": ("tunes?limit=0", "limit"),
        "a limit in words": ("tunes?limit=two", "limit"),
        "a limit that is none": ("tunes?limit=%00", "limit"),
        "a state that is none": ("tunes?state=odd", "state"),
        "a model with a path": ("tunes?model=../x", "model"),
        "yesterday": ("tunes?created_from=yesterday", "created_from"),
        "a time without a zone": ("tunes?created_from=2026-01-31T12:00:00", "created_from"),
        "a 13th month": ("tunes?created_before=2026-13-31T12:00:00Z", "created_before"),
        "a kind that is none": ("jobs?kind=dance", "kind"),
        "a search of 101 letters": ("jobs?q=" + "x" * 101, "q"),
    }  # fmt: skip
    return cases(422, {
        **{name: Row(get(f"/v1/{place}"), at) for name, (place, at) in jobs.items()},
        "a cursor that is none": Row(get("/v1/tunes?cursor=%ff%fe"), "# bad-input", "no cursor"),
        "a cursor in words": Row(get("/v1/tunes?cursor=x"), "# bad-input", "no cursor"),
        "a cursor of models": Row(get("/v1/models?cursor=none"), "# bad-input", "no cursor"),
        "a key of 10,000": Row(post(label, Idempotency_Key="k" * 10_000), "Idempotency-Key"),
    })  # fmt: skip


def callers() -> dict[str, Case]:
    """Pages of other sites, and tokens that nobody has."""
    listed = "/v1/tunes"
    return {
        **cases(403, {
            "a host by another name": get(listed, Host="evil.example"),
            "a host in brackets": get(listed, Host="[::"),
            "a page of another site": get(listed, Origin="https://evil.example"),
            "a page of no site": get(listed, Origin="null"),
            "a post of another site": post(b"{}", Origin="http://127.0.0.1.evil.example"),
            "a post of a site that hides": post(b"{}", Sec_Fetch_Site="cross-site"),
            "a post of a neighbour": post(b"{}", Sec_Fetch_Site="same-site"),
        }),
        **cases(401, {
            "a token that is none": get(listed, Authorization="Bearer dt_" + "A" * 43),
            "a token of 10,000": get(listed, Authorization="Bearer " + "A" * 10_000),
            "no token": get(listed, Authorization="Bearer "),
            "a password": get(listed, Authorization="Basic YTpi"),
            "a token with SQL": get(listed, Authorization="Bearer ' OR 1=1 --"),
            "a token in Latin-1": get(listed, Authorization="Bearer \xe9"),
        }),
    }  # fmt: skip


def sizes_and_kinds() -> dict[str, Case]:
    """Bodies that are too large, or said to be no JSON."""
    bomb = b" " * (32 * MIB)
    utf_8 = 'Application/JSON; charset="UTF-8"'
    return {
        **cases(413, {
            "2 MiB": post(b" " * (2 * MIB)),
            "2 MiB in chunks": chunked([b" " * 65_536] * 32),
            "64 MiB in chunks": chunked([b" " * MIB] * 64),
            "17 MiB of profile": put(b" " * (17 * MIB)),
            "says 10^15, sends nothing": [
                send("POST", "/v1/tunes", Content_Type=JSON, Content_Length="1000000000000000")
            ],
            "says 10^19, sends nothing": [
                send("POST", "/v1/tunes", Content_Type=JSON, Content_Length="1" + "0" * 19)
            ],
            "says 2 MiB and waits to be asked": [
                send(
                    "POST", "/v1/tunes", Content_Type=JSON, Content_Length=str(2 * MIB),
                    Expect="100-continue",
                )
            ],
        }),
        **cases(415, {
            "a gzip bomb": post(gzip.compress(bomb), Content_Encoding="gzip"),
            "a deflate bomb": post(zlib.compress(bomb), Content_Encoding="deflate"),
            "br": post(b"{}", Content_Encoding="br"),
            "br after identity": post(b"{}", Content_Encoding="identity, br"),
            "gzip, twice": post(b"{}", Content_Encoding="gzip, gzip"),
            "a form": post(b"tp=4", kind="application/x-www-form-urlencoded"),
            "multipart": post(b"--x\r\n\r\n1\r\n--x--", kind="multipart/form-data; boundary=x"),
            "plain text, as forms of other sites send": post(b'{"tp": 4}', kind="text/plain"),
            "XML": post(
                b"<!DOCTYPE x [<!ENTITY e SYSTEM 'file:///etc/passwd'>]>", kind="text/xml"
            ),
            "a pickle": post(b"\x80\x04K\x01.", kind="application/x-pickle"),
            "no kind": post(b"{}", kind=""),
            "UTF-7": post(b"{}", kind="application/json; charset=utf-7"),
            "UTF-16 that says so": post(b"{}", kind="application/json; charset=utf-16"),
        }),
        **cases(422, {
            "UTF-8 that says so": post(b"[]", kind=utf_8),
            "identity": post(b"[]", Content_Encoding="identity"),
            "a body in chunks": chunked([b"[", b"1, ", b"2]"]),
        }, at="#"),
    }  # fmt: skip
