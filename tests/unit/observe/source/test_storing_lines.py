"""How source code uses a name: statements that store values in it, and statements that limit or empty it."""

from pathlib import Path

import pytest

from legroom.observe.source import storing_lines
from legroom.observe.source.calls import calls_in, names_in
from legroom.observe.source.files import functions_in, tree_of
from legroom.observe.source.storing_lines import NameUsage, find_feeding_calls, find_usage, find_usage_in


@pytest.fixture
def read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    # Other test modules count as the user's files, and use names that these tests treat as never called.
    monkeypatch.setattr(storing_lines, "user_files", list)

    def search(source: str, name: str, *, is_attribute: bool = False, function: str = "") -> NameUsage:
        file = tmp_path / "train.py"
        file.write_text(source)
        tree_of.cache_clear()
        calls_in.cache_clear()
        names_in.cache_clear()
        functions_in.cache_clear()
        find_usage_in.cache_clear()
        return find_usage(name, is_attribute=is_attribute, file=str(file), function=function)

    return search


@pytest.mark.parametrize(
    "statement",
    [
        "kept.append(x)", "kept += [x]", "kept[step] = x", "kept.setdefault(step, []).append(x)", "kept = [*kept, x]",
        "kept = kept + [x]", "heapq.heappush(kept, x)", 'kept["loss"].append(x)', "kept.add(x)", "kept.extend([x])",
    ],
)  # fmt: skip
def test_storing_statements_are_found(read, statement: str) -> None:
    usage = read(f"kept = []\nfor step in range(9):\n    x = model()\n    {statement}\n", "kept")
    assert usage.best is not None
    assert usage.best.line == 4
    assert not usage.shrinks


@pytest.mark.parametrize(
    "statement",
    [
        "kept.pop(0)", "kept.clear()", "del kept[:]", "kept = kept[-10:]", "kept[:] = []", "kept.popleft()",
        "if len(kept) > 10: break", "kept = torch.cat([kept, x])[-10:]",
        "kept = heapq.nlargest(10, kept)", "kept = kept[recent]",
        "kept = [each for each in kept if each.step > step - 10]",
    ],
)  # fmt: skip
def test_limiting_statements_are_found(read, statement: str) -> None:
    assert read(f"kept = []\nfor step in range(9):\n    kept.append(x)\n    {statement}\n", "kept").shrinks


def test_a_filter_without_a_comparison_is_not_a_limit(read) -> None:
    source = "for x in data:\n    kept = [each for each in kept if each is not None] + [x]\n"
    assert not read(source, "kept").shrinks


def test_a_name_that_is_filtered_in_every_iteration_is_limited(read) -> None:
    source = "kept = []\nfor x in data:\n    kept = [each for each in kept if each.age < 9] + [x]\n"
    assert read(source, "kept").shrinks


def test_a_new_empty_list_under_a_key_stores_no_tensor(read) -> None:
    source = "for name in names:\n    kept[name] = []\nfor x in data:\n    kept[name].append(x)\n"
    assert [each.line for each in read(source, "kept").statements] == [4]


def test_replacing_an_item_is_not_adding_one(read) -> None:
    source = (
        "for i in data:\n    kept[i] = x\n    kept.append(x)\n    kept[i] = kept[i] + x\n    kept[5:] = [x]\n"
    )
    assert [each.at_index for each in read(source, "kept").statements] == [True, False, False, False]


def test_a_modulo_of_the_length_is_not_a_limit(read) -> None:
    source = "for x in data:\n    kept.append(x)\n    if len(kept) % 100 == 0:\n        print(len(kept))\n"
    assert not read(source, "kept").shrinks


def test_an_empty_assignment_in_a_loop_is_a_reset(read) -> None:
    usage = read(
        "for epoch in range(3):\n    kept = []\n    for x in data:\n        kept.append(x)\n", "kept"
    )
    assert (usage.resets, usage.shrinks) == (True, False)


def test_a_membership_test_marks_a_cache(read) -> None:
    assert read("def f(k):\n    if k not in kept:\n        kept[k] = make(k)\n", "kept").checks_membership


def test_a_statement_that_stores_a_number_is_not_the_best_candidate(read) -> None:
    usage = read("kept.append(loss.item())\nfor x in data:\n    kept.append(loss)\n", "kept")
    assert usage.best is not None
    assert usage.best.line == 3


@pytest.mark.parametrize(
    "initial",
    [
        "torch.zeros(1, 4)", "torch.zeros(1, 4).to(device)", "(x.new_zeros(4), x.new_zeros(4))", "self.init_hidden(4)",
        "[torch.zeros_like(each) for each in self.h]", "torch.zeros_like(self.h)", "[torch.zeros(4)] * 2",
        "Variable(torch.zeros(4))", "x.data.new(4).zero_()", "torch.full((2, 4), 0.5)",
    ],
)  # fmt: skip
def test_a_statement_that_stores_an_initial_value_is_not_the_best_candidate(read, initial: str) -> None:
    source = f"class T:\n    def reset(self, x):\n        self.h = {initial}\n    def f(self, x):\n        out, h = self.rnn(x)\n        self.h = h\n"
    usage = read(source, "h", is_attribute=True)
    assert [each.line for each in usage.candidates()] == [6]


@pytest.mark.parametrize(
    ("statement", "adds", "concatenates"),
    [("h = cell(x, h)", False, False), ("h = h + x", True, False), ("h += x", True, False),
     ("h = torch.cat([h, x])", False, True), ("y, h = model(x, h)", False, False)],
)  # fmt: skip
def test_a_statement_that_computes_a_name_from_itself_is_recognized(
    read, statement: str, adds: bool, concatenates: bool
) -> None:
    usage = read(f"h = None\nfor x in data:\n    {statement}\n", "h")
    (found,) = [each for each in usage.statements if each.uses_itself]
    assert (found.line, found.adds, found.concatenates) == (3, adds, concatenates)


def test_an_attribute_is_found_in_any_method(read) -> None:
    source = "class T:\n    def __init__(self):\n        self.h = []\n    def f(self, x):\n        self.h.append(x)\n"
    usage = read(source, "h", is_attribute=True)
    assert usage.best is not None
    assert (usage.best.line, usage.best.function) == (5, "f")


def test_local_variables_of_two_functions_are_distinct(read) -> None:
    source = "def a():\n    kept = []\n    kept.append(1)\ndef b():\n    kept = []\n    kept.append(x)\n"
    usage = read(source, "kept", function="b")
    assert [each.line for each in usage.statements] == [6]


def test_calls_that_pass_a_value_to_a_library_object_are_found(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(
        "for x in data:\n    optimizer.zero_grad()\n    optimizer.add_param_group({'params': [x]})\n"
    )
    usage = find_feeding_calls("optimizer", str(file), "", 0)
    assert [each.line for each in usage.statements] == [3]


@pytest.mark.parametrize("source", ["def broken(:\n", "print 'python 2'\n", "\x00"])
def test_unreadable_source_yields_no_statements(read, source: str) -> None:
    assert read(source, "kept").statements == ()


def test_a_local_variable_hides_a_global_of_the_same_name(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "def forward(x, hidden=None):\n    out, hidden = cell(x, hidden)\n    return out, hidden\n"
        "for x in data:\n    out, hidden = forward(x, hidden)\n"
    )
    found = find_usage("hidden", is_attribute=False, file=str(script))
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


def test_attributes_of_two_classes_are_distinct(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storing_lines, "user_files", list)
    file = tmp_path / "train.py"
    file.write_text(TWO_LOGS)
    own = find_usage("values", is_attribute=True, file=str(file), classes=frozenset({"Training", "object"}))
    assert ([each.line for each in own.statements], own.shrinks) == ([8], False)
    other = find_usage("values", is_attribute=True, file=str(file), classes=frozenset({"Validation"}))
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


def test_a_method_that_is_never_called_empties_nothing(read) -> None:
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


def test_a_reset_method_called_in_a_loop_is_a_reset(read) -> None:
    assert read(METER.format(call="meter.reset()"), "values", is_attribute=True).resets


def test_a_reset_method_called_only_by_the_constructor_is_not_a_reset(read) -> None:
    assert not read(METER.format(call="pass"), "values", is_attribute=True).resets


@pytest.mark.parametrize("resets", [False, True])
def test_a_loop_over_the_owners_of_an_attribute_is_not_a_reset(read, resets: bool) -> None:
    loop = "for layer in model:\n    layer.outputs = []\n"
    if resets:
        loop = "for epoch in range(3):\n" + loop.replace("for", "    for").replace(
            "    layer.", "        layer."
        )
    assert read(f"{loop}layer.outputs.append(x)\n", "outputs", is_attribute=True).resets == resets


def test_the_iterable_of_a_loop_is_evaluated_once(read) -> None:
    source = "def batches(n):\n    seen = []\n    for i in range(n):\n        seen.append(i)\n        yield i\nfor x in batches(9):\n    pass\n"
    assert not read(source, "seen", function="batches").resets


def test_the_candidate_with_the_same_key_is_preferred(read) -> None:
    source = 'for x in data:\n    totals["n"] += count\n    totals["loss"] += loss\n'
    assert [each.line for each in read(source, "totals").candidates(("loss",))] == [3]


@pytest.mark.parametrize(
    "statement", ["total.add_(loss)", "total[i] = loss", "total[a:b] = loss", "kept[len(kept):] = [loss]"]
)
def test_writing_into_a_tensor_stores_and_does_not_limit(read, statement: str) -> None:
    usage = read(f"for x in data:\n    {statement}\n", statement.partition("[")[0].partition(".")[0])
    assert ([each.line for each in usage.statements], usage.shrinks) == ([2], False)


def test_a_statement_below_a_limit_is_marked(read) -> None:
    usage = read(
        "for i in data:\n    if i < 6:\n        kept.append(x)\n    else:\n        kept.append(y)\n", "kept"
    )
    assert [each.below_limit for each in usage.statements] == [True, False]


def test_a_mangled_attribute_name_is_recognized(read) -> None:
    source = "class T:\n    def f(self, x):\n        self.__kept.append(x)\n"
    assert [each.line for each in read(source, "_T__kept", is_attribute=True).statements] == [3]


@pytest.mark.parametrize(
    "statement",
    [
        "if len(kept) > 1 and x > min(kept[:-1]): worse += 1", "if len(kept) >= 10: print(sum(kept[-10:]))", "assert len(kept) < 100",
        "mean = sum(kept) / len(kept) if len(kept) > 5 else 0", "chosen = random.sample(kept, 8) if len(kept) > 8 else kept",
        "if len(kept) > 5 and kept[-1] > kept[-5]: break", "if len(kept) < 5: continue\n    kept.append(y)", "if step >= len(kept): break",
    ],
)  # fmt: skip
def test_a_length_test_that_changes_nothing_is_not_a_limit(read, statement: str) -> None:
    assert not read(
        f"kept = []\nfor step in range(9):\n    kept.append(x)\n    {statement}\n", "kept"
    ).shrinks


@pytest.mark.parametrize(
    "check", ["if self.cursor >= len(self.kept): return None", "return self.cursor < len(self.kept)"]
)
def test_a_cursor_that_follows_the_length_is_not_a_limit(read, check: str) -> None:
    source = (
        "class Replies:\n    def __init__(self):\n        self.kept, self.cursor = [], 0\n"
        "    def put(self, x):\n        self.kept.append(x)\n"
        f"    def poll(self):\n        self.cursor += 1\n        {check}\n"
        "replies = Replies()\nfor x in data:\n    replies.put(x)\n    replies.poll()\n"
    )
    assert not read(source, "kept", is_attribute=True).has_limit


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
def test_a_length_test_that_stops_or_empties_is_a_limit(read, source: str) -> None:
    assert read(f"kept = []\n{source}", "kept").limited


@pytest.mark.parametrize(
    "source",
    [
        "def trim(items, size):\n    while len(items) > size: items.pop(0)\nfor x in data:\n    kept.append(x)\n    trim(kept, 9)\n",
        "def trim(size, items):\n    del items[:-size]\nfor x in data:\n    kept.append(x)\n    trim(9, items=kept)\n",
        "same = kept\nfor x in data:\n    kept.append(x)\n    same.pop()\n",
    ],
)
def test_removals_under_another_name_count(read, source: str) -> None:
    assert read(f"kept = []\n{source}", "kept").limited


def test_clearing_each_item_counts(read) -> None:
    source = "for x in data:\n    kept['a'].append(x)\n    for rows in kept.values():\n        rows.clear()\n"
    assert read(f"kept = {{'a': []}}\n{source}", "kept").shrinks


def test_removals_from_a_slice_do_not_count(read) -> None:
    source = "for x in data:\n    kept.append(x)\n    recent = kept[-5:]\n    recent.pop()\n"
    assert not read(f"kept = []\n{source}", "kept").shrinks


def test_clearing_after_the_loop_does_not_count(read) -> None:
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
def test_an_initial_value_is_not_a_restart(read, source: str) -> None:
    initial = [each.only_if_missing for each in read(source, "kept").statements if each.replaces]
    assert initial == [True]


def test_the_first_step_of_an_inner_loop_is_a_restart(read) -> None:
    source = "for epoch in range(3):\n    for step, x in enumerate(data):\n        if step == 0:\n            kept = x\n"
    assert [each.only_if_missing for each in read(source, "kept").statements] == [False]


def test_a_caught_key_error_marks_a_cache(read) -> None:
    source = (
        "for x in data:\n    try:\n        y = kept[x]\n    except KeyError:\n        kept[x] = make(x)\n"
    )
    assert read(f"kept = {{}}\n{source}", "kept").checks_membership


@pytest.mark.parametrize(
    "source",
    [
        "i = 0\nfor x in data:\n    kept[i] = x\n    i += 1\n    if i == 9:\n        i = 0\n",
        "i = 0\nfor x in data:\n    kept[i] = x\n    i = (i + 1) % 9\n",
    ],
)
def test_an_index_that_wraps_around_is_a_limit(read, source: str) -> None:
    assert read(f"kept = {{}}\n{source}", "kept").limited


def test_an_index_that_only_rises_is_not_a_limit(read) -> None:
    assert not read("i = 0\nfor x in data:\n    kept[i] = x\n    i += 1\n", "kept").shrinks


def test_the_key_of_an_inner_loop_repeats(read) -> None:
    source = "for epoch in range(3):\n    for i, x in enumerate(data):\n        kept[{}] = x\n"
    assert [each.repeats_keys for each in read(source.format("i"), "kept").statements] == [True]
    assert [each.repeats_keys for each in read(source.format("epoch, i"), "kept").statements] == [False]


def test_slices_of_a_shrinking_pool_are_limited(read) -> None:
    source = "for _ in range(9):\n    kept, pool = torch.cat([kept, pool[:8]]), pool[8:]\n"
    assert read(source, "kept").limited


def test_a_filter_on_finished_items_is_a_limit(read) -> None:
    source = "for x in data:\n    kept.append(x)\n    kept = [each for each in kept if not each.done()]\n"
    assert read(f"kept = []\n{source}", "kept").limited


@pytest.mark.parametrize(("test", "below_limit"), [("step < 10", True), ("loss < best", False)])
def test_only_a_counter_below_a_limit_counts(read, test: str, below_limit: bool) -> None:
    usage = read(f"kept = []\nfor x in data:\n    if {test}:\n        kept.append(x)\n", "kept")
    assert [each.below_limit for each in usage.statements] == [below_limit]


@pytest.mark.parametrize(("counted", "below_limit"), [("self.count += 1", True), ("pass", False)])
def test_a_counter_that_never_changes_is_no_limit(read, counted: str, below_limit: bool) -> None:
    usage = read(
        "class Pool:\n    def __init__(self):\n        self.count, self.kept = 0, []\n\n"
        f"    def add(self, x):\n        {counted}\n        if self.count < 50:\n            self.kept.append(x)\n",
        "kept",
        is_attribute=True,
    )
    assert usage.best.below_limit == below_limit


def test_appending_the_name_to_another_list_is_not_storing_into_it(read) -> None:
    source = "for x in data:\n    kept = (x, 1)\n    others.append(kept)\n"
    assert [each.line for each in read(source, "kept").statements] == [2]


def test_a_list_subclass_that_limits_itself_is_a_limit(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(
        "class Short(list):\n    def append(self, x):\n        super().append(x)\n        del self[:-9]\n"
        "class Long(list):\n    def add(self, x):\n        self.append(x)\n"
    )
    assert storing_lines.class_limits_itself(str(file), "Short")
    assert not storing_lines.class_limits_itself(str(file), "Long")


def test_a_remainder_inside_a_call_does_not_make_a_key_repeat(read) -> None:
    source = "kept = {{}}\nfor i in range(90):\n    key = {}\n    kept[key] = i\n"
    assert not read(source.format("Document(i % 30)"), "kept").limited
    assert not read(source.format('f"user{i}" if i % 4 else "guest"'), "kept").limited
    assert read(source.format("1 + i % 30"), "kept").limited


def test_a_container_whose_items_are_only_removed_one_by_one_drains(read) -> None:
    source = "kept = {{}}\ndef add(i, x):\n    kept[i] = x\ndef take(i):\n    return kept.{}\nfor i in data:\n    add(i, i)\n    take(i)\n"
    assert read(source.format("pop(i)"), "kept").drains
    assert not read(source.format("clear()"), "kept").drains


def test_items_that_are_removed_once_after_the_loop_are_not_removed_in_the_loop(read) -> None:
    source = "kept = []\ndef add(x):\n    kept.append(x)\ndef end():\n    kept.clear()\nfor i in data:\n    add(i)\nend()\n"
    assert not read(source, "kept").emptied


KEYS = """kept = {"train": [], "val": []}
def wipe(which):
    kept[which].clear()
for step in range(9):
    kept["train"].append(model())
    STATEMENT
"""


@pytest.mark.parametrize(
    "statement", ['kept["val"].clear()', 'del kept["val"][0]', 'wipe("val")', 'kept["val"].pop(0)']
)
def test_removing_items_under_another_key_does_not_empty_the_key(
    read, tmp_path: Path, statement: str
) -> None:
    read(KEYS.replace("STATEMENT", statement), "kept")
    file = str(tmp_path / "train.py")
    assert not find_usage("kept", is_attribute=False, file=file, keys=("train",)).shrinks
    assert find_usage("kept", is_attribute=False, file=file, keys=("val",)).shrinks


@pytest.mark.parametrize("statement", ["wipe(step)", "kept[step].clear()", "kept.clear()", 'wipe("train")'])
def test_removing_items_under_the_same_or_an_unknown_key_empties_it(
    read, tmp_path: Path, statement: str
) -> None:
    read(KEYS.replace("STATEMENT", statement), "kept")
    assert find_usage("kept", is_attribute=False, file=str(tmp_path / "train.py"), keys=("train",)).shrinks


@pytest.mark.parametrize(("iterable", "expected"), [("bank", True), ("range(bank)", False)])
def test_training_data_is_read_and_not_only_a_number_of_steps(
    tmp_path: Path, iterable: str, expected: bool
) -> None:
    file = tmp_path / "train.py"
    file.write_text(f"bank.append(x)\nfor each in {iterable}:\n    loss(each).backward()\n")
    assert storing_lines.is_training_data("bank", str(file), 1) is expected


@pytest.mark.parametrize(
    ("check", "only_at"),
    [
        ("if len(self.kept) == self.capacity:\n            self.kept.pop(0)", {"capacity"}),
        ("if len(self.kept) == 50:\n            self.kept = []", {"50"}),
        ("if len(self.kept) >= self.capacity:\n            self.kept.pop(0)", set()),
        ("if len(self.kept) == 50:\n            self.kept.pop()\n        self.kept = self.kept[-90:]", set()),
    ],
)
def test_a_limit_that_applies_only_at_one_length(read, check: str, only_at: set[str]) -> None:
    source = f"""class Buffer:
    def push(self, x):
        {check}
        self.kept.append(x)
        self.kept.append(-x)
for step in range(9):
    buffer.push(step)
"""
    usage = read(source, "kept", is_attribute=True)
    assert usage.only_at == only_at
    assert usage.shrinks or usage.resets
    assert not usage.without_limits().shrinks
