"""Tokenize CEL expressions, with the values of literals."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from .syntax import ExpressionError, ExpressionProblem
from .values import MAX_INT, MAX_UINT, Uint


class Token(NamedTuple):
    """`kind` is a punctuation mark, `ident`, `literal`, `word` (true, false, null, in) or `end`."""

    kind: str
    text: str
    pos: int
    value: Any = None


_STRING_PREFIX = r"(?:[rR][bB]|[bB][rR]|[rRbB])?"
_TOKEN = re.compile(
    rf"""
    (?P<space>(?:[\t\n\f\r ]|//[^\n]*)+)
  | (?P<string>{_STRING_PREFIX}(?:'''|\"\"\"|'|"))
  | (?P<float>(?:[0-9]+\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+|\.[0-9]+(?:[eE][+-]?[0-9]+)?))
  | (?P<int>(?:0x[0-9a-fA-F]+|[0-9]+))(?P<unsigned>[uU]?)
  | (?P<ident>[A-Za-z_][A-Za-z0-9_]*)
  | (?P<mark>&&|\|\||==|!=|<=|>=|[-+*/%<>!?:.,()\[\]{{}}])
    """,
    re.VERBOSE,
)
_WORDS = {"true": True, "false": False, "null": None}
_ESCAPES = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_ESCAPES |= {c: c for c in "\\?\"'`"}
_HEX_DIGITS = {"x": 2, "X": 2, "u": 4, "U": 8}


def _fail(pos: int, message: str) -> ExpressionError:
    return ExpressionError([ExpressionProblem(pos, message)])


def tokenize(source: str) -> list[Token]:
    """Return the tokens of an expression, the last of kind `end`."""
    tokens: list[Token] = []
    at, size = 0, len(source)
    while at < size:
        match = _TOKEN.match(source, at)
        if match is None:
            raise _fail(at, f"Syntax error: token recognition error at: '{source[at]}'")
        kind = match.lastgroup
        if kind == "string":
            token, at = _string(source, match.group(), at)
            tokens.append(token)
            continue
        text = match.group()
        if kind == "float":
            tokens.append(Token("literal", text, at, float(text)))
        elif kind == "unsigned":
            tokens.append(_number(match, at))
        elif kind == "ident":
            tokens.append(_name(text, at))
        elif kind == "mark":
            tokens.append(Token(text, text, at))
        at = match.end()
    tokens.append(Token("end", "<EOF>", size))
    return tokens


def _name(text: str, at: int) -> Token:
    if text in _WORDS:
        return Token("word", text, at, _WORDS[text])
    if text == "in":
        return Token("in", text, at)
    return Token("ident", text, at)


def _number(match: re.Match[str], at: int) -> Token:
    digits, unsigned = match["int"], bool(match["unsigned"])
    text = match.group()
    if len(digits) > 24:
        raise _fail(at, "invalid uint literal" if unsigned else "invalid int literal")
    value = int(digits, 16) if digits.startswith("0x") else int(digits)
    if unsigned:
        if value > MAX_UINT:
            raise _fail(at, "invalid uint literal")
        return Token("literal", text, at, Uint(value))
    if value > MAX_INT + 1:
        raise _fail(at, "invalid int literal")
    return Token("literal", text, at, value)  # MAX_INT + 1 is legal only after a minus sign; the parser checks


def _string(source: str, opening: str, at: int) -> tuple[Token, int]:
    quote = opening.lstrip("rRbB")
    prefix = opening[: len(opening) - len(quote)].lower()
    start = at + len(opening)
    end = start
    raw = "r" in prefix
    while True:
        if end >= len(source) or (len(quote) == 1 and source[end] in "\r\n"):
            raise _fail(at, f"Syntax error: token recognition error at: '{source[at : min(end, at + 40)]}'")
        if source.startswith(quote, end):
            break
        end += 2 if source[end] == "\\" and not raw else 1
    body = source[start:end]
    text = source[at : end + len(quote)]
    if "b" in prefix:
        value: Any = _unescape_bytes(body, at) if not raw else body.encode()
    else:
        value = body if raw else _unescape(body, at)
    return Token("literal", text, at, value), end + len(quote)


def _escape(body: str, i: int, at: int) -> tuple[int, int, bool]:
    """Return (code, next index, whether it names a byte) of the escape sequence that starts at `i`."""
    letter = body[i + 1 : i + 2]
    if letter in _ESCAPES:
        return ord(_ESCAPES[letter]), i + 2, False
    if letter in _HEX_DIGITS:
        digits = body[i + 2 : i + 2 + _HEX_DIGITS[letter]]
        if len(digits) == _HEX_DIGITS[letter] and re.fullmatch(r"[0-9a-fA-F]+", digits):
            return int(digits, 16), i + 2 + len(digits), letter in "xX"
    elif re.fullmatch(r"[0-3][0-7]{2}", body[i + 1 : i + 4]):
        return int(body[i + 1 : i + 4], 8), i + 4, True
    raise _fail(at, "unable to unescape string")


def _unescape(body: str, at: int) -> str:
    if "\\" not in body:
        return body
    out: list[str] = []
    i = 0
    while i < len(body):
        if body[i] != "\\":
            out.append(body[i])
            i += 1
            continue
        code, i, _ = _escape(body, i, at)
        if code > 0x10FFFF or 0xD800 <= code < 0xE000:
            raise _fail(at, "invalid unicode code point")
        out.append(chr(code))
    return "".join(out)


def _unescape_bytes(body: str, at: int) -> bytes:
    out = bytearray()
    i = 0
    while i < len(body):
        if body[i] != "\\":
            out += body[i].encode()
            i += 1
            continue
        code, i, is_byte = _escape(body, i, at)
        out += bytes([code]) if is_byte else chr(code).encode()
    return bytes(out)
