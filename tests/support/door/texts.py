"""Rows of the door's table that are about JSON: what is not JSON, and what it must not contain."""

from __future__ import annotations

import gzip
import json

from api.problems import MOST_FAULTS
from tests.support.door.made import TUNE, Case, Row, cases, deep, model, number, post, put, send


def not_json() -> dict[str, Case]:
    """Bodies that are not JSON."""
    objects = {
        "too many braces": b'{"a": 1}}',
        "a list with a trailing comma": b"[1,]",
        "leading zero in a model": b'{"a": 01}',
        "plus sign in a model": b'{"a": +1}',
        "single quotes in a model": b"{'a': 1}",
        "bad UTF-8 in a model": b'{"a": "\xff"}',
        "NUL byte in a model": b'{"a": "\x00"}',
        "UTF-16 of a model": '{"a": 1}'.encode("utf-16"),
        "half a pair of surrogates alone": b"\xed\xa0\x80",
        "a comment before a model": b"// no\n{}",
        "a number that begins with a point": b'{"a": .5}',
        "half a word": b"nul",
        "two byte order marks": b"\xef\xbb\xbf\xef\xbb\xbf{}",
    }  # fmt: skip
    return cases(400, {
        "empty body": post(b""),
        "no body": [send("POST", "/v1/tunes", Content_Type="application/json")],
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
        "a model that is no JSON": model(b"{"),
        "a profile that is no JSON": put(b"{"),
        "a what-if that is no JSON": post(b"[", "/v1/what-ifs"),
        "a sweep that is no JSON": post(b"]", "/v1/sweeps"),
        "a simulation that is no JSON": post(b"\x80", "/v1/simulations"),
        "layouts that are no JSON": post(b"{'gpus': 8}", "/v1/layouts"),
        **{name: model(body) for name, body in objects.items()},
    }, at="#")  # fmt: skip


def numbers() -> dict[str, Case]:
    """Texts that are not numbers in JSON, or not whole numbers."""
    return cases(422, {
        **{text: number(text) for text in ("NaN", "Infinity", "-Infinity", "1e999", "-1e999")},
        "NaN in a what-if": number("NaN", "/v1/what-ifs"),
        "NaN in a simulation": number("NaN", "/v1/simulations"),
        "NaN in a sweep": number("NaN", "/v1/sweeps"),
        "NaN in a model": Row(model(b'{"model_type": "llama", "x": NaN}'), "#/x"),
        "1e999 in a model": Row(model(b'{"model_type": "llama", "x": [1e999]}'), "#/x/0"),
        "NaN in a profile": Row(put(b'{"name": NaN}'), "#/name"),
        "5,000 digits": number("9" * 5000),
        "-5,000 digits": number("-" + "9" * 5000),
        "100,000 digits": number("1" * 100_000),
        "5,000 decimals": number("0." + "1" * 5000),
        "a float": number("4.0"),
        "an exponent": number("4e0"),
        "a text for a number": number('"4"'),
        "true for a number": number("true"),
        "null for a number": number("null"),
        "a list for a number": number("[4]"),
        "0 ranks": number("0"),
        "-1 ranks": number("-1"),
        "2^63 ranks": number(str(2**63)),
        "ranks beyond any": number("1000000000"),
    }, at="#/tp")  # fmt: skip


def strict() -> dict[str, Case]:
    """Values that JSON may not contain here, each at its place in a config."""
    texts = {
        '{"a": NaN}': "#/a",
        '{"a": [1, Infinity]}': "#/a/1",
        '{"a": {"b": -Infinity}}': "#/a/b",
        '{"a": 1e999}': "#/a",
        '{"a": -1e999}': "#/a",
        '{"a": ' + "9" * 5000 + "}": "#/a",
        '{"a": -' + "9" * 100 + "}": "#/a",
        '{"a": {"b": 1, "b": 1}}': "#/a",
        '{"b": 1, "b": 2}': "#",
        r'{"a/~": "\u0000"}': "#/a~1~0",
        r'{"a": "\ud800"}': "#/a",
        r'{"a": {"\udfff": 1}}': "#/a",
        r'{"a": ["\uD83D"]}': "#/a/0",
        "[" + "NaN," * 1000 + "1]": " ".join(f"#/{n}" for n in range(MOST_FAULTS)),
    }
    return cases(422, {f"{text:.30}": Row(model(text.encode()), at) for text, at in texts.items()})


def structures() -> dict[str, Case]:
    """Keys and depths."""
    doubled = json.dumps(TUNE)[:-1] + ', "tp": 8}'
    objects = b"[" + b"{}," * 349_000 + b"1]"
    few = "at most 50,000 values"
    nested = {
        f"{opening.decode()} {depth} deep in a profile": Row(
            put(opening * depth + b"1" + closing * depth), "#", "at most 32 deep"
        )
        for opening, closing in ((b"[", b"]"), (b'{"a":', b"}"), (b'[{"a":', b"}]"))
        for depth in (5_000, 400_000 // len(opening))
    }
    return cases(422, {
        "a duplicate key": post(doubled.encode()),
        "a duplicate key, escaped": post(b'{"tp": 1, "\\u0074p": 1}'),
        "a duplicate key in a model": Row(model(b'{"a": {"b": 1, "b": 2}}'), "#/a"),
        "a duplicate key in a profile": put(b'{"a":1,"a":2}'),
        "nested 33 deep": Row(post(deep(b"[", b"]", 40)), "#/model" + 31 * "/0"),
        "nested 5,000 deep": Row(post(deep(b"[", b"]", 5000)), "#", "at most 32 deep"),
        "nested 400,000 deep": Row(post(deep(b"[", b"]", 400_000)), "#", few),
        "objects 100,000 deep": Row(post(deep(b'{"a":', b"}", 100_000)), "#", few),
        "a model 100,000 deep": Row(model(deep(b"[", b"]", 100_000)), "#", few),
        **nested,
        "NUL in text": Row(post(b'{"model": "a\\u0000"}'), "#/model"),
        "half a surrogate pair": Row(post(b'{"model": "\\ud800"}'), "#/model"),
        "half a pair in a model": Row(model(b'{"x": "\\udfff"}'), "#/x"),
        "a list": post(b"[]"),
        "a string": post(b'"tune"'),
        "null": post(b"null"),
        "a list for a model": model(b"[]"),
        "a list for a profile": put(b"[]"),
        "an object in a list for a profile": put(b"[" + b" " * 65_536 + b"]"),
        "349,000 objects": Row(post(b'{"model":' + objects + b"}"), "#", few),
        "349,000 objects in a model": Row(model(b'{"a":' + objects + b"}"), "#", few),
        "11,000 keys": Row(
            post(_keys(11_000)), "#", "at most 10,000 keys"
        ),
        "60,000 keys": Row(post(_keys(60_000)), "#", few),
        "9,000 unknown keys": Row(
            post(_keys(9_000)),
            " ".join(f"#/k{n}" for n in range(MOST_FAULTS)), "Unknown keys; known: ",
        ),
        "a key of 50,000": Row(
            post(json.dumps(TUNE | {"k" * 50_000: 1}).encode()), "#/" + "k" * 100
        ),
        "100,000 overrides": Row(
            post(json.dumps(TUNE | {"overrides": ["a=1"] * 100_000}).encode()), "#", few
        ),
    }, at="#")  # fmt: skip


def _keys(count: int) -> bytes:
    return json.dumps({f"k{n}": 0 for n in range(count)}).encode()
