"""Several people write one Deployment in every way the API has; a small model of flat paths foretells each outcome.

The model knows two tables, path -> value and path -> owners, and none of the server's code.
"""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from phalanx.base.errors import Conflict, Invalid
from support.api_world import DEPLOYMENTS, JSON_PATCH, MERGE, STRATEGIC, Json, World, deployment

WEB = f"{DEPLOYMENTS}/web"
HEAD = {"apiVersion": "apps/v1", "kind": "Deployment"}
ITEM = "(an item)"
KEYS = {"containers": ("name",), "env": ("name",), "ports": ("containerPort", "protocol")}
CONTAINER_DEFAULTS = {
    "imagePullPolicy": "IfNotPresent",  # every image here has a tag
    "terminationMessagePath": "/dev/termination-log",
    "terminationMessagePolicy": "File",
}
Who = tuple[str, str]  # manager, operation
Flat = dict[str, Any]

# -- objects as flat paths ----------------------------------------------------------------------------------------


def element(name: str, item: Any) -> str:
    if name == "finalizers":
        return f"[={json.dumps(item)}]"
    return "[" + ",".join(f"{key}={json.dumps(item[key])}" for key in KEYS[name]) + "]"


def flatten(name: str, value: Any, path: str, out: Flat) -> Flat:
    """Leaves and list items of what people can own; records and maps themselves are left out."""
    if isinstance(value, dict) and name != "selector":
        for key, item in value.items():
            flatten(key, item, f"{path}.{key}", out)
    elif name in KEYS or name == "finalizers":
        for item in value:
            here = path + element(name, item)
            out[here] = ITEM
            if isinstance(item, dict):
                flatten("", item, here, out)
    else:
        out[path] = value
    return out


def flat_of(obj: Json) -> Flat:
    kept = {key: obj["metadata"][key] for key in ("labels", "annotations", "finalizers") if key in obj["metadata"]}
    return flatten("", {"metadata": kept, "spec": obj["spec"]}, "", {})


def steps(name: str, fields: Json, path: str = "") -> set[str]:
    """The owned paths of a fieldsV1 tree, read afresh from the format's definition."""
    found = set()
    for key, node in fields.items():
        if key == ".":
            continue
        kind, _, rest = key.partition(":")
        if kind == "f":
            here = f"{path}.{rest}"
        elif kind == "k":
            here = path + element(name, json.loads(rest))
        else:
            here = f"{path}[={rest}]"
        if not node or "." in node:
            found.add(here)
        found |= steps(rest if kind == "f" else "", node, here)
    return found


def every_path(name: str, value: Any, path: str = "") -> set[str]:
    found = {path}
    if isinstance(value, dict):
        for key, item in value.items():
            found |= every_path(key, item, f"{path}.{key}")
    elif isinstance(value, list) and (name in KEYS or name == "finalizers"):
        for item in value:
            found |= every_path("", item, path + element(name, item))
    return found


# -- what people wish ---------------------------------------------------------------------------------------------

labels = st.dictionaries(st.sampled_from("abc"), st.sampled_from("123"), min_size=1, max_size=2)
images = st.sampled_from(["i:1", "i:2"])
env = st.dictionaries(st.sampled_from("EF"), st.sampled_from("123"), min_size=1).map(
    lambda found: [{"name": name, "value": value} for name, value in found.items()]
)
ports = st.dictionaries(st.sampled_from([80, 81]), st.sampled_from(["x", "y"]), min_size=1).map(
    lambda found: [{"containerPort": n, "protocol": "TCP", "name": f"{name}{n}"} for n, name in found.items()]
)
inside = {"image": images, "env": env, "ports": ports, "args": st.lists(st.sampled_from("ab"), min_size=1, max_size=2)}
containers = st.dictionaries(
    st.sampled_from(["web", "x", "y"]), st.fixed_dictionaries({}, optional=inside), min_size=1, max_size=2
).map(lambda found: [{"name": name, **rest} for name, rest in found.items()])
preferences = st.fixed_dictionaries(
    {},
    optional={
        "labels": labels,
        "annotations": labels,
        "finalizers": st.lists(st.sampled_from(["t.io/a", "t.io/b"]), unique=True, min_size=1),
        "replicas": st.integers(1, 3),
        "tolerations": st.lists(
            st.sampled_from("ab").map(lambda key: {"key": key, "operator": "Exists"}), min_size=1, max_size=2
        ),
        "containers": containers,
    },
)
people = st.sampled_from(["ann", "bob", "cid"])


def place(obj: Json, requested: Json) -> Json:
    """The wish's sections in their places of an object."""
    for name, value in requested.items():
        if name in ("labels", "annotations", "finalizers"):
            obj.setdefault("metadata", {})[name] = copy.deepcopy(value)
        elif name == "replicas":
            obj.setdefault("spec", {})[name] = value
        else:
            obj.setdefault("spec", {}).setdefault("template", {}).setdefault("spec", {})[name] = copy.deepcopy(value)
    return obj


def with_web(requested: Json) -> Json:
    """A wish that stands alone: every container has an image, and "web" is among them."""
    found = {item["name"]: item for item in requested.get("containers", ())}
    found.setdefault("web", {"name": "web"})
    return {**requested, "containers": [{"image": "i:1", **item} for item in found.values()]}


def founding(requested: Json) -> Json:
    base = deployment(replicas=None)
    return place(base, with_web(requested))


# -- the difference of two objects in each patch language ---------------------------------------------------------


def merge_difference(old: Json, new: Json) -> Json:
    patch: Json = {name: None for name in old if name not in new}
    for name, value in new.items():
        if name not in old or not (isinstance(value, dict) and isinstance(old[name], dict)):
            if old.get(name) != value:
                patch[name] = value
        elif below := merge_difference(old[name], value):
            patch[name] = below
    return patch


def strategic_difference(old: Json, new: Json) -> Json:
    patch: Json = {name: None for name in old if name not in new}
    for name, value in new.items():
        before = old.get(name)
        if before == value:
            continue
        if isinstance(value, dict) and isinstance(before, dict):
            patch[name] = strategic_difference(before, value)
        elif name in KEYS and before is not None:
            key = KEYS[name][0]
            there, wanted = {item[key]: item for item in before}, {item[key]: item for item in value}
            items: list[Json] = [{"$patch": "delete", key: gone} for gone in there if gone not in wanted]
            for found, item in wanted.items():
                items.append({key: found, **strategic_difference(there.get(found, {}), item)})
            patch[name] = items
        elif name == "finalizers" and before is not None:
            patch[name] = value
            patch["$deleteFromPrimitiveList/finalizers"] = [item for item in before if item not in value]
        else:
            patch[name] = value
    return patch


def json_difference(old: Json, new: Json, path: str = "") -> list[Json]:
    found: list[Json] = []
    for name in old:
        if name not in new:
            found += [{"op": "test", "path": f"{path}/{name}", "value": old[name]}]
            found += [{"op": "remove", "path": f"{path}/{name}"}]
    for name, value in new.items():
        if name not in old:
            found.append({"op": "add", "path": f"{path}/{name}", "value": value})
        elif isinstance(value, dict) and isinstance(old[name], dict):
            found += json_difference(old[name], value, f"{path}/{name}")
        elif value != old[name]:
            found.append({"op": "replace", "path": f"{path}/{name}", "value": value})
    return found


class Writers(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.values: Flat = {}
        self.owners: dict[str, set[Who]] = {}
        self.founder = ""  # who applied the whole object; it stays in that manager's configurations

    def teardown(self) -> None:
        self.world.close()

    # -- the model ----------------------------------------------------------------------------------------------

    def defaulted(self, values: Flat) -> Flat:
        """The server fills what no manager sets: the pod's and the rollout's defaults, as they were at the start."""
        values = {**self.fixed, **values}
        for path in [path for path, value in values.items() if value == ITEM and is_container(path)]:
            for name, value in CONTAINER_DEFAULTS.items():
                values.setdefault(f"{path}.{name}", value)
        return values

    def updated(self, new: Flat, who: Who) -> None:
        changed = {path for path, value in new.items() if path not in self.values or self.values[path] != value}
        self.owners = {path: found for path, found in self.owners.items() if path in new}
        self.owners |= {path: {who} for path in changed}
        self.values = new

    def merged(self, config: Flat, me: Who) -> Flat:
        others = {path for path, found in self.owners.items() if found - {me}}
        kept = others | set(config)
        new = {**self.values, **config}
        for path in [path for path, found in self.owners.items() if me in found and path not in kept]:
            if self.values[path] == ITEM:
                for below in [found for found in new if found.startswith(path)]:
                    del new[below]
            else:
                new.pop(path, None)
        return new

    # -- rules --------------------------------------------------------------------------------------------------

    @initialize(requested=preferences)
    def start(self, requested: Json) -> None:
        plain = self.world.create(DEPLOYMENTS, deployment("plain", replicas=None))
        self.fixed = {
            path: value
            for path, value in flat_of(plain).items()
            if "containers" not in path and "selector" not in path and ".labels" not in path
        }
        assert self.fixed[".spec.replicas"] == 1
        self.create(requested)

    def create(self, requested: Json) -> None:
        made = founding(requested)
        self.world.create(DEPLOYMENTS, made, fieldManager="maker")
        self.values, self.owners, self.founder = {}, {}, ""
        self.updated(self.defaulted(flat_of(made)), ("maker", "Update"))

    @rule(requested=preferences, who=people, force=st.booleans())
    def apply(self, requested: Json, who: str, force: bool) -> None:
        config = (
            founding(requested) if self.founder == who else place(copy.deepcopy({**HEAD, "metadata": {}}), requested)
        )
        self.submit(config, who, force)

    @rule(who=people)
    def apply_nothing(self, who: str) -> None:
        config = founding({}) if self.founder == who else copy.deepcopy({**HEAD, "metadata": {}})
        self.submit(config, who, force=True)

    def submit(self, config: Json, who: str, force: bool) -> None:
        me, before = (who, "Apply"), self.world.get(WEB)
        wanted = flat_of({"spec": {}, **config})
        new = self.merged(wanted, me)
        changed = {path for path, value in self.values.items() if path in new and new[path] != value}
        disputes = {(path, other) for path in changed for other in self.owners.get(path, ()) if other != me}
        query = {"force": "true"} if force else {}
        if disputes and not force:
            with pytest.raises(Conflict) as caught:
                self.world.apply(WEB, config, who, **query)
            assert {(cause["field"], cause["message"]) for cause in caught.value.causes} == {
                (path, f'conflict with "{name}"' + (" using apps/v1" if how == "Update" else ""))
                for path, (name, how) in disputes
            }
            assert self.world.get(WEB) == before, "a refused configuration leaves no trace"
            return
        if any(value == ITEM and is_container(path) and f"{path}.image" not in new for path, value in new.items()):
            with pytest.raises(Invalid, match="image: Required value"):
                self.world.apply(WEB, config, who, **query)
            assert self.world.get(WEB) == before
            return
        after = self.world.apply(WEB, config, who, **query)
        owners = {path: found - {me} for path, found in self.owners.items() if path in new and path not in changed}
        for path in wanted:
            owners[path] = owners.get(path, set()) | {me}
        self.values = self.defaulted(new)
        self.owners = {path: found for path, found in owners.items() if found}
        self.world.clock.advance(5)
        assert self.world.apply(WEB, config, who) == after, "the same again is no change, and no conflict"

    @rule(
        requested=preferences,
        who=people,
        how=st.sampled_from(["PUT", STRATEGIC, MERGE, JSON_PATCH]),
        keep=st.booleans(),
    )
    def rewrite(self, requested: Json, who: str, how: str, keep: bool) -> None:
        live = self.world.get(WEB)
        if "containers" in requested:
            requested = with_web(requested)
            if keep:  # edit inside the containers that are there instead of replacing them
                there = {item["name"]: item for item in live["spec"]["template"]["spec"]["containers"]}
                for item in requested["containers"]:
                    there[item["name"]] = {**there.get(item["name"], {}), **item}
                requested["containers"] = list(there.values())
        elif not keep:  # take out whatever the wish is silent about, except the containers
            for section in {"labels", "annotations", "finalizers"} - set(requested):
                live["metadata"].pop(section, None)
            live["spec"]["template"]["spec"].pop("tolerations", None)
            live["spec"].pop("replicas", None)
        self.write(place(copy.deepcopy(live), requested), who, how)

    def write(self, goal: Json, who: str, how: str) -> None:
        live = self.world.get(WEB)
        if how == "PUT":
            after = self.world.update(WEB, goal, fieldManager=who)
        else:
            differ: Any = {STRATEGIC: strategic_difference, MERGE: merge_difference, JSON_PATCH: json_difference}[how]
            after = self.world.patch(WEB, differ(live, goal), how, fieldManager=who)
        self.updated(self.defaulted(flat_of(goal)), (who, "Update"))
        if goal == live:
            assert after["metadata"]["resourceVersion"] == live["metadata"]["resourceVersion"]

    @rule(requested=preferences, applied_by=st.none() | people)
    @precondition(lambda self: self.owners)
    def replace(self, requested: Json, applied_by: str | None) -> None:
        """Delete the object and make it again: nothing of the old owners is left."""
        bare = self.world.get(WEB)
        bare["metadata"].pop("finalizers", None)
        self.write(bare, "maker", "PUT")
        self.world.delete(WEB)
        assert self.world.get(WEB) is None
        if applied_by is None:
            self.create(requested)
            return
        config = founding(requested)
        self.world.apply(WEB, config, applied_by)
        wanted = flat_of(config)
        self.values, self.owners = self.defaulted(wanted), {path: {(applied_by, "Apply")} for path in wanted}
        self.founder = applied_by

    # -- what must hold after every step ------------------------------------------------------------------------

    @invariant()
    def values_are_as_foretold(self) -> None:
        found = flat_of(self.world.get(WEB))
        assert found == self.values

    @invariant()
    def owners_are_as_foretold(self) -> None:
        live = self.world.get(WEB)
        there = every_path("", live)
        found: dict[str, set[Who]] = {}
        for entry in live["metadata"].get("managedFields", []):
            for path in steps("", entry["fieldsV1"]):
                assert path in there, f"{entry['manager']} owns {path}, which is not there"
                if path in self.values:
                    found.setdefault(path, set()).add((entry["manager"], entry["operation"]))
        assert found == self.owners


def is_container(path: str) -> bool:
    return path.startswith(".spec.template.spec.containers[") and path.count("[") == 1


Writers.TestCase.settings = settings(max_examples=60, stateful_step_count=15, deadline=None)
test_writers_of_one_object = Writers.TestCase
