# ruff: noqa: E501 (one expression, one line)
"""Expressions of CEL: values, errors and costs of every function that Kubernetes 1.37 offers."""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.cel import types as t
from phalanx.cel.environment import Environment
from phalanx.cel.program import Program
from phalanx.cel.syntax import CompileError
from phalanx.cel.values import EvaluationError, plain

VARIABLES = {"x": t.INT, "l": t.list_of(t.INT), "s": t.STRING, "d": t.DYN, "m": t.map_of(t.STRING, t.INT)}
VALUES: dict[str, Any] = {
    "x": 3,
    "l": [1, 2],
    "s": "hello",
    "d": {"k": [1, "a"], "n": None, "o": {"p": "q"}},
    "m": {"a": 1, "b": 2},
}
ENVIRONMENT = Environment(VARIABLES)


def compiled(expression: str) -> Program:
    program = ENVIRONMENT.compile(expression)
    assert isinstance(program, Program), str(program)
    return program


def value(expression: str) -> Any:
    return plain(compiled(expression).evaluate(VALUES, 1_000_000)[0])


TRUE = """
x + 1 == 4 && x - 1 == 2 && x * 2 == 6 && x / 2 == 1 && x % 2 == 1 && -x == -3
-7 / 2 == -3 && -7 % 2 == -1
1 + 2 * 3 - 4 / 2 == 5
(1 + 2) * 3 == 9
1u + 2u == 3u
1.5 + 1.5 == 3.0
'a' + 'b' == 'ab' && b'a' + b'b' == b'ab'
[1] + [2] == [1, 2]
x > 2.5 && 2u < x && 1.0 <= 1u
dyn(1) == 1u && dyn(1) == 1.0 && dyn(1) != '1' && dyn(true) != 1
'a' < 'b' && b'a' < b'b' && false < true
dyn(9223372036854775807) == 9223372036854775808.0 && !(dyn(9223372036854775807) < 9223372036854775808.0)
x in [1, 2, 3] && !(x in l) && 'a' in m && !('z' in m)
'a' in d.k && has(d.k) && !has(d.z) && has(d.o.p)
true || 1 / 0 == 1
1 / 0 == 1 || true
!(false && 1 / 0 == 1)
x == 3 ? true : 1 / 0 == 1
size('é') == 1 && size(b'\\xc3\\xa9') == 2 && l.size() == 2 && size(m) == 2
type(x) == int && type(1u) == uint && type('') == string && type(null) == null_type && type([]) == list
int('12') == 12 && int(3.9) == 3 && uint(3) == 3u && double('1.5') == 1.5 && string(1.0) == '1' && bool('true')
string(b'ab') == 'ab' && bytes('ab') == b'ab' && string(true) == 'true' && string(12u) == '12'
'\\u00e9\\n\\x41\\101' == 'é\\nAA' && r'\\d' == '\\\\d' && '''a"b''' == 'a"b'
0x1F == 31 && .5 == 0.5 && 1e3 == 1000.0
duration('1h30m') > duration('89m') && duration('90m').getHours() == 1 && duration('1.5s').getMilliseconds() == 1500
string(duration('1.5s')) == '1.5s'
timestamp('2020-02-29T23:00:00Z') + duration('2h') == timestamp('2020-03-01T01:00:00Z')
timestamp('2020-01-02T03:04:05Z').getMonth() == 0 && timestamp('2020-01-02T03:04:05Z').getDate() == 2
timestamp('2020-01-02T03:04:05Z').getHours('+02:00') == 5 && timestamp('2020-01-05T00:00:00Z').getDayOfWeek() == 0
string(timestamp('2020-01-02T03:04:05.5+01:00')) == '2020-01-02T03:04:05.5+01:00' && int(timestamp('1970-01-01T00:01:00Z')) == 60
timestamp('2020-01-02T00:00:00Z') - timestamp('2020-01-01T00:00:00Z') == duration('24h')
l.all(i, i > 0) && !l.all(i, i > 1) && l.exists(i, i == 2) && l.exists_one(i, i == 2)
[0, 1].exists(i, 4 / i == 4)
l.map(i, i * 2) == [2, 4] && l.map(i, i > 1, i) == [2] && l.filter(i, i > 1) == [2]
m.all(k, k < 'c') && m.exists(k, k == 'a')
l.all(i, v, v == i + 1) && l.exists(i, v, i == 1 && v == 2) && l.existsOne(i, v, v == 1)
l.transformList(i, v, i + v) == [1, 3] && l.transformList(i, v, i > 0, v) == [2]
m.transformMap(k, v, v * 2) == {'a': 2, 'b': 4} && m.transformMap(k, v, k == 'a', v) == {'a': 1}
m.transformMapEntry(k, v, {string(v): k}) == {'1': 'a', '2': 'b'}
cel.bind(a, x + 1, a * a) == 16
optional.of(1).value() == 1 && !optional.none().hasValue() && optional.none().orValue(3) == 3
d.?z.hasValue() == false && d.?k[?1].orValue('') == 'a' && m[?'a'].value() == 1 && d.?o.p.orValue('') == 'q'
optional.of(1).optMap(v, v + 1).value() == 2 && d.?o.optFlatMap(v, v.?p).value() == 'q'
optional.ofNonZeroValue('').or(optional.of('a')).value() == 'a'
optional.ofNonZeroValue(timestamp('0001-01-01T00:00:00Z')) == optional.none() && optional.ofNonZeroValue(timestamp(0)).hasValue()
timestamp('2020-01-02T03:04:05+01:00') == timestamp('2020-01-02T02:04:05Z') && string(timestamp('2020-01-02T03:04:05-01:30') + duration('1h')) == '2020-01-02T04:04:05-01:30'
isURL('mailto:a@example.com') && url('mailto:a').getScheme() == 'mailto' && url('mailto:a').getHost() == ''
[?m[?'a'], ?m[?'z']] == [1] && {?'a': m[?'a'], ?'z': m[?'z']} == {'a': 1}
[optional.of(1), optional.none()].unwrapOpt() == [1]
s.contains('ell') && s.startsWith('he') && s.endsWith('lo') && s.matches('^h.*o$') && matches(s, 'l+')
s.charAt(1) == 'e' && s.indexOf('l') == 2 && s.lastIndexOf('l') == 3 && s.indexOf('l', 3) == 3 && s.indexOf('z') == -1
s.substring(1) == 'ello' && s.substring(1, 3) == 'el' && ' a '.trim() == 'a'
s.upperAscii() == 'HELLO' && 'Éa'.upperAscii() == 'ÉA' && 'AB'.lowerAscii() == 'ab'
s.replace('l', 'L') == 'heLLo' && s.replace('l', 'L', 1) == 'heLlo' && 'ab'.replace('', '-') == '-a-b-'
'a,b,c'.split(',') == ['a', 'b', 'c'] && 'a,b,c'.split(',', 2) == ['a', 'b,c'] && ['a', 'b'].join('-') == 'a-b'
'%s %d %.2f %x %X %b %o %e %%'.format(['a', 1, 1.005, 255, 255, 5, 8, 1.5]) == 'a 1 1.00 ff FF 101 10 1.500000×10⁰⁰ %'
'%s %s %s %s'.format([[1, 2], {'a': true}, null, duration('1s')]) == '[1, 2] {"a":true} null 1s'
'%.1f %.2e %f'.format([-1234567.0, -0.05, 1.0 / 0.0]) == '-1,234,567.0 -5.00×10⁻⁰² ∞'
'%s'.format([[1.5, 'a', b'x', true, null, duration('1s'), {1: int}]]) == '[1.500000, "a", b"x", true, null, duration("1s"), {1:int}]'
[1, 2].first().value() == 1 && [1, 2].last().value() == 2 && !dyn([]).first().hasValue()
url('https://example.com/a b').getEscapedPath() == '/a%20b'
strings.quote('a"b') == '"a\\\\"b"'
'ab12'.find('[0-9]+') == '12' && 'ab'.find('[0-9]') == '' && '1 2 3'.findAll('[0-9]') == ['1', '2', '3']
'1 2 3'.findAll('[0-9]', 2) == ['1', '2']
[1, 2].isSorted() && ![2, 1].isSorted() && [1, 2].sum() == 3 && [1.5, 1.0].sum() == 2.5 && [3, 5].max() == 5 && [3, 5].min() == 3
[duration('1s'), duration('2s')].sum() == duration('3s') && ['b', 'a'].max() == 'b'
[1, 2, 1].indexOf(1) == 0 && [1, 2, 1].lastIndexOf(1) == 2 && [1].indexOf(3) == -1
l.includes(1) && !l.includes(3) && d.k.includes('a')
[1, 2, 3].slice(1, 3) == [2, 3] && [[1], [2, 3]].flatten() == [1, 2, 3] && [1, 1, 2].distinct() == [1, 2]
[3, 1, 2].sort() == [1, 2, 3] && [1, 2].reverse() == [2, 1] && lists.range(3) == [0, 1, 2] && [1, 3, 2].sortBy(i, -i) == [3, 2, 1]
sets.contains([1, 2, 3], [1, 2]) && sets.equivalent([1, 2], [2, 1, 1]) && sets.intersects([1, 2], [2, 3]) && !sets.intersects([1], [2])
quantity('1Gi').compareTo(quantity('1024Mi')) == 0 && quantity('1Gi') == quantity('1024Mi') && quantity('500m').isLessThan(quantity('1'))
quantity('1').add(quantity('500m')) == quantity('1500m') && quantity('2').sub(1) == quantity('1') && quantity('-1').sign() == -1
quantity('10').asInteger() == 10 && !quantity('100m').isInteger() && quantity('500m').asApproximateFloat() == 0.5
isQuantity('10Mi') && !isQuantity('10Mo')
semver('1.2.3').isLessThan(semver('1.10.0')) && semver('1.0.0-alpha').isLessThan(semver('1.0.0')) && semver('1.0.0-2').isLessThan(semver('1.0.0-10'))
semver('1.2.3').major() == 1 && semver('1.2.3').minor() == 2 && semver('1.2.3').patch() == 3 && semver('1.2.3+a') == semver('1.2.3+b')
isSemver('1.2.3') && !isSemver('1.2') && isSemver('v1.02', true) && semver('v1.02', true) == semver('1.2.0')
ip('10.0.0.1').family() == 4 && ip('::1').isLoopback() && ip('0.0.0.0').isUnspecified() && ip('10.0.0.1').isGlobalUnicast()
ip('169.254.1.1').isLinkLocalUnicast() && ip('224.0.0.1').isLinkLocalMulticast() && string(ip('10.0.0.1')) == '10.0.0.1'
isIP('::1') && !isIP('1.2.3') && ip.isCanonical('2001:db8::1') && !ip.isCanonical('2001:DB8::1') && ip('::1') == ip('0:0::1')
cidr('10.1.0.0/8').containsIP('10.2.3.4') && !cidr('10.0.0.0/8').containsIP(ip('11.0.0.1')) && cidr('10.1.2.3/8').masked() == cidr('10.0.0.0/8')
cidr('10.0.0.0/8').containsCIDR('10.1.0.0/16') && !cidr('10.1.0.0/16').containsCIDR(cidr('10.0.0.0/8')) && cidr('10.0.0.0/8').prefixLength() == 8
isCIDR('::/0') && !isCIDR('10.0.0.0') && cidr('10.1.2.3/8').ip() == ip('10.1.2.3') && string(cidr('10.0.0.0/8')) == '10.0.0.0/8'
url('https://u@example.com:80/a%20b?x=1&x=2').getHost() == 'example.com:80' && url('https://example.com:80/').getPort() == '80'
url('HTTPS://[::1]:80/').getHostname() == '::1' && url('HTTPS://[::1]:80/').getScheme() == 'https' && url('/a').getEscapedPath() == '/a'
url('https://h/?x=1&x=2&y=a+b').getQuery() == {'x': ['1', '2'], 'y': ['a b']} && isURL('https://h') && !isURL('h')
type(ip('::1')) == net.IP && type(cidr('10.0.0.0/8')) == net.CIDR && net.IP != net.CIDR
format.dns1123Label().validate('a-b') == optional.none() && format.dns1123Label().validate('A').hasValue()
format.named('uuid').value().validate('x').value() == ['does not match the UUID format'] && !format.named('none').hasValue()
format.date().validate('2020-01-02') == optional.none() && format.datetime().validate('x').hasValue() && format.byte().validate('YQ==') == optional.none()
format.labelValue().validate('a_b') == optional.none() && format.qualifiedName().validate('a.b/c') == optional.none() && format.uri().validate('x').hasValue()
d.n == null && null == null && d.o == {'p': 'q'} && [[1], [2]] == [[1], [2]] && {'a': [1]} != {'a': [2]}
timestamp('2020-01-02T03:04:05Z').getDayOfYear() == 1 && timestamp('2020-01-02T03:04:05Z').getDayOfMonth() == 1 && timestamp('2020-01-02T03:04:05Z').getFullYear() == 2020
"""


@pytest.mark.parametrize("expression", TRUE.strip().splitlines())
def test_expression_is_true(expression: str) -> None:
    assert value(expression) is True


FAILS = {
    "d.z": "no such key: z",
    "d.o.p.q": "no such key: q",
    "m['z'] == 1": "no such key: z",
    "l[5]": "index out of bounds: 5",
    "1 / 0": "division by zero",
    "1 % 0": "modulus by zero",
    "9223372036854775807 + 1": "integer overflow",
    "-9223372036854775808 - 1": "integer overflow",
    "0u - 1u": "unsigned integer overflow",
    "int('a')": "type conversion error from 'string' to 'int'",
    "d.k + 'a'": "no such overload: _+_",
    "d.o.startsWith('a')": "no such overload: startsWith",
    "optional.none().value()": "optional.none() dereference",
    "l.filter(i, i > 5).max()": "max called on empty list",
    "quantity('z').isInteger()": "quantities must match",
    "s.substring(9)": "index out of range: 9",
    "s.matches(s + '[')": "error parsing regexp: missing closing ]: `[`",
    "[0, 1].all(i, 4 / i == 4)": "division by zero",
    "{s: 1, s: 2}": "Failed with repeated key [hello]",
    "0.0 / 0.0 < 1.0": "NaN values cannot be ordered",
    "ip('x')": 'IP Address "x" parse error during conversion from string',
    "url('x')": "URL parse error during conversion from string",
    "ip('::ffff:1.2.3.4')": 'IPv4-mapped IPv6 address "::ffff:1.2.3.4" is not allowed',
    "semver('1.2')": "No Major.Minor.Patch elements found",
    "timestamp(s)": "parsing time",
    "[1].slice(0, 2)": "cannot slice(0, 2), list is length 1",
    "'%d'.format(['a'])": "error during formatting: decimal clause can only be used on integers, was given string",
    "'%.1f'.format([1])": "error during formatting: fixed-point clause can only be used on doubles, was given int",
    "url('::bad')": 'URL parse error during conversion from string: parse "::bad": missing protocol scheme',
    "'%q'.format([1])": 'could not parse formatting clause: unrecognized formatting clause "q"',
    "timestamp('9999-12-31T00:00:00Z') + duration('48h')": "timestamp overflow",
}


@pytest.mark.parametrize("expression", FAILS)
def test_failure_at_run_time_has_upstreams_words(expression: str) -> None:
    with pytest.raises(EvaluationError) as problem:
        value(expression)
    assert str(problem.value).startswith(FAILS[expression])


ADDRESSES = {
    "cidr('10.0.0.0')": "netip.ParsePrefix(\"10.0.0.0\"): no '/'",
    "cidr('10.0.0.0/')": 'netip.ParsePrefix("10.0.0.0/"): bad bits after slash: ""',
    "cidr('10.0.0.0/33')": "prefix length out of range",
    "cidr('10.0.0/8')": 'netip.ParsePrefix("10.0.0/8"): ParseAddr("10.0.0"): IPv4 address too short',
    "ip('1.2.3.4.5')": 'ParseAddr("1.2.3.4.5"): IPv4 address too long',
    "ip('1.2.03.4')": "IPv4 field has octet with leading zero",
    "ip('1.2.300.4')": "IPv4 field has value >255",
    "ip('1..3.4')": 'IPv4 field must have at least one digit (at ".3.4")',
    "ip('1.2.x.4')": 'unexpected character (at "x.4")',
    "ip('2001:db8:::68')": 'each colon-separated field must have at least one digit (at ":68")',
    "ip('1::2::3')": 'multiple :: in address (at ":3")',
    "ip('1:2')": "address string too short",
    "ip('1:2:3:4:5:6:7:8:9')": 'trailing garbage after address (at "9")',
    "ip('1:2:3:4:5:6:7::8')": "the :: must expand to at least one field of zeros",
    "ip('12345::')": 'each group must have 4 or less digits (at "12345::")',
    "ip('1:2:')": 'colon must be followed by more characters (at ":")',
    "ip('1:x::')": 'each colon-separated field must have at least one digit (at "x::")',
    "ip('1:2.3.4.5')": 'embedded IPv4 address must replace the final 2 fields of the address (at "2.3.4.5")',
}


@pytest.mark.parametrize("expression", ADDRESSES)
def test_what_is_wrong_with_an_address_is_said_as_upstream_does(expression: str) -> None:
    with pytest.raises(EvaluationError) as problem:
        value(expression)
    assert str(problem.value).endswith(ADDRESSES[expression])


REFUSED = {
    "y": "ERROR: <input>:1:1: undeclared reference to 'y' (in container '')\n | y\n | ^",
    "x == 'a'": "ERROR: <input>:1:3: found no matching overload for '_==_' applied to '(int, string)'\n | x == 'a'\n | ..^",
    "true &&\n x": "ERROR: <input>:1:6: found no matching overload for '_&&_' applied to '(bool, int)'\n | true &&\n | .....^",
    "s.nosuch()": "undeclared reference to 'nosuch' (in container '')",
    "s.startsWith(1)": "found no matching overload for 'startsWith' applied to 'string.(int)'",
    "x.foo": "type 'int' does not support field selection",
    "x.all(i, true)": "expression of type 'int' cannot be range of a comprehension (must be list, map, or dynamic)",
    "[1, 'a']": "expected type 'int' but found 'string'",
    "{'a': 1, 'b': ''}": "expected type 'int' but found 'string'",
    "x == 3 ? 'a' : 1": "found no matching overload for '_?_:_' applied to '(bool, string, int)'",
    "has(x)": "invalid argument to has() macro",
    "l.map(1, x)": "argument must be a simple name",
    "duration('x') > duration('1s')": "invalid duration argument",
    "timestamp('x') == timestamp('x')": "invalid timestamp argument",
    "timestamp(-62135596801) == timestamp(0)": "invalid timestamp argument",
    "s.matches('[')": "invalid matches argument",
    "s.find(')') == ''": "error parsing regexp: unexpected ): `)`",
    "s.findAll('[', 1) == []": "error parsing regexp: missing closing ]: `[`",
    "x +": "Syntax error: mismatched input '<EOF>' expecting {'[', '{',",
    "x)": "Syntax error: extraneous input ')' expecting <EOF>",
    "'a": "Syntax error: token recognition error at: ''a'",
    "x # y": "Syntax error: token recognition error at: '#'",
    "if": "reserved identifier: if",
    "9223372036854775808": "invalid int literal",
    "18446744073709551616u": "invalid uint literal",
    "'\\q'": "unable to unescape string",
    "Foo{a: 1}": "undeclared reference to 'Foo' (in container '')",
    "": "Syntax error: mismatched input '<EOF>'",
}


@pytest.mark.parametrize("expression", REFUSED)
def test_expression_that_does_not_compile(expression: str) -> None:
    found = ENVIRONMENT.compile(expression)
    assert isinstance(found, CompileError)
    assert REFUSED[expression] in found.message


@pytest.mark.parametrize(
    ("expression", "compiles"),
    [
        ("(" * 240 + "true" + ")" * 240, True),
        ("(" * 100_000, False),
        ("[" * 400 + "]" * 400, False),
        ("x" * 1_000_000, False),
        ("!" * 90_000 + "true", True),
        ("-" * 90_001 + "x == -3", True),
        (" && ".join(["x == 3"] * 9_000), True),
        (" + ".join(["1"] * 240), True),
        (" + ".join(["1"] * 20_000), False),
        ("d" + ".k" * 20_000, False),
        ("d" + "[0]" * 20_000, False),
        ("true ? true : " * 5_000 + "false", False),
        ("{'a':" * 5_000, False),
        ("l" + ".map(i, i)" * 100 + ".size() == 2", True),
        ("optional.of(1)" + ".optMap(v, v)" * 100 + ".hasValue()", True),
        ("//" + "x" * 90_000 + "\nx", True),
    ],
)
def test_long_and_deep_expressions_never_exhaust_the_stack(expression: str, compiles: bool) -> None:
    found = ENVIRONMENT.compile(expression)
    assert isinstance(found, Program) is compiles
    if isinstance(found, Program):
        found.evaluate(VALUES, 1_000_000)
    else:
        assert "limit" in found.message or "Syntax error" in found.message


COSTS = {  # what cel-go charges
    "1 + 2": 1,
    "x": 1,
    "d.o.p": 3,
    "has(d.o.p)": 2,
    "x == 3 && true": 2,
    "s == 'hello'": 2,
    "[x]": 11,
    "{'a': x}": 31,
    "[1, 2]": 0,
    "l.all(i, true)": 8,
    "s.contains('ell')": 2,
    "quantity('10Gi').isInteger()": 2,
    "sets.contains([1], [1, 2])": 3,
    "sets.equivalent([1], [1, 2])": 5,
}


@pytest.mark.parametrize("expression", COSTS)
def test_cost(expression: str) -> None:
    assert compiled(expression).evaluate(VALUES, 1_000_000)[1] == COSTS[expression]


def test_evaluation_ends_at_its_cost_limit() -> None:
    program = compiled("lists.range(1000).all(a, lists.range(1000).all(b, a + b >= 0)) || true")
    with pytest.raises(EvaluationError, match="operation cancelled: actual cost limit exceeded"):
        program.evaluate(VALUES, 10_000)
