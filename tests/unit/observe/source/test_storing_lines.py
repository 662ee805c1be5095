"""What the source says of a name: where things are put into it, and whether they are taken out again."""

from pathlib import Path

import pytest

from legroom.observe.source import storing_lines
from legroom.observe.source.calls import calls_in
from legroom.observe.source.files import functions_in, tree_of
from legroom.observe.source.storing_lines import Stored, find_feeding, find_storing


@pytest.fixture
def read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    # Tests of other modules are the user's files too, and mention names that these tests take for uncalled.
    monkeypatch.setattr(storing_lines, "user_files", list)

    def search(source: str, name: str, *, is_attribute: bool = False, function: str = "") -> Stored:
        file = tmp_path / "train.py"
        file.write_text(source)
        tree_of.cache_clear()
        calls_in.cache_clear()
        functions_in.cache_clear()
        return find_storing(name, is_attribute=is_attribute, file=str(file), function=function)

    return search


@pytest.mark.parametrize(
    "statement",
    [
        "kept.append(x)", "kept += [x]", "kept[step] = x", "kept.setdefault(step, []).append(x)", "kept = [*kept, x]",
        "kept = kept + [x]", "heapq.heappush(kept, x)", 'kept["loss"].append(x)', "kept.add(x)", "kept.extend([x])",
    ],
)  # fmt: skip
def test_statements_that_store(read, statement: str) -> None:
    stored = read(f"kept = []\nfor step in range(9):\n    x = model()\n    {statement}\n", "kept")
    assert stored.best is not None
    assert stored.best.line == 4
    assert not stored.shrinks


@pytest.mark.parametrize(
    "statement",
    [
        "kept.pop(0)", "kept.clear()", "del kept[:]", "kept = kept[-10:]", "kept[:] = []", "kept.popleft()",
        "if len(kept) > 10: break", "kept = torch.cat([kept, x])[-10:]",
        "kept = heapq.nlargest(10, kept)", "kept = kept[recent]",
        "kept = [each for each in kept if each.step > step - 10]",
    ],
)  # fmt: skip
def test_statements_that_limit(read, statement: str) -> None:
    assert read(f"kept = []\nfor step in range(9):\n    kept.append(x)\n    {statement}\n", "kept").shrinks


def test_a_filter_that_compares_nothing_is_no_limit(read) -> None:
    source = "for x in data:\n    kept = [each for each in kept if each is not None] + [x]\n"
    assert not read(source, "kept").shrinks


def test_a_name_that_is_only_ever_cut_is_limited(read) -> None:
    source = "kept = []\nfor x in data:\n    kept = [each for each in kept if each.age < 9] + [x]\n"
    assert read(source, "kept").shrinks


def test_what_takes_the_place_of_an_item_is_told_apart(read) -> None:
    source = (
        "for i in data:\n    kept[i] = x\n    kept.append(x)\n    kept[i] = kept[i] + x\n    kept[5:] = [x]\n"
    )
    assert [each.at_index for each in read(source, "kept").statements] == [True, False, False, False]


def test_every_hundredth_is_no_limit(read) -> None:
    source = "for x in data:\n    kept.append(x)\n    if len(kept) % 100 == 0:\n        print(len(kept))\n"
    assert not read(source, "kept").shrinks


def test_a_new_start_in_a_loop_is_told_apart(read) -> None:
    stored = read(
        "for epoch in range(3):\n    kept = []\n    for x in data:\n        kept.append(x)\n", "kept"
    )
    assert (stored.resets, stored.shrinks) == (True, False)


def test_a_cache_looks_before_it_stores(read) -> None:
    assert read("def f(k):\n    if k not in kept:\n        kept[k] = make(k)\n", "kept").looks_first


def test_a_number_is_not_the_statement_to_name(read) -> None:
    stored = read("kept.append(loss.item())\nfor x in data:\n    kept.append(loss)\n", "kept")
    assert stored.best is not None
    assert stored.best.line == 3


@pytest.mark.parametrize(
    ("statement", "adds", "joins"),
    [("h = cell(x, h)", False, False), ("h = h + x", True, False), ("h += x", True, False),
     ("h = torch.cat([h, x])", False, True), ("y, h = model(x, h)", False, False)],
)  # fmt: skip
def test_a_name_that_feeds_itself(read, statement: str, adds: bool, joins: bool) -> None:
    stored = read(f"h = None\nfor x in data:\n    {statement}\n", "h")
    (fed,) = [each for each in stored.statements if each.feeds_itself]
    assert (fed.line, fed.adds, fed.joins) == (3, adds, joins)


def test_an_attribute_is_found_in_any_method(read) -> None:
    source = "class T:\n    def __init__(self):\n        self.h = []\n    def f(self, x):\n        self.h.append(x)\n"
    stored = read(source, "h", is_attribute=True)
    assert stored.best is not None
    assert (stored.best.line, stored.best.function) == (5, "f")


def test_a_local_of_one_function_is_not_that_of_another(read) -> None:
    source = "def a():\n    kept = []\n    kept.append(1)\ndef b():\n    kept = []\n    kept.append(x)\n"
    stored = read(source, "kept", function="b")
    assert [each.line for each in stored.statements] == [6]


def test_methods_that_hand_something_on(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(
        "for x in data:\n    optimizer.zero_grad()\n    optimizer.add_param_group({'params': [x]})\n"
    )
    stored = find_feeding("optimizer", str(file), "", 0)
    assert [each.line for each in stored.statements] == [3]


@pytest.mark.parametrize("source", ["def broken(:\n", "print 'python 2'\n", "\x00"])
def test_source_that_cannot_be_read_says_nothing(read, source: str) -> None:
    assert read(source, "kept").statements == ()


def test_a_variable_of_the_same_name_within_a_function_is_another(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "def forward(x, hidden=None):\n    out, hidden = cell(x, hidden)\n    return out, hidden\n"
        "for x in data:\n    out, hidden = forward(x, hidden)\n"
    )
    found = find_storing("hidden", is_attribute=False, file=str(script))
    assert [each.line for each in found.statements] == [5]


TWO_LOGS = """
class Validation:
    def __init__(self): self.values = []
    def add(self, v): self.values.append(v)
    def reset(self): self.values.clear()
class Training:
    def __init__(self): self.values = []
    def add(self, v): self.values.append(v)
log = Training()
other = Validation()
other.reset()
"""


def test_an_attribute_of_the_same_name_in_another_class_is_another(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(TWO_LOGS)
    own = find_storing("values", is_attribute=True, file=str(file), classes=frozenset({"Training", "object"}))
    assert ([each.line for each in own.statements], own.shrinks) == ([8], False)
    other = find_storing("values", is_attribute=True, file=str(file), classes=frozenset({"Validation"}))
    assert other.shrinks


BUFFER = """
class Buffer:
    def __init__(self): self.data = []
    def push(self, x): self.data.append(x)
    def empty(self): self.data.clear()
buffer = Buffer()
for x in stream:
    buffer.push(x)
"""


def test_a_method_that_no_one_calls_empties_nothing(read) -> None:
    assert not read(BUFFER, "data", is_attribute=True).shrinks
    assert read(BUFFER + "    buffer.empty()\n", "data", is_attribute=True).emptied


METER = """
class Meter:
    def __init__(self): self.reset()
    def reset(self): self.values = []
    def update(self, x): self.values.append(x)
meter = Meter()
for epoch in range(3):
    {call}
    for x in stream:
        meter.update(x)
"""


def test_a_method_that_a_loop_calls_makes_anew(read) -> None:
    assert read(METER.format(call="meter.reset()"), "values", is_attribute=True).resets


def test_a_method_that_only_the_constructor_calls_does_not(read) -> None:
    assert not read(METER.format(call="pass"), "values", is_attribute=True).resets


def test_what_a_loop_runs_over_is_asked_for_once(read) -> None:
    source = "def batches(n):\n    seen = []\n    for i in range(n):\n        seen.append(i)\n        yield i\nfor x in batches(9):\n    pass\n"
    assert not read(source, "seen", function="batches").resets


def test_of_several_statements_the_one_with_the_key_at_hand_is_named(read) -> None:
    source = 'for x in data:\n    totals["n"] += count\n    totals["loss"] += loss\n'
    assert [each.line for each in read(source, "totals").candidates(("loss",))] == [3]


@pytest.mark.parametrize(
    "statement", ["total.add_(loss)", "total[i] = loss", "total[a:b] = loss", "kept[len(kept):] = [loss]"]
)
def test_writing_into_a_tensor_stores_and_limits_nothing(read, statement: str) -> None:
    stored = read(f"for x in data:\n    {statement}\n", statement.partition("[")[0].partition(".")[0])
    assert ([each.line for each in stored.statements], stored.shrinks) == ([2], False)


def test_what_is_stored_only_below_a_limit_says_so(read) -> None:
    stored = read(
        "for i in data:\n    if i < 6:\n        kept.append(x)\n    else:\n        kept.append(y)\n", "kept"
    )
    assert [each.guarded for each in stored.statements] == [True, False]


def test_the_name_mangled_by_python_is_the_same(read) -> None:
    source = "class T:\n    def f(self, x):\n        self.__kept.append(x)\n"
    assert [each.line for each in read(source, "_T__kept", is_attribute=True).statements] == [3]


@pytest.mark.parametrize(
    "statement",
    [
        "if len(kept) > 1 and x > min(kept[:-1]): worse += 1", "if len(kept) >= 10: print(sum(kept[-10:]))", "assert len(kept) < 100",
        "mean = sum(kept) / len(kept) if len(kept) > 5 else 0", "chosen = random.sample(kept, 8) if len(kept) > 8 else kept",
        "if len(kept) > 5 and kept[-1] > kept[-5]: break",
    ],
)  # fmt: skip
def test_a_length_on_which_nothing_hangs_is_no_limit(read, statement: str) -> None:
    assert not read(
        f"kept = []\nfor step in range(9):\n    kept.append(x)\n    {statement}\n", "kept"
    ).shrinks


@pytest.mark.parametrize(
    "source",
    [
        "for x in data:\n    if len(kept) >= 9:\n        continue\n    kept.append(x)\n",
        "for x in data:\n    if len(kept) != 9:\n        kept.append(x)\n",
        "def room():\n    return len(kept) < size\nfor x in data:\n    if room(): kept.append(x)\n",
        "def flush():\n    kept.clear()\nfor x in data:\n    kept.append(x)\n    if len(kept) == 9: flush()\n",
        "def learn():\n    flush()\ndef flush():\n    kept.clear()\nfor x in data:\n    kept.append(x)\n    if len(kept) == 9: learn()\n",
        "for x in data:\n    kept.append([x])\n    if sum(map(len, kept)) > 20: kept.pop(0)\n",
    ],
)
def test_a_length_on_which_something_hangs_is_a_limit(read, source: str) -> None:
    assert read(f"kept = []\n{source}", "kept").limited


@pytest.mark.parametrize(
    "source",
    [
        "def trim(items, size):\n    while len(items) > size: items.pop(0)\nfor x in data:\n    kept.append(x)\n    trim(kept, 9)\n",
        "def trim(size, items):\n    del items[:-size]\nfor x in data:\n    kept.append(x)\n    trim(9, items=kept)\n",
        "same = kept\nfor x in data:\n    kept.append(x)\n    same.pop()\n",
    ],
)
def test_what_is_taken_out_under_a_second_name_counts(read, source: str) -> None:
    assert read(f"kept = []\n{source}", "kept").limited


def test_items_that_are_cleared_one_by_one_count(read) -> None:
    source = "for x in data:\n    kept['a'].append(x)\n    for rows in kept.values():\n        rows.clear()\n"
    assert read(f"kept = {{'a': []}}\n{source}", "kept").shrinks


def test_what_is_done_with_a_part_of_it_does_not_count(read) -> None:
    source = "for x in data:\n    kept.append(x)\n    recent = kept[-5:]\n    recent.pop()\n"
    assert not read(f"kept = []\n{source}", "kept").shrinks


def test_what_is_emptied_after_the_loop_gives_nothing_back_to_it(read) -> None:
    assert not read("kept = []\nfor x in data:\n    kept.append(x)\nkept.clear()\n", "kept").shrinks


@pytest.mark.parametrize(
    "source",
    [
        "for x in data:\n    if kept is None:\n        kept = x\n    else:\n        kept = torch.cat([kept, x])\n",
        "for x in data:\n    if kept.numel() == 0:\n        kept = x\n    else:\n        kept = torch.cat([kept, x])\n",
        "for step, x in enumerate(data):\n    if step == 0:\n        kept = x\n    else:\n        kept = torch.cat([kept, x])\n",
        "for x in data:\n    try:\n        kept = torch.cat([kept, x])\n    except NameError:\n        kept = x\n",
    ],
)
def test_a_first_value_is_told_from_one_that_starts_anew(read, source: str) -> None:
    first = [each.is_first for each in read(source, "kept").statements if each.replaces]
    assert first == [True]


def test_the_first_step_of_an_inner_loop_starts_anew(read) -> None:
    source = "for epoch in range(3):\n    for step, x in enumerate(data):\n        if step == 0:\n            kept = x\n"
    assert [each.is_first for each in read(source, "kept").statements] == [False]


def test_a_key_that_is_tried_first_is_looked_up(read) -> None:
    source = (
        "for x in data:\n    try:\n        y = kept[x]\n    except KeyError:\n        kept[x] = make(x)\n"
    )
    assert read(f"kept = {{}}\n{source}", "kept").looks_first


@pytest.mark.parametrize(
    "source",
    [
        "i = 0\nfor x in data:\n    kept[i] = x\n    i += 1\n    if i == 9:\n        i = 0\n",
        "i = 0\nfor x in data:\n    kept[i] = x\n    i = (i + 1) % 9\n",
    ],
)
def test_an_index_that_is_set_back_goes_round(read, source: str) -> None:
    assert read(f"kept = {{}}\n{source}", "kept").limited


def test_an_index_that_only_counts_does_not_go_round(read) -> None:
    assert not read("i = 0\nfor x in data:\n    kept[i] = x\n    i += 1\n", "kept").shrinks


def test_the_key_of_an_inner_loop_comes_again(read) -> None:
    source = "for epoch in range(3):\n    for i, x in enumerate(data):\n        kept[{}] = x\n"
    assert [each.comes_again for each in read(source.format("i"), "kept").statements] == [True]
    assert [each.comes_again for each in read(source.format("epoch, i"), "kept").statements] == [False]


def test_what_comes_from_something_that_is_used_up_comes_to_an_end(read) -> None:
    source = "for _ in range(9):\n    kept, pool = torch.cat([kept, pool[:8]]), pool[8:]\n"
    assert read(source, "kept").limited


def test_items_that_say_when_they_are_done_may_leave(read) -> None:
    source = "for x in data:\n    kept.append(x)\n    kept = [each for each in kept if not each.done()]\n"
    assert read(f"kept = []\n{source}", "kept").limited


@pytest.mark.parametrize(("test", "guarded"), [("step < 10", True), ("loss < best", False)])
def test_only_what_counts_is_a_guard(read, test: str, guarded: bool) -> None:
    stored = read(f"kept = []\nfor x in data:\n    if {test}:\n        kept.append(x)\n", "kept")
    assert [each.guarded for each in stored.statements] == [guarded]


def test_what_is_put_into_another_is_not_stored_into(read) -> None:
    source = "for x in data:\n    kept = (x, 1)\n    others.append(kept)\n"
    assert [each.line for each in read(source, "kept").statements] == [2]


def test_a_list_of_the_users_own_that_limits_itself(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(
        "class Short(list):\n    def append(self, x):\n        super().append(x)\n        del self[:-9]\n"
        "class Long(list):\n    def add(self, x):\n        self.append(x)\n"
    )
    assert storing_lines.limits_itself(str(file), "Short")
    assert not storing_lines.limits_itself(str(file), "Long")
