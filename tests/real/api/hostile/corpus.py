"""Requests that no friend sends: name -> (what is sent, statuses that answer it well)."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tests.real.api.hostile.exchange import Part
from tests.real.api.hostile.made import (
    JSON,
    MIB,
    TUNE,
    chunked,
    deep,
    drops,
    layouts,
    number,
    post,
    scale,
    send,
    tune,
)
from tests.real.api.hostile.measured import bad_measurements


class Hostile(NamedTuple):
    """A request and the statuses that are right for it; ``slow``: answered by a deadline."""

    parts: Sequence[Part]
    statuses: frozenset[int]
    slow: bool = False


def corpus() -> dict[str, Hostile]:
    """All of them."""
    made: dict[str, Hostile] = {}
    groups = (
        (_not_json(), {400}), (_bad_numbers(), {422}), (_bad_structures(), {422}),
        (_beyond_bounds(), {422}), (_bad_texts(), {422}), (_bad_parameters(), {422}),
        (bad_measurements(), {422}), (_too_large(), {413}),
        (_bad_kinds(), {415}), (_unknown_places(), {404}), (_bad_names(), {404, 422}),
        (_not_http(), {400}), (_wrong_methods(), {405}), (_strangers(), {401, 403}),
    )  # fmt: skip
    for group, statuses in groups:
        for name, parts in group.items():
            assert name not in made, name
            made[name] = Hostile(parts, frozenset(statuses))
    return made | _own() | _slow()


def _not_json() -> Mapping[str, Sequence[Part]]:
    return {
        "empty body": post(b""),
        "no body": [send("POST", "/v1/tunes", Content_Type=JSON)],
        "a brace": post(b"{"),
        "trailing comma": post(b'{"tp": 1,}'),
        "single quotes": post(b"{'tp': 1}"),
        "two values": post(b"{} {}"),
        "bad UTF-8": post(b'{"model": "\xff\xfe"}'),
        "overlong UTF-8": post(b'{"model": "\xc0\xaf"}'),
        "surrogates as UTF-8": post(b'{"model": "\xed\xa0\x80"}'),
        "cut in a character": post(b'{"model": "\xe2\x82'),
        "UTF-16": post('{"tp": 1}'.encode("utf-16")),
        "control character": post(b'{"model": "\x01"}'),
        "NUL byte": post(b'{"model": "\x00"}'),
        "a comment": post(b'/* */ {"tp": 1}'),
        "leading zero": number("01"),
        "hexadecimal": number("0x10"),
        "plus sign": number("+1"),
        "gzip without saying so": post(gzip.compress(b"{}")),
        "random bytes": post(bytes(range(256)) * 64),
        "a model that is no JSON": post(b"{", "/v1/models?name=mine"),
        "a what-if that is no JSON": post(b"[", "/v1/what-ifs"),
        "a sweep that is no JSON": post(b"]", "/v1/sweeps"),
        "a simulation that is no JSON": post(b"\x80", "/v1/simulations"),
        "layouts that are no JSON": post(b"{'gpus': 8}", "/v1/layouts"),
    }


def _bad_numbers() -> Mapping[str, Sequence[Part]]:
    return {
        "NaN": number("NaN"),
        "Infinity": number("Infinity"),
        "-Infinity": number("-Infinity"),
        "1e999": number("1e999"),
        "-1e999": number("-1e999"),
        "NaN in a what-if": number("NaN", "/v1/what-ifs"),
        "NaN in a simulation": number("NaN", "/v1/simulations"),
        "NaN in a sweep": number("NaN", "/v1/sweeps"),
        "NaN in a model": post(b'{"model_type": "llama", "x": NaN}', "/v1/models?name=mine"),
        "1e999 in a model": post(b'{"model_type": "llama", "x": [1e999]}', "/v1/models?name=mine"),
        "5,000 digits": number("9" * 5000),
        "-5,000 digits": number("-" + "9" * 5000),
        "100,000 digits": number("1" * 100_000),
        "5,000 decimals": number("0." + "1" * 5000),
        "a float": number("4.0"),
        "an exponent": number("4e0"),
    }  # fmt: skip


def _bad_structures() -> Mapping[str, Sequence[Part]]:
    doubled = json.dumps(TUNE)[:-1] + ', "tp": 8}'
    return {
        "a duplicate key": post(doubled.encode()),
        "a duplicate key, escaped": post(b'{"tp": 1, "\\u0074p": 1}'),
        "a duplicate key in a model": post(b'{"a": {"b": 1, "b": 2}}', "/v1/models?name=mine"),
        "nested 33 deep": post(deep(b"[", b"]", 40)),
        "nested 5,000 deep": post(deep(b"[", b"]", 5000)),
        "nested 400,000 deep": post(deep(b"[", b"]", 400_000)),
        "objects 100,000 deep": post(deep(b'{"a":', b"}", 100_000)),
        "a model 100,000 deep": post(deep(b"[", b"]", 100_000), "/v1/models?name=mine"),
        "NUL in text": post(b'{"model": "a\\u0000"}'),
        "half a surrogate pair": post(b'{"model": "\\ud800"}'),
        "half a pair in a model": post(b'{"x": "\\udfff"}', "/v1/models?name=mine"),
        "a list": post(b"[]"),
        "a string": post(b'"tune"'),
        "null": post(b"null"),
        "an unknown key": tune(objective="measure"),
        "the key of a file": tune(evidence="/etc/passwd"),
        "__proto__": tune(__proto__={"admin": True}),
        "349,000 objects": post(b'{"model":[' + b"{}," * 349_000 + b"1]}"),
        "349,000 objects in a model": post(
            b'{"a":[' + b"{}," * 349_000 + b"1]}", "/v1/models?name=mine"
        ),
        "100,000 keys": post(json.dumps({f"k{n}": 0 for n in range(60_000)}).encode()),
        "a text for a number": tune(tp="4"),
        "true for a number": tune(tp=True),
        "a list for a number": tune(tp=[4]),
    }  # fmt: skip


def _beyond_bounds() -> Mapping[str, Sequence[Part]]:
    return {
        "0 ranks": tune(tp=0),
        "-1 ranks": tune(tp=-1),
        "2^63 ranks": tune(tp=2**63),
        "ranks beyond any": tune(tp=10**9),
        "10^12 sequences": tune(micro_batch_size=10**9, grad_accumulation=10**9),
        "a model of 10^12": tune(overrides=["hidden_size=1000000000000"]),
        "heads that take long to check": tune(overrides=["hidden_size=999999937"]),
        "4,096 layers cut most": tune(
            overrides=["num_hidden_layers=4096"], micro_batch_size=16, grad_accumulation=8
        ),
        "a megabyte of name": tune(model="m" * (MIB // 2)),
        "100,000 overrides": tune(overrides=["a=1"] * 100_000),
        "layouts of 10^9 GPUs": layouts(gpus=10**9),
        "layouts of 10^12 sequences": layouts(global_batch_size=10**12),
        "layouts of half a day": layouts(global_batch_size=1 << 20),
        "layouts without number": layouts(
            model="llama3-405b", gpus=55440, global_batch_size=55440, seq_length=1 << 24
        ),
        "layouts of 4,096 layers": layouts(overrides=["num_hidden_layers=4096", "hidden_size=256"]),
        "layouts of one search in another": layouts(search="random", trials=1),
        "10^9 trials": tune(search="random", trials=10**9),
    }  # fmt: skip


def _bad_texts() -> Mapping[str, Sequence[Part]]:
    return {
        "a path for a model": tune(model="../../etc/passwd"),
        "a path for a profile": tune(profile="/etc/passwd"),
        "a URL for a model": tune(model="http://169.254.169.254/"),
        "a template for a model": tune(model="{{7*7}}"),
        "SQL for a profile": tune(profile="x'; DROP TABLE jobs; --"),
        "an unknown search": tune(search="__import__('os')"),
        "a seed too large": tune(seed=2**40),
        "a model that is empty": post(b"{}", "/v1/models?name=mine"),
        "a model larger than any": post(
            json.dumps({
                "model_type": "llama", "num_hidden_layers": 10**9, "hidden_size": 10**9,
                "num_attention_heads": 1, "vocab_size": 10**9, "intermediate_size": 10**9,
            }).encode(),
            "/v1/models?name=mine",
        ),
        "a plan that is none": post(b'{"plan": {"schema": 1e3}}', "/v1/simulations"),
        "a plan of 10^12": post(
            b'{"plan": {"model": {"hidden_size": 1000000000000}}}', "/v1/simulations"
        ),
        "a token of 5,000 digits": post(
            json.dumps(
                {"plan": {"order": {"forward": {"tokens": ["a:" + "9" * 5000 + "+0"]}}}}
            ).encode(),
            "/v1/simulations",
        ),
        "a sweep of 10^9": post(
            json.dumps(TUNE | {"sweep": "tp=1000000000,2"}).encode(), "/v1/sweeps"
        ),
        "a scale of 10^9 GPUs": scale(sweep="gpus=8,1000000000"),
        "a label that rings": [send("PATCH", f"/v1/jobs/job_{'0' * 32}", b'{"label": "\\u0007"}')],
        "a change of 10^9": post(
            json.dumps(TUNE | {"change": ["tp=1000000000x"]}).encode(), "/v1/what-ifs"
        ),
    }  # fmt: skip


def _bad_parameters() -> Mapping[str, Sequence[Part]]:
    return {
        "an unknown query": [send("GET", "/v1/tunes?limt=5")],
        "a query twice": [send("GET", "/v1/tunes?limit=5&limit=6")],
        "a limit of 10^9": [send("GET", "/v1/tunes?limit=1000000000")],
        "a limit that is none": [send("GET", "/v1/tunes?limit=%00")],
        "a cursor that is none": [send("GET", "/v1/tunes?cursor=%ff%fe")],
        "a key of 10,000": post(b"{}", Idempotency_Key="k" * 10_000),
        "a table that is none": [
            send(
                "POST", "/v1/profiles/mine/import?format=gemm-csv&into=h100-dgx",
                b"\x00\xff" * 1000, kind="text/csv",
            )
        ],
        "an importer that is none": [
            send("POST", "/v1/profiles/mine/import?format=../x&into=h100-dgx", b"a", "text/csv")
        ],
    }  # fmt: skip


def _too_large() -> Mapping[str, Sequence[Part]]:
    return {
        "2 MiB": post(b" " * (2 * MIB)),
        "2 MiB in chunks": list(chunked([b" " * 65_536] * 32)),
        "64 MiB in chunks": list(chunked([b" " * MIB] * 64)),
        "17 MiB of profile": [send("PUT", "/v1/profiles/mine", b" " * (17 * MIB))],
        "says 10^15, sends nothing": [
            send("POST", "/v1/tunes", Content_Type=JSON, Content_Length="1000000000000000")
        ],
        "says 2 MiB and waits to be asked": [
            send(
                "POST", "/v1/tunes", Content_Type=JSON, Content_Length=str(2 * MIB),
                Expect="100-continue",
            )
        ],
    }  # fmt: skip


def _bad_kinds() -> Mapping[str, Sequence[Part]]:
    bomb = zlib.compress(b" " * (32 * MIB))
    return {
        "a gzip bomb": post(gzip.compress(b" " * (32 * MIB)), Content_Encoding="gzip"),
        "a deflate bomb": post(bomb, Content_Encoding="deflate"),
        "br": post(b"{}", Content_Encoding="br"),
        "gzip, twice": post(b"{}", Content_Encoding="gzip, gzip"),
        "a form": post(b"tp=4", kind="application/x-www-form-urlencoded"),
        "multipart": post(b"--x\r\n\r\n1\r\n--x--", kind="multipart/form-data; boundary=x"),
        "plain text, as forms of other sites send": post(b'{"tp": 4}', kind="text/plain"),
        "XML": post(b"<!DOCTYPE x [<!ENTITY e SYSTEM 'file:///etc/passwd'>]>", kind="text/xml"),
        "a pickle": post(b"\x80\x04K\x01.", kind="application/x-pickle"),
        "no kind": post(b"{}", kind=""),
        "UTF-7": post(b"{}", kind="application/json; charset=utf-7"),
    }


def _unknown_places() -> Mapping[str, Sequence[Part]]:
    return {
        "nowhere": [send("GET", "/v2/tunes")],
        "a double slash": [send("GET", "//v1//tunes")],
        "a slash behind": [send("GET", "/v1/tunes/")],
        "%2e%2e": [send("GET", "/static/%2e%2e/app.py")],
        "%2e%2e%2f": [send("GET", "/static/%2e%2e%2fapp.py")],
        "..%5c": [send("GET", "/static/..%5capp.py")],
        "../ in a profile": [send("GET", "/v1/profiles/%2e%2e%2f%2e%2e%2fetc%2fpasswd")],
        "a file with NUL": [send("GET", "/static/index.html%00.js")],
        "an absolute path": [send("GET", "/static//etc/passwd")],
        "a job that is not there": [send("GET", "/v1/tunes/job_" + "0" * 32)],
    }


def _bad_names() -> Mapping[str, Sequence[Part]]:
    return {
        "..": [send("GET", "/v1/profiles/..")],
        "%2e%2e alone": [send("GET", "/v1/profiles/%2e%2e")],
        "%2e": [send("DELETE", "/v1/profiles/%2e")],
        "a name with NUL": [send("GET", "/v1/profiles/a%00b")],
        "a name with a newline": [send("GET", "/v1/profiles/a%0a")],
        "a name in another script": [send("GET", "/v1/models/%ef%bd%81")],
        "a name that is no UTF-8": [send("GET", "/v1/models/%ff%fe")],
        "a name of 4,000": [send("GET", "/v1/models/" + "a" * 4000)],
        "a job that is none": [send("GET", "/v1/tunes/1")],
        "a job with NUL": [send("GET", "/v1/tunes/job_%00")],
        "a job with SQL": [send("GET", "/v1/sweeps/'%20OR%201=1%20--")],
        "putting ..": [send("PUT", "/v1/profiles/%2e%2e", b"{}")],
    }


def _not_http() -> Mapping[str, Sequence[Part]]:
    both = send("POST", "/v1/tunes", b"{}", Transfer_Encoding="gzip")
    return {
        "garbage": [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 64 + b"\r\n\r\n"],
        "no version": [b"GET /healthz\r\n\r\n"],
        "no host": [b"GET /healthz HTTP/1.1\r\n\r\n"],
        "two hosts": [b"GET /healthz HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"],
        "a header without a colon": [b"GET /healthz HTTP/1.1\r\nHost: a\r\nnonsense\r\n\r\n"],
        "a space before the colon": [b"GET /healthz HTTP/1.1\r\nHost : a\r\n\r\n"],
        "a folded NUL": [b"GET /healthz HTTP/1.1\r\nHost: a\r\nX: \x00\r\n\r\n"],
        "a length that is none": [send("POST", "/v1/tunes", b"{}", Content_Length="-1")],
        "a length with a sign": [send("POST", "/v1/tunes", b"{}", Content_Length="+2")],
        "two lengths": [send("POST", "/v1/tunes", b"{}", Content_Length="2, 3")],
        "an encoding that is none": [both],
        "a bad chunk": [
            send("POST", "/v1/tunes", Transfer_Encoding="chunked", Content_Type=JSON)
            + b"zz\r\n{}\r\n0\r\n\r\n"
        ],
        "a chunk of 2^64": [
            send("POST", "/v1/tunes", Transfer_Encoding="chunked", Content_Type=JSON)
            + b"fffffffffffffffffffff\r\n{}"
        ],
    }


def _wrong_methods() -> Mapping[str, Sequence[Part]]:
    return {
        method: [send(method, "/v1/tunes")]
        for method in ("PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND", "X" * 99)
    }


def _strangers() -> Mapping[str, Sequence[Part]]:
    get = ("GET", "/v1/tunes")
    return {
        "a host by another name": [send(*get, Host="evil.example")],
        "a host in brackets": [send(*get, Host="[::")],
        "a page of another site": [send(*get, Origin="https://evil.example")],
        "a page of no site": [send(*get, Origin="null")],
        "a post of another site": post(b"{}", Origin="http://127.0.0.1.evil.example"),
        "a post of a site that hides": post(b"{}", Sec_Fetch_Site="cross-site"),
        "a post of a neighbour": post(b"{}", Sec_Fetch_Site="same-site"),
        "a token that is none": [send(*get, Authorization="Bearer dt_" + "A" * 43)],
        "a token of 10,000": [send(*get, Authorization="Bearer " + "A" * 10_000)],
        "no token": [send(*get, Authorization="Bearer ")],
        "a password": [send(*get, Authorization="Basic YTpi")],
        "a token with SQL": [send(*get, Authorization="Bearer ' OR 1=1 --")],
        "a token in Latin-1": [send(*get, Authorization="Bearer \xe9")],
    }


def _own() -> dict[str, Hostile]:
    """Those with statuses of their own."""
    line = send("GET", "/healthz")
    large = frozenset({431})
    return {
        "HTTP/9.9": Hostile(
            [b"GET /healthz HTTP/9.9\r\nHost: 127.0.0.1\r\n\r\n"], frozenset({200, 400})
        ),
        "a header of 64 KiB": Hostile([send("GET", "/healthz", X="x" * 65_536)], large),
        "5,000 headers": Hostile(
            [send("GET", "/healthz", None, JSON, **{f"X{n}": "x" for n in range(5000)})], large
        ),
        "a path of 64 KiB": Hostile([send("GET", "/" + "a" * 65_536)], large),
        "upgrade to a socket": Hostile(
            [send("GET", "/v1/tunes", Upgrade="websocket", Connection="Upgrade")], frozenset({200})
        ),
        "many at once": Hostile([line * 50], frozenset({200})),
        "HTTP/2's preface": Hostile(
            [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"], frozenset({400, 404, 403})
        ),
        "a whole URL": Hostile(
            [b"GET http://evil.example/healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"],
            frozenset({200, 400, 404}),
        ),
        "a length and chunks": Hostile(
            [
                send("POST", "/v1/tunes", kind=JSON, Transfer_Encoding="chunked",
                     Content_Length="4", Content_Type=JSON)
                + b"2\r\n{}\r\n0\r\n\r\nGET /v1/models HTTP/1.1\r\n\r\n"
            ],
            frozenset({400}),
        ),
    }  # fmt: skip


def _slow() -> dict[str, Hostile]:
    """Those that are answered when their time is over."""
    late = frozenset({408})
    head = send("POST", "/v1/tunes", Content_Type=JSON, Content_Length="10")
    stream = send("POST", "/v1/tunes", Content_Type=JSON, Transfer_Encoding="chunked")
    return {
        "a body that never comes": Hostile([head], late, slow=True),
        "half a body": Hostile([head, b"{}"], late, slow=True),
        "a body in drops": Hostile([head, *drops(b" ", 6)], late, slow=True),
        "chunks in drops": Hostile([stream, *drops(b"1\r\n \r\n", 6)], late, slow=True),
        "headers that never end": Hostile(
            [b"GET /healthz HTTP/1.1\r\nHost: a\r\n"], late, slow=True
        ),
        "headers in drops": Hostile(
            [b"GET /healthz HTTP/1.1\r\n", *drops(b"X: y\r\n", 14)], late, slow=True
        ),
        "nothing at all": Hostile([b""], late, slow=True),
    }
