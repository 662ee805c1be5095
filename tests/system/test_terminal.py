"""On a terminal, the live line does not change the output of the script."""

import re

SOURCE = """
import sys, time, torch
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(8):
    model(torch.randn(8, 64, device="cuda")).sum().backward()
    optimizer.step()
    print("step", step)
    time.sleep(0.1)
sys.stderr.write("\\r 50%|#####     |")
time.sleep(0.5)
sys.stderr.write("\\r100%|##########|\\n")
"""


def screen(output: str) -> list[str]:
    """Return the visible lines, after carriage returns, cleared lines and overwriting, without colors."""
    output = re.sub(r"\x1b\[[0-9;]*m", "", output).replace("\x1b[2K", "\x00")
    lines, column = [""], 0
    for character in output:
        if character == "\n":
            lines.append("")
            column = 0
        elif character == "\r":
            column = 0
        elif character == "\x00":
            lines[-1] = ""
        else:
            lines[-1] = lines[-1].ljust(column)[:column] + character + lines[-1][column + 1 :]
            column += 1
    return [line.rstrip() for line in lines]


def test_the_output_of_the_script_is_complete(write, legroom_on_terminal):
    code, output = legroom_on_terminal("run", "--gpu", "64MiB", write(SOURCE))
    assert code == 0
    assert re.search(r"legroom  step \d+  .* allocated", output)
    lines = screen(output)
    assert lines[1:10] == [*(f"step {step}" for step in range(8)), "100%|##########|"]
    assert lines[11].startswith("Finished after 8 steps (")
    assert not any("s/step" in line for line in lines)
