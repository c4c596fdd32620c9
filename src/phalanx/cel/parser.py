"""Parse CEL expressions to syntax trees and expand macros."""

from __future__ import annotations

from typing import Any

from .macros import MEMBER_MACROS, NAMESPACED_MACROS, expand_has
from .syntax import (
    CallExpression,
    Const,
    ExpressionError,
    ExpressionProblem,
    Ident,
    ListExpr,
    MapExpr,
    Node,
    Select,
    StructExpr,
)
from .tokens import Token, tokenize
from .values import MAX_INT

MAX_CODE_POINTS = 100_000
MAX_DEPTH = 250  # nested parentheses, lists, calls, and operators in a row, except && and ||

_RELATIONS = {"<": "_<_", "<=": "_<=_", ">": "_>_", ">=": "_>=_", "==": "_==_", "!=": "_!=_", "in": "@in"}
_SUMS = {"+": "_+_", "-": "_-_"}
_PRODUCTS = {"*": "_*_", "/": "_/_", "%": "_%_"}
_LEVELS = (_RELATIONS, _SUMS, _PRODUCTS)
_RESERVED = frozenset(
    [
        "as",
        "break",
        "const",
        "continue",
        "else",
        "for",
        "function",
        "if",
        "import",
        "let",
        "loop",
        "package",
        "namespace",
        "return",
        "var",
        "void",
        "while",
    ]
)
_OPERAND = (
    "{'[', '{', '(', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}"
)


def parse(source: str) -> Node:
    """Return the syntax tree, or raise ExpressionError."""
    if len(source) > MAX_CODE_POINTS:
        message = f"expression code point size exceeds limit: size: {len(source)}, limit {MAX_CODE_POINTS}"
        raise ExpressionError([ExpressionProblem(0, message)])
    return _Parser(source).whole()


class _Parser:
    def __init__(self, source: str) -> None:
        self.tokens = tokenize(source)
        self.at = 0
        self.depth = 0

    @property
    def token(self) -> Token:
        return self.tokens[self.at]

    def whole(self) -> Node:
        node = self.expression()
        if self.token.kind != "end":
            raise self.unexpected("<EOF>", "extraneous")
        return node

    def unexpected(self, expecting: str, how: str = "mismatched") -> ExpressionError:
        token = self.token
        return self.problem(token.pos, f"Syntax error: {how} input '{token.text}' expecting {expecting}")

    def problem(self, pos: int, message: str) -> ExpressionError:
        return ExpressionError([ExpressionProblem(pos, message)])

    def take(self, kind: str) -> Token | None:
        """Return the next token and go past it if it is of this kind."""
        token = self.tokens[self.at]
        if token.kind != kind:
            return None
        self.at += 1
        return token

    def expect(self, kind: str) -> Token:
        token = self.take(kind)
        if token is None:
            raise self.unexpected(f"'{kind}'" if kind != "ident" else "IDENTIFIER")
        return token

    def deeper(self, by: int = 1) -> None:
        self.depth += by
        if self.depth > MAX_DEPTH:
            raise self.problem(self.token.pos, f"expression recursion limit exceeded: {MAX_DEPTH}")

    # Operators, lowest precedence first.

    def expression(self) -> Node:
        self.deeper()
        node = self.logic("||", "_||_")
        mark = self.take("?")
        if mark:
            yes = self.logic("||", "_||_")
            self.expect(":")
            node = CallExpression(mark.pos, "_?_:_", None, [node, yes, self.expression()])
        self.depth -= 1
        return node

    def logic(self, mark: str, function: str) -> Node:
        terms = [self.logic("&&", "_&&_") if mark == "||" else self.binary(0)]
        places: list[int] = []
        while token := self.take(mark):
            places.append(token.pos)
            terms.append(self.logic("&&", "_&&_") if mark == "||" else self.binary(0))
        return self.balanced(function, terms, places)

    def balanced(self, function: str, terms: list[Node], places: list[int]) -> Node:
        """Join terms to a balanced tree: thousands of terms are legal."""
        while len(terms) > 1:
            joined: list[Node] = []
            between: list[int] = []
            for i in range(0, len(terms) - 1, 2):
                joined.append(CallExpression(places[i], function, None, [terms[i], terms[i + 1]]))
                if i + 1 < len(places):
                    between.append(places[i + 1])
            if len(terms) % 2:
                joined.append(terms[-1])
            terms, places = joined, between
        return terms[0]

    def binary(self, level: int) -> Node:
        """Parse relations, sums and products by precedence climbing."""
        operand = self.unary()
        return self.climb(operand, level)

    def climb(self, left: Node, level: int) -> Node:
        chain = 0
        while True:
            kind = self.token.kind
            found = next((i for i in range(level, 3) if kind in _LEVELS[i]), None)
            if found is None:
                break
            pos = self.token.pos
            self.at += 1
            chain += 1
            self.deeper()
            right = self.unary()
            stronger = found + 1
            if stronger < 3:
                right = self.climb(right, stronger)
            left = CallExpression(pos, _LEVELS[found][kind], None, [left, right])
        self.depth -= chain
        return left

    def unary(self) -> Node:
        marks: list[Token] = []
        while self.token.kind in ("!", "-"):
            if marks and marks[-1].kind != self.token.kind:
                break
            marks.append(self.token)
            self.at += 1
        if not marks:
            return self.member(self.primary())
        if marks[0].kind == "-" and self.token.kind == "literal" and type(self.token.value) in (int, float):
            minus = marks.pop()
            node = self.member(self.literal(minus))
        elif self.token.kind in ("!", "-"):
            raise self.unexpected(_OPERAND)
        else:
            node = self.member(self.primary())
        if len(marks) % 2:
            node = CallExpression(marks[0].pos, "!_" if marks[0].kind == "!" else "-_", None, [node])
        return node

    def literal(self, minus: Token | None = None) -> Node:
        token = self.token
        self.at += 1
        value = token.value
        if minus is not None:
            return Const(minus.pos, -value)
        if type(value) is int and value > MAX_INT:
            raise self.problem(token.pos, "invalid int literal")
        return Const(token.pos, value)

    # Operands and their suffixes.

    def primary(self) -> Node:
        token = self.token
        if token.kind in ("literal", "word"):
            return self.literal()
        if token.kind == "(":
            self.at += 1
            node = self.expression()
            self.expect(")")
            return node
        if token.kind == "[":
            return self.list_literal()
        if token.kind == "{":
            return self.map_literal()
        if token.kind in ("ident", "."):
            return self.name()
        raise self.unexpected(_OPERAND)

    def name(self) -> Node:
        dot = self.take(".")
        token = self.expect("ident")
        if token.text in _RESERVED:
            raise self.problem(token.pos, f"reserved identifier: {token.text}")
        name = "." + token.text if dot else token.text
        opening = self.take("(")
        if opening:
            return self.call(opening.pos, name, None, self.arguments())
        node: Node = Ident(token.pos, name)
        return self.struct(node) or node

    def struct(self, node: Node) -> Node | None:
        """Parse `Name{…}` if the next tokens are repeated `.Name` and a brace."""
        at = self.at
        parts = [node.name] if isinstance(node, Ident) else []
        while self.tokens[at].kind == "." and self.tokens[at + 1].kind == "ident":
            parts.append(self.tokens[at + 1].text)
            at += 2
        if self.tokens[at].kind != "{":
            return None
        self.at = at
        pos = self.expect("{").pos
        fields: list[tuple[str, Node, bool]] = []
        while not self.take("}"):
            optional = self.take("?") is not None
            field = self.expect("ident")
            self.expect(":")
            fields.append((field.text, self.expression(), optional))
            if not self.take(",") and self.token.kind != "}":
                raise self.unexpected("{'}', ','}")
        return StructExpr(pos, ".".join(parts), fields)

    def member(self, node: Node) -> Node:
        chain = 0
        while True:
            dot = self.take(".")
            if dot:
                node = self.after_dot(node, dot.pos)
            elif opening := self.take("["):
                optional = self.take("?") is not None
                index = self.expression()
                self.expect("]")
                node = CallExpression(opening.pos, "_[?_]" if optional else "_[_]", None, [node, index])
            else:
                self.depth -= chain
                return node
            chain += 1
            self.deeper()

    def after_dot(self, node: Node, pos: int) -> Node:
        if self.take("?"):
            field = self.expect("ident")
            return CallExpression(pos, "_?._", None, [node, Const(field.pos, field.text)])
        field = self.take("word") or self.take("in") or self.expect("ident")
        if field.kind != "ident":
            self.at -= 1
            raise self.unexpected("IDENTIFIER")
        opening = self.take("(")
        if opening:
            return self.call(opening.pos, field.text, node, self.arguments())
        return Select(pos, node, field.text)

    def arguments(self) -> list[Node]:
        args: list[Node] = []
        if self.take(")"):
            return args
        while True:
            args.append(self.expression())
            if self.take(")"):
                return args
            if not self.take(","):
                raise self.unexpected("{')', ','}")

    def list_literal(self) -> Node:
        pos = self.expect("[").pos
        elements: list[Node] = []
        optional: set[int] = set()
        while not self.take("]"):
            if self.take("?"):
                optional.add(len(elements))
            elements.append(self.expression())
            if not self.take(",") and self.token.kind != "]":
                raise self.unexpected("{']', ','}")
        return ListExpr(pos, elements, frozenset(optional))

    def map_literal(self) -> Node:
        pos = self.expect("{").pos
        entries: list[tuple[Node, Node, bool]] = []
        while not self.take("}"):
            optional = self.take("?") is not None
            key = self.expression()
            self.expect(":")
            entries.append((key, self.expression(), optional))
            if not self.take(",") and self.token.kind != "}":
                raise self.unexpected("{'}', ','}")
        return MapExpr(pos, entries)

    def call(self, pos: int, function: str, target: Node | None, args: list[Node]) -> Node:
        if target is None:
            if function == "has" and len(args) == 1:
                return expand_has(pos, args[0])
            return CallExpression(pos, function, None, args)
        expand: Any = MEMBER_MACROS.get((function, len(args)))
        if expand is None and isinstance(target, Ident):
            expand = NAMESPACED_MACROS.get((f"{target.name}.{function}", len(args)))
        node = expand(pos, target, args) if expand else None
        return node if node is not None else CallExpression(pos, function, target, args)
