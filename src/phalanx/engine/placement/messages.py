"""Render a certificate: the only place where a placement failure becomes text for conditions, events and commands."""

from __future__ import annotations

from phalanx.engine.placement.outcome import Certificate


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def amount_word(resource: str, amount: float) -> str:
    """Format an amount: 5000 milli-cpu is 5; bytes get a unit."""
    if resource == "cpu":
        return f"{amount / 1000:g}"
    if resource == "memory" or resource.endswith("storage"):
        for unit, size in (("Ti", 2**40), ("Gi", 2**30), ("Mi", 2**20), ("Ki", 2**10)):
            if amount >= size and amount % (size / 4) == 0:
                return f"{amount / size:g}{unit}"
    return f"{amount:g}"


def domain_word(key: str) -> str:
    """Return the short name of a topology key: topology.kubernetes.io/zone -> zone."""
    return key.rsplit("/", 1)[-1]


def sentence(why: Certificate) -> str:
    """Return a sentence for the certificate.

    For example: needs 8 pods in one rack; best rack r7 fits 5 (limited by nvidia.com/gpu); 12 racks ruled out by taint
    x
    """
    noun = "child group" if why.composite else "pod"
    what = plural(why.needed, noun)
    if why.members < why.needed:
        there = "is" if why.members == 1 else "are"
        return f"needs {what}, but only {plural(why.members, noun)} {there} waiting"
    parts = [f"needs {what}{_where(why)}"]
    limited = f" (limited by {why.limiting})" if why.limiting else ""
    if why.key is not None and why.domains == 0:
        parts.append(f"no node in reach has the label {why.key}")
    elif why.together:
        best = f" in {domain_word(why.key)} {why.best}" if why.key is not None and why.best else ""
        parts.append(f"each of them fits alone{best}, but not all side by side{limited}")
    else:
        best = f"best {domain_word(why.key)} {why.best} fits" if why.key is not None and why.best else "room for"
        parts.append(f"{best} {why.fits}{limited}")
    for out in why.ruled_out:
        noun = domain_word(why.key) if why.key is not None else "node"
        parts.append(f"{plural(out.domains, noun)} ruled out by {out.reason}")
    text = "; ".join(parts)
    if why.inner is not None:
        text += f": {why.inner.group} {sentence(why.inner)}"
    return text


def _where(why: Certificate) -> str:
    if why.key is None:
        return ""
    if why.pinned is not None:
        return f" in {domain_word(why.key)} {why.pinned}, where its running members are"
    return f" in one {domain_word(why.key)}"
