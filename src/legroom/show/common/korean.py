"""The Korean catalogue of `language`: English templates and their Korean text.

A placeholder is `{name}` or `{name:kind}`; the kinds are `size`, `number` and `term` (a value that is translated too).
The English text must be the same as the text in the code. A Korean particle after a name must not depend on the last
sound of the name: use 에, 에서, 의 or 도. Sizes end with a vowel (`MiB`), so 를, 가 and 는 follow them.
"""

CATALOGUE = {
    # --- the parts of a report
    "Memory by category": "종류별 메모리",
    "Memory by line": "코드 줄별 메모리",
    "the largest {shown:number} of {number:number}": "{number}개 중 가장 큰 {shown}개",
    "Suggested change": "수정 제안",
    "(1 of {number:number})": "({number}개 중 1번)",
    "saves about {size:size}": "약 {size} 절약",
    "saves about {size:size} (may not be enough)": "약 {size} 절약(부족할 수 있음)",
    "Peaks of other devices": "다른 device의 최대 메모리",
    "{device:term} {allocated:size} of {capacity:size}": "{device} {capacity} 중 {allocated}",
    "Retained by": "메모리를 붙잡고 있는 변수",
    "Peak per step": "step별 최대 메모리",
    "{number:number} steps, {low:size} to {high:size}, {duration} each": "{number} step, {low}~{high}, step당 {duration}",
    "{number:number} steps, {size:size}, {duration} each": "{number} step, {size}, step당 {duration}",
    "Recorded in {capture}.": "{capture}에 기록했습니다.",
    "Next:": "다음 명령:",
    "Next, {when:term}:": "다음 명령({when}):",
    "virtual GPU {index:number}": "가상 GPU {index}",
    "virtual GPU {index:number}, {capacity:size}": "가상 GPU {index}, {capacity}",
    "virtual GPU {index:number}, {usable:size} of {capacity:size}": "가상 GPU {index}, {capacity} 중 {usable}",
    "host memory": "호스트 메모리",
    # --- categories
    "parameter": "파라미터",
    "gradient": "gradient",
    "optimizer state": "optimizer 상태",
    "activation": "activation",
    "input": "입력",
    "buffer": "buffer",
    "workspace": "workspace",
    "result": "결과",
    "temporary": "임시",
    "non-PyTorch": "PyTorch 외",
    "cached, reusable": "캐시, 재사용 가능",
    "fragmented": "단편화",
    "free": "남음",
    "{number:number} smaller part": "나머지 {number}개",
    "{number:number} smaller parts": "나머지 {number}개",
    # --- the summary
    "in the forward pass": "forward pass",
    "in the backward pass": "backward pass",
    "in the optimizer step": "optimizer step",
    "outside forward and backward": "forward와 backward 밖",
    "between the forward and the backward pass": "forward와 backward 사이",
    "Out of memory in the evaluation.": "평가에서 메모리가 부족해졌습니다.",
    "Out of memory in the evaluation, at {place}.": "{place}, 평가에서 메모리가 부족해졌습니다.",
    "Out of memory in the evaluation after {steps}, at {place}.": "{place}, {steps} 후의 평가에서 메모리가 부족해졌습니다.",
    "Out of memory at step {step:number} {phase:term}.": "step {step}의 {phase}에서 메모리가 부족해졌습니다.",
    "Out of memory at step {step:number} {phase:term}, at {place}.": "{place}, step {step}의 {phase}에서 메모리가 부족해졌습니다.",
    "Out of memory on {device:term} at step {step:number} {phase:term}.": (
        "{device}, step {step}의 {phase}에서 메모리가 부족해졌습니다."
    ),
    "Out of memory on {device:term} at step {step:number} {phase:term}, at {place}.": (
        "{device}, {place}, step {step}의 {phase}에서 메모리가 부족해졌습니다."
    ),
    "Tried to allocate {requested:size}; {free:size} of {capacity:size} free.": (
        "{requested}를 할당하려 했지만 {capacity} 중 {free}만 남아 있었습니다."
    ),
    "Tried to allocate {block:size} for a request of {requested:size}; {free:size} of {capacity:size} free.": (
        "{requested}를 할당하려면 {block} 블록이 필요한데, {capacity} 중 남은 것은 {free}였습니다."
    ),
    "Nothing was spilled: no saved activation on the GPU was 1 MiB or larger.": (
        "호스트 메모리로 옮긴 것이 없습니다. GPU에 저장된 activation 중 1 MiB 이상인 것이 없었습니다."
    ),
    "Spilled {moved:size} of saved activations to host memory (at most {peak:size} at a time), which took {duration}.": (
        "저장된 activation {moved}를 호스트 메모리로 옮겼습니다(한 번에 최대 {peak}, {duration} 걸림)."
    ),
    "{number:number} allocation failed inside a library, such as cuDNN, and the library continued with less memory.": (
        "라이브러리(예: cuDNN) 안에서 할당이 {number}번 실패했고, 라이브러리는 메모리를 덜 쓰며 계속했습니다."
    ),
    "{number:number} allocations failed inside a library, such as cuDNN, and the library continued with less memory.": (
        "라이브러리(예: cuDNN) 안에서 할당이 {number}번 실패했고, 라이브러리는 메모리를 덜 쓰며 계속했습니다."
    ),
    # --- the comments of commands
    "with a smaller batch size": "더 작은 batch size로",
    "after the change in {place}": "{place} 수정 후",
    "with saved activations in host memory": "activation을 호스트 메모리에 두고",
    "after changing the batch size": "batch size를 바꾼 후",
    "find the largest batch size": "가능한 가장 큰 batch size 찾기",
    "with less fragmentation": "단편화를 줄여서",
    "without changing the code, but slower": "코드를 고치지 않고, 더 느림",
    "slower, may not be enough": "더 느리고, 부족할 수 있음",
    "after changing the code": "코드를 고친 후",
    "with a smaller batch size, after changing the code": "코드를 고친 후 더 작은 batch size로",
    "the complete report": "전체 리포트",
    "a web page with charts": "차트가 있는 웹 페이지",
    # --- advice: retained memory
    "A long-lived reference": "오래 남아 있는 참조",
    "An object that is not visible to Python": "Python에서 보이지 않는 객체",
    "Memory grows by {rate:size} per step and has reached {size:size}.": "메모리가 step마다 {rate}씩 늘어 {size}가 되었습니다.",
    "{owner} → {rate:size} per step.": "{owner} → step당 {rate}.",
    "{owner:term} retains the autograd graph of every step.": "{owner}에 모든 step의 autograd graph가 남아 있습니다.",
    "Store detached tensors (`.detach()`, and `.cpu()` if no later operation needs them on the GPU) or numbers (`loss.item()`) instead.": (
        "대신 detach한 tensor(`.detach()`, 나중에 GPU에서 쓰지 않으면 `.cpu()`도)나 숫자(`loss.item()`)를 저장하세요."
    ),
    "Store detached tensors (`.detach()`, and `.cpu()` if no later operation needs them on the GPU) or numbers (`.item()`) in `{name}`, or clear the variable after use.": (
        "`{name}`에 detach한 tensor(`.detach()`, 나중에 GPU에서 쓰지 않으면 `.cpu()`도)나 숫자(`.item()`)를 저장하거나, 다 쓴 뒤에 변수를 비우세요."
    ),
    "{owner:term} retains the tensors created on this line.": "{owner}에 이 줄에서 만든 tensor가 남아 있습니다.",
    "Store host tensors or numbers instead (`.cpu()`, `.item()`), or delete the tensors before the next step.": (
        "대신 호스트 tensor나 숫자를 저장하거나(`.cpu()`, `.item()`), 다음 step 전에 tensor를 삭제하세요."
    ),
    "{owner:term} stores exceptions, and each exception keeps the local variables of the failed functions alive.": (
        "{owner}에 예외가 저장되어 있고, 예외마다 실패한 함수의 지역 변수가 함께 남습니다."
    ),
    "Store `str(error)` or `error.with_traceback(None)` instead.": (
        "대신 `str(error)`나 `error.with_traceback(None)`을 저장하세요."
    ),
    "The cache of {owner:term} retains a tensor from every call.": "{owner}의 캐시에 호출할 때마다 tensor가 남습니다.",
    "Set a small `maxsize`, call the function with fewer different arguments, or remove the cache.": (
        "`maxsize`를 작게 하거나, 함수를 더 적은 종류의 인자로 호출하거나, 캐시를 없애세요."
    ),
    "{owner:term} is part of a reference cycle. Only Python's garbage collector frees cycles, and the collector did not run. Break the cycle (use a weak reference or set the attribute to None), or call `gc.collect()` every few steps.": (
        "{owner}에 순환 참조가 있습니다. 순환 참조는 Python의 garbage collector만 해제하는데, 아직 실행되지 않았습니다. weak reference를 쓰거나 "
        "속성을 None으로 바꿔 순환을 끊거나, 몇 step마다 `gc.collect()`를 호출하세요."
    ),
    "The backward pass with `create_graph=True` stores a gradient with a graph in {owner:term}. The gradient, its graph and the parameter refer to each other, so they are never freed. Remove `create_graph=True` if no later backward pass needs the graph of the gradient. Otherwise, use `torch.autograd.grad(…, create_graph=True)`.": (
        "`create_graph=True`로 실행한 backward pass 때문에 {owner}에 graph가 붙은 gradient가 저장됩니다. gradient와 그 graph, parameter가 서로 참조하므로 "
        "해제되지 않습니다. 나중의 backward pass에 gradient의 graph가 필요 없으면 `create_graph=True`를 지우세요. 필요하면 "
        "`torch.autograd.grad(…, create_graph=True)`를 쓰세요."
    ),
    "Each step registers {owner:term} again, and each function keeps its tensors alive. Register the function once, or remove it after use (`handle.remove()`).": (
        "step마다 {owner} 함수를 다시 등록하고, 함수마다 tensor가 함께 남습니다. 함수를 한 번만 등록하거나, 다 쓴 뒤에 제거하세요(`handle.remove()`)."
    ),
    "Each step adds another function to {owner:term}, and each function keeps its tensors alive. Register the function once, or remove it after use (`handle.remove()`).": (
        "step마다 {owner}에 함수가 하나씩 더해지고, 함수마다 tensor가 함께 남습니다. 함수를 한 번만 등록하거나, 다 쓴 뒤에 제거하세요(`handle.remove()`)."
    ),
    "Each step compiles another function with {owner:term}. PyTorch never frees a compiled function or the tensors that it contains. Compile the function once, before the loop.": (
        "step마다 {owner}로 함수가 새로 컴파일됩니다. PyTorch는 컴파일된 함수와 그 안의 tensor를 해제하지 않습니다. 반복문 앞에서 함수를 한 번만 컴파일하세요."
    ),
    "Each step starts another thread, and threads that never end keep {owner:term} alive. Stop the old thread before you start a new one, or use one thread for the whole run.": (
        "step마다 thread가 새로 시작되고, 끝나지 않는 thread 때문에 {owner}의 메모리가 해제되지 않습니다. 새 thread를 시작하기 전에 이전 thread를 "
        "끝내거나, 실행 내내 thread 하나를 쓰세요."
    ),
    "Each object refers to the previous one through {owner:term}, so all earlier objects stay alive. Set the attribute to None when it is no longer needed, or store only the values that later steps read.": (
        "각 객체가 {owner}로 이전 객체를 참조하므로 이전 객체가 모두 남습니다. 더 필요하지 않으면 속성을 None으로 바꾸거나, 나중에 읽을 값만 저장하세요."
    ),
    "{owner:term} is concatenated with new data in each step, so it keeps growing. Collect `.cpu()` tensors in a list and concatenate the list once at the end, or limit the length of the tensor (`[-1000:]`).": (
        "{owner}에 step마다 새 데이터를 이어 붙여 계속 커집니다. `.cpu()` tensor를 리스트에 모아 마지막에 한 번만 합치거나, tensor의 길이를 "
        "제한하세요(`[-1000:]`)."
    ),
    "{owner:term} collects tensors in host memory in every step and never frees them. Store numbers (`.item()`), limit the length (`deque(maxlen=…)`), or write the tensors to a file and clear the container regularly.": (
        "{owner}에 step마다 tensor가 호스트 메모리에 쌓이고 해제되지 않습니다. 숫자(`.item()`)를 저장하거나, 길이를 "
        "제한하거나(`deque(maxlen=…)`), tensor를 파일에 쓰고 주기적으로 비우세요."
    ),
    "{owner:term} collects tensors in every step and never frees them. Store numbers (`.item()`) or host tensors (`.cpu()`), limit the length (`deque(maxlen=…)`), or clear the container.": (
        "{owner}에 step마다 tensor가 쌓이고 해제되지 않습니다. 숫자(`.item()`)나 호스트 tensor(`.cpu()`)를 저장하거나, 길이를 "
        "제한하거나(`deque(maxlen=…)`), 비우세요."
    ),
    "{owner:term} is carried from step to step together with its graph. Before the next step, add `{variable} = {value}.detach()`. For a tuple or an object, detach each tensor in it.": (
        "{owner}의 graph가 다음 step까지 이어집니다. 다음 step 전에 `{variable} = {value}.detach()`를 실행하세요(tuple이나 객체이면 안에 있는 tensor마다)."
    ),
    "{owner:term} is carried from step to step together with its graph. Before the next step, replace each tensor in {container:term} by `tensor.detach()`.": (
        "{owner}의 graph가 다음 step까지 이어집니다. 다음 step 전에 {container}에 있는 tensor를 각각 `tensor.detach()`로 바꾸세요."
    ),
    "{owner:term} retains the graph of every batch, but no backward pass uses these graphs. Wrap the loop in `with torch.no_grad():` and store `.item()` or `.cpu()`.": (
        "{owner}에 모든 batch의 graph가 남지만, 이 graph를 쓰는 backward pass가 없습니다. 반복문을 `with torch.no_grad():`로 감싸고 `.item()`이나 "
        "`.cpu()`를 저장하세요."
    ),
    "Activations from earlier steps are still alive: {size:size}.": "이전 step의 activation이 아직 남아 있습니다: {size}.",
    "Release the old graph before the next forward pass: remove `retain_graph=True`, detach the hidden state, or `del` the output that still refers to the graph (or store `output.detach().clone()`).": (
        "다음 forward pass 전에 이전 graph를 놓아주세요. `retain_graph=True`를 없애거나, hidden state를 detach하거나, graph를 참조하는 output을 "
        "`del`하세요(또는 `output.detach().clone()`을 저장하세요)."
    ),
    "{batches:number} batches ran without a backward pass, but autograd saved {size:size} of activations that no backward pass used.": (
        "batch {batches}개를 backward pass 없이 실행했는데, autograd가 쓰이지 않을 activation을 {size} 저장했습니다."
    ),
    "The evaluation runs with gradients enabled, so autograd saved {size:size} of activations that no backward pass needs.": (
        "gradient를 켠 채로 평가해서, 필요 없는 activation을 autograd가 {size} 저장했습니다."
    ),
    "Wrap the evaluation loop in `with torch.no_grad():` (or `torch.inference_mode()`).": (
        "평가 반복문을 `with torch.no_grad():`(또는 `torch.inference_mode()`)로 감싸세요."
    ),
    "{owner} retains {size:size} on the device.": "{owner}에 device 메모리 {size}가 남아 있습니다.",
    "Store numbers (`.item()`) or host tensors (`.detach().cpu()`) in `{name}`, or clear the variable after use.": (
        "`{name}`에는 숫자(`.item()`)나 호스트 tensor(`.detach().cpu()`)를 저장하거나, 다 쓴 뒤에 비우세요."
    ),
    "A result created on this line is still referenced by {variable}: {size:size}.": (
        "이 줄에서 만든 결과를 {variable}에서 아직 참조합니다: {size}."
    ),
    "A result created in an earlier step on this line is still referenced by {variable}: {size:size}.": (
        "이전 step에 이 줄에서 만든 결과를 {variable}에서 아직 참조합니다: {size}."
    ),
    "Delete the variable with {delete} after its last use, or store a number or a host tensor instead (`.item()`, `.detach().cpu()`).": (
        "마지막으로 쓴 뒤에 {delete} 문으로 변수를 삭제하거나, 대신 숫자나 호스트 tensor를 저장하세요(`.item()`, `.detach().cpu()`)."
    ),
    "Gradients from the previous step are still alive during evaluation: {size:size}.": (
        "평가 중에 이전 step의 gradient가 아직 남아 있습니다: {size}."
    ),
    "Gradients from the previous step are still alive during this operation, after the training: {size:size}.": (
        "학습이 끝난 뒤의 이 연산 중에 이전 step의 gradient가 아직 남아 있습니다: {size}."
    ),
    "Gradients from the previous step are still alive during this forward pass: {size:size}.": (
        "이 forward pass 중에 이전 step의 gradient가 아직 남아 있습니다: {size}."
    ),
    "Call `optimizer.zero_grad(set_to_none=True)` after training.": "학습이 끝나면 `optimizer.zero_grad(set_to_none=True)`를 호출하세요.",
    "Call `optimizer.zero_grad(set_to_none=True)` before the forward pass, unless you accumulate gradients.": (
        "gradient accumulation을 하지 않는다면 forward pass 전에 `optimizer.zero_grad(set_to_none=True)`를 호출하세요."
    ),
    "Other attributes of `{name}` grow as well.": "`{name}`의 다른 속성도 커지고 있습니다.",
    "It retains {size:size}.": "총 {size}를 붙잡고 있습니다.",
    "{size:size} of the failed attempt is still alive during the retry.": "재시도하는 동안 실패한 시도의 메모리 {size}가 아직 남아 있습니다.",
    "Retry after the `except` block instead of inside the block, where the exception retains the tensors of the failed attempt.": (
        "`except` 블록 안이 아니라 블록이 끝난 뒤에 다시 시도하세요. 블록 안에서는 예외가 실패한 시도의 텐서를 붙잡고 있습니다."
    ),
    "{size:size} of activations from earlier passes are still alive.": "이전 pass의 activation {size}가 아직 남아 있습니다.",
    "This call saves {size:size} of activations that no backward pass needs.": (
        "이 호출은 어떤 backward pass도 쓰지 않는 activation {size}를 저장합니다."
    ),
    "Call this `{model}` in `with torch.no_grad():`, or freeze it with `requires_grad_(False)`, because no optimizer updates it.": (
        "이 `{model}`을 갱신하는 optimizer가 없으므로 `with torch.no_grad():` 안에서 호출하거나 `requires_grad_(False)`로 고정하세요."
    ),
    "Gradients and activations that no optimizer uses need {size:size}.": (
        "어떤 optimizer도 쓰지 않는 gradient와 activation이 {size}를 차지합니다."
    ),
    "Freeze {names} of `{model}` before the training with `requires_grad_(False)`, because no optimizer updates their parameters.": (
        "파라미터를 갱신하는 optimizer가 없으므로, 학습 전에 `{model}`의 {names}을(를) `requires_grad_(False)`로 고정하세요."
    ),
    "This operation compares each sample with all others, and its result needs {size:size}.": (
        "이 연산은 각 샘플을 다른 모든 샘플과 비교하고, 결과가 {size}를 차지합니다."
    ),
    "Give `{column}` and `{row}` the same shape before this line, for example with `{change}`.": (
        "이 줄 앞에서 `{column}`과 `{row}`의 shape을 같게 하세요. 예: `{change}`."
    ),
    "Their shapes ({n:number}, 1) and ({m:number},) broadcast to ({k:number}, {l:number}).": (
        "shape ({n}, 1)과 ({m},)이 ({k}, {l})로 broadcast됩니다."
    ),
    "Use `torch.cdist` for distances or `x @ y.T` for products.": "거리에는 `torch.cdist`, 곱에는 `x @ y.T`를 쓰세요.",
    "The result then has one element for each pair, and not one for each pair and feature.": (
        "그러면 결과에 쌍과 feature마다가 아니라 쌍마다 원소가 하나만 있습니다."
    ),
    "{size:size} of optimizer state belongs to {count:number} earlier optimizers of the same parameters.": (
        "같은 파라미터를 갱신하던 이전 optimizer {count}개의 state가 {size}를 차지합니다."
    ),
    "Keep only the newest optimizer: delete the earlier optimizers before you create the next one, or change the learning rate in `param_groups` of one optimizer.": (
        "가장 새 optimizer만 남기세요. 다음 optimizer를 만들기 전에 이전 것을 지우거나, optimizer 하나의 `param_groups`에서 learning rate를 바꾸세요."
    ),
    "Keep only the newest optimizer in `{name}`: delete the earlier optimizers before you create the next one, or change the learning rate in `param_groups` of one optimizer.": (
        "`{name}`에는 가장 새 optimizer만 남기세요. 다음 optimizer를 만들기 전에 이전 것을 지우거나, optimizer 하나의 `param_groups`에서 learning "
        "rate를 바꾸세요."
    ),
    "The evaluation in {file}:{line:number} needs this too.": "{file}:{line}의 평가도 마찬가지입니다.",
    "This line uses {size:size}.": "이 줄은 {size}를 씁니다.",
    "Activations and gradients use {size:size}.": "activation과 gradient가 {size}를 씁니다.",
    "`{name}` retains {size:size} of activations that this backward pass does not use.": (
        "이 backward pass가 쓰지 않는 activation {size}가 `{name}`에 남아 있습니다."
    ),
    "If no later backward pass uses `{name}`, compute it in `with torch.no_grad():`, or store `.detach()` of each result.": (
        "나중의 backward pass가 `{name}`을 쓰지 않는다면 `with torch.no_grad():` 안에서 계산하거나, 각 결과의 `.detach()`를 저장하세요."
    ),
    "The tensors in {container:term} are parts of larger tensors (views), which stay in memory as a whole. Store copies of the parts with `.clone()`.": (
        "{container}의 tensor는 더 큰 tensor의 일부(view)라서 큰 tensor 전체가 메모리에 남습니다. `.clone()`으로 일부만 복사해 저장하세요."
    ),
    "Keep only one copy of the weights on the device: move a model or its state to the host (`.cpu()`) before it is stored in `{name}`, or save it to a file. For a state dict, call `.cpu()` on each tensor.": (
        "가중치는 GPU에 하나만 두세요. 모델이나 state를 `{name}`에 넣기 전에 host로 옮기거나(`.cpu()`) 파일에 저장하세요. state dict이면 tensor마다 "
        "`.cpu()`를 호출하세요."
    ),
    "{size:size} of the loaded checkpoint are still on the device, in addition to the weights of the model.": (
        "불러온 checkpoint의 {size}가 모델의 가중치와 별도로 GPU에 남아 있습니다."
    ),
    'Load the checkpoint into host memory with `map_location="cpu"`. `load_state_dict` copies the weights to the right device.': (
        '`map_location="cpu"`로 checkpoint를 호스트 메모리에 불러오세요. `load_state_dict`가 가중치를 알맞은 device로 복사합니다.'
    ),
    "{size:size} of results from {steps} earlier steps are still alive.": "이전 step {steps}개의 결과 {size}가 해제되지 않고 남아 있습니다.",
    "{holder:term} refers to them.": "{holder}에서 참조합니다.",
    "Store numbers (`.item()`) or host tensors (`.detach().cpu()`) instead, or remove them after each step.": (
        "대신 숫자(`.item()`)나 호스트 tensor(`.detach().cpu()`)를 저장하거나, step마다 지우세요."
    ),
    "`{layer}` ({kind}) has {share} of the weights. If its input is a flattened feature map, reduce the feature map first, for example with `nn.AdaptiveAvgPool2d`.": (
        "`{layer}`({kind})이 가중치의 {share}를 차지합니다. 입력이 펼친 feature map이면 `nn.AdaptiveAvgPool2d` 등으로 feature map을 먼저 줄이세요."
    ),
    "`{layer}` ({kind}) has {share} of the weights. With `sparse=True` and an optimizer such as `SGD` or `SparseAdam` for it, its gradient needs memory only for the rows of a batch.": (
        "`{layer}`({kind})이 가중치의 {share}를 차지합니다. `sparse=True`와 `SGD`, `SparseAdam` 같은 optimizer를 쓰면 gradient가 batch의 행만큼만 메모리를 씁니다."
    ),
    "Use float32 for the model and its inputs. Change {places}.": "모델과 입력에 float32를 쓰세요. {places}를 고치세요.",
    "Convert inputs that are still float64, such as NumPy arrays, with `.float()`.": (
        "NumPy 배열처럼 아직 float64인 입력은 `.float()`로 바꾸세요."
    ),
    # --- advice: less memory
    "Limit the size of the samples: truncate, crop or split them, or put samples of similar size into one batch.": (
        "샘플의 크기를 제한하세요. 자르거나 crop하거나 나누고, 크기가 비슷한 샘플끼리 batch를 만드세요."
    ),
    "The tensors from this line use {size:size}, and this operation needs another {more:size}.": (
        "이 줄의 tensor가 {size}를 쓰고, 이 연산에는 {more}가 더 필요합니다."
    ),
    "Compute this result in parts, for example for some rows at a time, or move parts that are complete to the host (`.cpu()`).": (
        "이 결과를 나누어 계산하거나(예: 몇 행씩), 끝난 부분을 host로 옮기세요(`.cpu()`)."
    ),
    "This input has the shape {shape}, and the first input had the shape {first}.": (
        "이 입력의 shape은 {shape}이고, 첫 입력의 shape은 {first}였습니다."
    ),
    "A large sample determines the size of this batch, which uses {size:size}.": (
        "큰 샘플이 이 batch의 크기를 정하며, batch가 {size}를 씁니다."
    ),
    "Pass a mask as `attn_mask`, in which True keeps a position, and dropout as `dropout_p`, which must be 0 in an evaluation.": (
        "mask는 `attn_mask`로(True인 위치를 사용), dropout은 `dropout_p`로(평가할 때는 0) 넘기세요."
    ),
    "Accumulated gradients do not replace a larger batch here, because the loss compares the samples of a batch.": (
        "loss가 batch 안의 샘플을 서로 비교하므로, gradient를 누적해도 큰 batch와 같지 않습니다."
    ),
    "One-hot vectors use {size:size}.": "one-hot 벡터가 {size}를 차지합니다.",
    "Pass the indices to `torch.nn.Embedding`, which replaces the one-hot vectors and the linear layer that multiplies them.": (
        "one-hot 벡터와 그 벡터를 곱하는 linear layer 대신 `torch.nn.Embedding`에 index를 넘기세요."
    ),
    "As the target of a loss, pass the indices.": "loss의 target으로는 index를 그대로 넘기세요.",
    "The attention scores of all pairs of positions use {size:size}.": "모든 위치 쌍의 attention score가 {size}를 차지합니다.",
    "Compute this attention with `torch.nn.functional.scaled_dot_product_attention(q, k, v)`, which does not store the scores, for `q`, `k` and `v` of the shape (batch, heads, length, size).": (
        "score를 저장하지 않는 `torch.nn.functional.scaled_dot_product_attention(q, k, v)`로 이 attention을 계산하세요. `q`, `k`, `v`의 shape은 "
        "(batch, heads, length, size)이어야 합니다."
    ),
    "The scores grow with the square of the length.": "score의 크기는 길이의 제곱에 비례합니다.",
    "`{model}` computes in float64, which needs twice the memory of float32.": (
        "`{model}`은 float64로 계산하며, float32보다 메모리가 두 배 필요합니다."
    ),
    "Convert the model and its inputs to float32 (`.float()`).": "모델과 입력을 float32로 바꾸세요(`.float()`).",
    "NumPy arrays are float64 by default.": "NumPy 배열의 기본 dtype은 float64입니다.",
    "This operation alone requires {requested:size}, but PyTorch can use at most {budget:size} on this device.": (
        "이 연산 하나에 {requested}가 필요한데, PyTorch가 이 device에서 쓸 수 있는 메모리는 최대 {budget}입니다."
    ),
    "Check the shapes on this line. An unintended broadcast or a wrong dimension is the usual cause. If the shapes are correct, compute the result in chunks or reduce the batch size.": (
        "이 줄의 shape을 확인하세요. 의도하지 않은 broadcast나 잘못된 차원이 흔한 원인입니다. shape이 맞다면 결과를 나누어 계산하거나 batch size를 "
        "줄이세요."
    ),
    "Check the shapes on this line. An unintended broadcast or a wrong dimension is the usual cause. If the shapes are correct, compute the result in chunks, or process smaller inputs: resize or crop the sample, or split it into tiles.": (
        "이 줄의 shape을 확인하세요. 의도하지 않은 broadcast나 잘못된 차원이 흔한 원인입니다. shape이 맞다면 결과를 나누어 계산하거나, 입력을 "
        "줄이세요(크기를 줄이거나 자르거나 tile로 나누기)."
    ),
    "Autocast to bfloat16 would roughly halve the {size:size} of results if they are float32.": (
        "결과 {size}가 float32라면 bfloat16 autocast로 약 절반이 됩니다."
    ),
    'Wrap the evaluation in `with torch.autocast("cuda", dtype=torch.bfloat16):`.': (
        '평가를 `with torch.autocast("cuda", dtype=torch.bfloat16):`로 감싸세요.'
    ),
    "The evaluation runs one sample at a time, so a smaller batch is not possible. This operation needs {requested:size} for its result, in addition to {size:size} of inputs and results.": (
        "평가에서 sample을 하나씩 실행하므로 batch size를 더 줄일 수 없습니다. 입력과 결과 {size}에 더해, 이 연산의 결과에 {requested}가 필요합니다."
    ),
    "Use the in-place form of this operation, for example `nn.ReLU(inplace=True)`.": (
        "이 연산의 in-place 형태를 쓰세요. 예: `nn.ReLU(inplace=True)`."
    ),
    "Process smaller inputs: resize or crop the sample, or split it into tiles and run the model on one tile at a time. Tiles of half the size need about half the memory. For convolutions, let the tiles overlap.": (
        "입력을 줄이세요. sample의 크기를 줄이거나 자르거나, tile로 나누어 한 번에 하나씩 실행하세요. tile 크기가 절반이면 메모리도 약 절반이 됩니다. "
        "convolution이면 tile을 겹치게 하세요."
    ),
    "The weights do not fit. With {weights:size} of weights on the device, an allocation of {requested:size} failed. In addition to the weights, training with Adam needs gradients and optimizer state, which together are three times as large.": (
        "weight가 메모리에 들어가지 않습니다. device에 weight {weights}가 있는 상태에서 {requested}를 할당하지 못했습니다. gradient와 Adam의 상태에는 "
        "weight의 세 배가 더 필요합니다."
    ),
    "Load the weights in half precision (`model.to(torch.bfloat16)` before `.to(device)`), train adapters on a quantized model, or split the model across several GPUs.": (
        "weight를 half precision으로 불러오거나(`.to(device)` 전에 `model.to(torch.bfloat16)`), quantize한 모델에 adapter를 학습하거나, 모델을 여러 "
        "GPU에 나누세요."
    ),
    "One input tensor uses {share} of the memory: {size:size}.": "입력 tensor 하나가 메모리의 {share}를 씁니다: {size}.",
    "If this tensor is the whole dataset, keep the tensor on the host and move one batch at a time to the GPU.": (
        "이 tensor가 데이터셋 전체라면 호스트에 두고 batch를 하나씩 GPU로 옮기세요."
    ),
    "{size:size} is reserved but fragmented: the largest free block is {block:size}, but the request was {requested:size}.": (
        "{size}가 확보되어 있지만 단편화되어 있습니다. 가장 큰 빈 블록은 {block}인데 {requested}를 요청했습니다."
    ),
    "{size:size} is reserved but fragmented: requests of up to 1 MiB use separate segments, and all free blocks are in the other segments (the request was {requested:size}).": (
        "{size}가 확보되어 있지만 단편화되어 있습니다. 1 MiB 이하의 요청은 별도의 segment를 쓰는데, 빈 블록은 모두 다른 segment에 있습니다(요청: "
        "{requested})."
    ),
    "Set `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True` in the environment.": (
        "환경 변수 `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`를 설정하세요."
    ),
    "`set_per_process_memory_fraction` limits this process to {limit:size} of {capacity:size}.": (
        "`set_per_process_memory_fraction` 때문에 이 프로세스는 {capacity} 중 {limit}만 쓸 수 있습니다."
    ),
    "Raise the fraction, or remove the call if no other process uses the GPU.": (
        "비율을 높이거나, GPU를 쓰는 다른 프로세스가 없다면 이 호출을 없애세요."
    ),
    "{size:size} of device memory is used outside this process's PyTorch allocator.": (
        "device 메모리 {size}를 이 프로세스의 PyTorch allocator 밖에서 쓰고 있습니다."
    ),
    "Run `nvidia-smi` to list the processes on the GPU. The memory is used by another process, a notebook kernel that is still running, or another library in this process.": (
        "`nvidia-smi`로 GPU를 쓰는 프로세스를 확인하세요. 다른 프로세스, 아직 떠 있는 노트북 kernel, 또는 이 프로세스의 다른 라이브러리가 쓰는 "
        "메모리입니다."
    ),
    "The optimizer state, which the first optimizer step allocates, does not fit. {state:size} is allocated so far, for {parameters:size} of parameters.": (
        "첫 optimizer step에서 만드는 optimizer 상태가 메모리에 들어가지 않습니다. 파라미터 {parameters}에 대해 지금까지 {state}를 할당했습니다."
    ),
    "The weights and their gradients need {fixed:size}; PyTorch can use {budget:size} on this device. A smaller batch size alone is not enough.": (
        "weight와 gradient에 {fixed}가 필요한데, PyTorch가 이 device에서 쓸 수 있는 메모리는 {budget}입니다. batch size를 줄이는 것만으로는 "
        "부족합니다."
    ),
    "The weights, their gradients and the optimizer state of {names} need {fixed:size}; PyTorch can use {budget:size} on this device. A smaller batch size alone is not enough.": (
        "weight와 gradient, {names}의 상태에 {fixed}가 필요한데, PyTorch가 이 device에서 쓸 수 있는 메모리는 {budget}입니다. batch size를 줄이는 "
        "것만으로는 부족합니다."
    ),
    "Use an optimizer with less state: SGD with momentum stores one tensor per parameter, and SGD without momentum stores none.": (
        "상태가 더 작은 optimizer를 쓰세요. momentum이 있는 SGD는 파라미터마다 tensor 하나를 저장하고, momentum이 없으면 저장하지 않습니다."
    ),
    "Use an optimizer with less state: 8-bit Adam stores a quarter of Adam's float32 state, and SGD without momentum stores none.": (
        "상태가 더 작은 optimizer를 쓰세요. 8-bit Adam의 상태는 float32 Adam의 4분의 1이고, momentum이 없는 SGD는 상태를 저장하지 않습니다."
    ),
    "Use an optimizer with less state: SGD without momentum stores none.": (
        "상태가 더 작은 optimizer를 쓰세요. momentum이 없는 SGD는 상태를 저장하지 않습니다."
    ),
    "With SGD, tune the learning rate again.": "SGD를 쓰면 learning rate를 다시 조정하세요.",
    "Pass `foreach=False` to SGD.": "SGD에 `foreach=False`를 전달하세요.",
    'After any call of `load_state_dict`, set `group["foreach"] = False` for each group in `optimizer.param_groups` (updates one parameter at a time, slower).': (
        '`load_state_dict`를 호출한 뒤 `optimizer.param_groups`의 모든 group에 `group["foreach"] = False`를 지정하세요(파라미터를 하나씩 갱신, 더 느림).'
    ),
    'After any call of `load_state_dict`, set `group["foreach"] = False` for each group in `optimizer.param_groups`: otherwise, the optimizer step needs {size:size} of temporary memory.': (
        '`load_state_dict`를 호출한 뒤 `optimizer.param_groups`의 모든 group에 `group["foreach"] = False`를 지정하세요. 그러지 않으면 optimizer step에 임시 메모리 {size}가 필요합니다.'
    ),
    "In this region, `nn.BCELoss` raises an error: replace it with `nn.BCEWithLogitsLoss`, and remove the sigmoid before it.": (
        "이 영역에서 `nn.BCELoss`는 오류를 냅니다. `nn.BCEWithLogitsLoss`로 바꾸고 그 앞의 sigmoid를 제거하세요."
    ),
    "Or freeze parameters that need no training.": "또는 학습하지 않을 파라미터를 freeze하세요.",
    "Use at most {fraction:term} the current batch size as well.": "batch size도 지금의 {fraction} 이하로 줄이세요.",
    "Freeze parameters that need no training, load the weights in half precision, or split the model across several GPUs (`legroom launch --strategy fsdp`).": (
        "학습하지 않을 파라미터를 freeze하거나, weight를 half precision으로 불러오거나, 모델을 여러 GPU에 나누세요"
        "(`legroom launch --strategy fsdp`)."
    ),
    "Even without optimizer state, weights and gradients need {size:size} of {budget:size}.": (
        "optimizer 상태를 빼도 weight와 gradient에 {budget} 중 {size}가 필요합니다."
    ),
    "Even without optimizer state, weights and gradients need {size:size} of {budget:size}, and activations need memory in addition.": (
        "optimizer 상태를 빼도 weight와 gradient에 {budget} 중 {size}가 필요하고, activation에도 메모리가 필요합니다."
    ),
    "Weights and gradients need {size:size} of {budget:size}.": "weight와 gradient에 {budget} 중 {size}가 필요합니다.",
    "Weights and gradients need {size:size} of {budget:size}, and activations need memory in addition.": (
        "weight와 gradient에 {budget} 중 {size}가 필요하고, activation에도 메모리가 필요합니다."
    ),
    "Also call `optimizer.zero_grad()` before the forward pass: otherwise, the gradients of the previous step use memory during this pass.": (
        "`optimizer.zero_grad()`도 forward pass 전에 호출하세요. 그러지 않으면 이전 step의 gradient가 forward pass 동안 메모리를 씁니다."
    ),
    "The next forward pass needs memory in addition to the optimizer state.": (
        "다음 forward pass에는 optimizer 상태 외에도 메모리가 필요합니다."
    ),
    "The training after this evaluation needs more memory, which is included in the estimate.": (
        "이 평가 다음의 학습에는 메모리가 더 필요하며, 이 추정에 포함되어 있습니다."
    ),
    "{optimizer:term} updates all parameters at once, which requires {size:size} of temporary memory.": (
        "{optimizer}에서 모든 파라미터를 한꺼번에 갱신하느라 임시 메모리 {size}가 필요합니다."
    ),
    "{optimizers} update all parameters at once, which requires {size:size} of temporary memory.": (
        "{optimizers}에서 모든 파라미터를 한꺼번에 갱신하느라 임시 메모리 {size}가 필요합니다."
    ),
    "The optimizer": "optimizer",
    "the optimizer": "optimizer",
    "Pass `foreach=False` to {optimizer:term} (updates one parameter at a time, slower).": (
        "{optimizer}에 `foreach=False`를 넘기세요(파라미터를 하나씩 갱신, 더 느림)."
    ),
    "Pass `fused=True` to {optimizer:term} (no temporaries, and faster) or `foreach=False` (updates one parameter at a time, slower).": (
        "{optimizer}에 `fused=True`(임시 메모리 없음, 더 빠름)나 `foreach=False`(파라미터를 하나씩 갱신, 더 느림)를 넘기세요."
    ),
    "Activations, inputs and results ({size:size}) scale with the batch size.": (
        "{size}(activation, 입력, 결과)는 batch size에 비례합니다."
    ),
    "Inputs and results ({size:size}) scale with the batch size.": "{size}(입력, 결과)는 batch size에 비례합니다.",
    "Activations, inputs, results and temporary tensors ({size:size}) scale with the batch size.": (
        "{size}(activation, 입력, 결과, 임시 tensor)는 batch size에 비례합니다."
    ),
    "Inputs, results and temporary tensors ({size:size}) scale with the batch size.": (
        "{size}(입력, 결과, 임시 tensor)는 batch size에 비례합니다."
    ),
    "The model processes the whole input at once, without batches.": "모델이 batch 없이 전체 입력을 한꺼번에 처리합니다.",
    "Activations, inputs and results use {size:size}.": "activation, 입력, 결과가 {size}를 씁니다.",
    "Inputs and results use {size:size}.": "입력과 결과가 {size}를 씁니다.",
    "Activations, inputs, results and temporary tensors use {size:size}.": (
        "activation, 입력, 결과, 임시 tensor가 {size}를 씁니다."
    ),
    "Inputs, results and temporary tensors use {size:size}.": "입력, 결과, 임시 tensor가 {size}를 씁니다.",
    "If the samples are independent, process the input in batches.": (
        "샘플이 서로 독립적이면 입력을 batch로 나누어 처리하세요."
    ),
    "For a graph, sample subgraphs.": "그래프라면 subgraph를 sampling하세요.",
    "Use `{new}` instead of `{old}`.": "`{old}` 대신 `{new}` 설정을 쓰세요.",
    "Use `{new}` and `{evaluation}` instead of `{old}`.": "`{old}` 대신 `{new}`, `{evaluation}` 설정을 쓰세요.",
    "Add `{new}` (the default is {before:number}).": "`{new}` 설정을 추가하세요(기본값은 {before}).",
    "Add `{new}` (the default is {before:number}) and `{evaluation}`.": (
        "`{new}`, `{evaluation}` 설정을 추가하세요(기본값은 {before})."
    ),
    "Set `{new}` in {file}, line {line:number} (currently {before:number}) and `{evaluation}` in {other}, line {at:number}.": (
        "{file} {line}번째 줄에서 `{new}`, {other} {at}번째 줄에서 `{evaluation}`로 설정하세요(현재 {before})."
    ),
    "Set `{new}` in {file}, line {line:number} (currently {before:number}).": (
        "{file}의 {line}번째 줄을 바꾸세요: `{new}`(지금은 {before})."
    ),
    "Set `{key}` to {new:number} in {file}, line {line:number} (currently {before:number}) and `{evaluation}` in {other}, line {at:number}.": (
        "{file} {line}번째 줄에서 `{key}`의 값을 {new}, {other} {at}번째 줄에서 `{evaluation}`로 설정하세요(현재 {before})."
    ),
    "Set `{key}` to {new:number} in {file}, line {line:number} (currently {before:number}).": (
        "{file}의 {line}번째 줄에서 `{key}`의 값을 {new}로 바꾸세요(지금은 {before})."
    ),
    "Set `{key}` to {new:number} in {file}, line {line:number} (currently {before:number}) as well.": (
        "{file}의 {line}번째 줄에서 `{key}`의 값도 {new}로 바꾸세요(지금은 {before})."
    ),
    "Set the environment variable `{new}` (currently {before:number}).": (
        "환경 변수를 설정하세요: `{new}`(지금은 {before})."
    ),
    "Use `{new}` instead of `{old}` as well.": "`{old}` 대신 `{new}` 설정도 쓰세요.",
    "Add `{new}` (the default is {before:number}) as well.": "`{new}` 설정도 추가하세요(기본값은 {before}).",
    "Set `{new}` in {file}, line {line:number} (currently {before:number}) as well.": (
        "{file}의 {line}번째 줄도 바꾸세요: `{new}`(지금은 {before})."
    ),
    "Set the environment variable `{new}` (currently {before:number}) as well.": (
        "환경 변수도 설정하세요: `{new}`(지금은 {before})."
    ),
    "Use at most {fraction:term} the current batch size.": "batch size를 지금의 {fraction} 이하로 줄이세요.",
    "Use at most {fraction:term} the current batch size for the evaluation.": (
        "평가의 batch size를 지금의 {fraction} 이하로 줄이세요."
    ),
    "Pass fewer samples to the model.": "모델을 더 적은 샘플로 호출하세요.",
    "Or limit the size of the samples: the input has the shape {last}, and the first input had the shape {first}.": (
        "또는 샘플의 크기를 제한하세요. 입력의 shape은 {last}이고 첫 입력의 shape은 {first}였습니다."
    ),
    "The input has the shape {shape}, which does not depend on the batch size.": (
        "이 호출의 입력 shape은 {shape}이며, batch size에 따라 바뀌지 않습니다."
    ),
    "If no backward pass follows, wrap the call in `with torch.no_grad():`.": (
        "이어서 backward를 하지 않는다면 호출을 `with torch.no_grad():`로 감싸세요."
    ),
    "three quarters of": "4분의 3",
    "half": "절반",
    "a third of": "3분의 1",
    "a quarter of": "4분의 1",
    "an eighth of": "8분의 1",
    "{percent:number}% of": "{percent}%",
    "Also pass `{option}` to {optimizers}: otherwise, the optimizer step needs {size:size} of temporary memory.": (
        "{optimizers}에 `{option}`도 넘기세요. 그러지 않으면 optimizer step에 임시 메모리 {size}가 필요합니다."
    ),
    "This is an estimate, because memory ran out after about {done} of the forward pass.": (
        "forward pass의 약 {done} 지점에서 메모리가 부족해졌으므로 추정값입니다."
    ),
    "This is an estimate, because memory ran out after about {done} of the forward passes of a step.": (
        "한 step의 forward pass 전체에서 약 {done} 지점에서 메모리가 부족해졌으므로 추정값입니다."
    ),
    "The forward pass did not finish, so a smaller batch size may be required.": (
        "forward pass가 끝나지 않았으므로 batch size를 더 줄여야 할 수도 있습니다."
    ),
    "Accumulate gradients over several batches to keep the effective batch size.": (
        "여러 batch의 gradient를 누적하면 실질적인 batch size가 유지됩니다."
    ),
    "Autocast to bfloat16 would roughly halve the {size:size} of activations if they are float32.": (
        "activation {size}가 float32라면 bfloat16 autocast로 절반 정도로 줄일 수 있습니다."
    ),
    'Wrap the forward pass and the loss in `with torch.autocast("cuda", dtype=torch.bfloat16):`.': (
        'forward pass와 loss를 `with torch.autocast("cuda", dtype=torch.bfloat16):`로 감싸세요.'
    ),
    "Activations saved for the backward pass use {size:size}.": "backward pass를 위해 저장한 activation이 {size}를 씁니다.",
    "Recompute the activations in the backward pass: wrap {where:term} in `torch.utils.checkpoint.checkpoint(…, use_reentrant=False)`. A step takes about a third longer.": (
        "{where} `torch.utils.checkpoint.checkpoint(…, use_reentrant=False)`로 감싸 backward pass에서 activation을 다시 계산하세요. step이 3분의 1 정도 "
        "느려집니다."
    ),
    "the parts of `{block}`": "`{block}`의 각 부분을",
    "the model's blocks": "모델의 각 block을",
    "`{block}` saves the most activations.": "activation을 가장 많이 저장하는 곳은 `{block}`입니다.",
    "{size:size} of saved activations could be moved to host memory until the backward pass.": (
        "저장한 activation {size}를 backward pass까지 호스트 메모리로 옮길 수 있습니다."
    ),
    "Run `legroom run --spill` without changing the code, or wrap the forward pass in `with legroom.Spill():`. The gradients stay the same, but a step takes several times as long.": (
        "코드를 고치지 않고 `legroom run --spill`로 실행하거나, forward pass를 `with legroom.Spill():`로 감싸세요. gradient는 같지만 step이 몇 배 느려집니다."
    ),
    # --- explanations
    "GPU memory": "GPU 메모리",
    "possibly GPU memory": "GPU 메모리일 수 있음",
    "not memory": "메모리 문제 아님",
    "unknown": "알 수 없음",
    "sure": "확실",
    "likely": "가능성 높음",
    "unsure": "불확실",
    "line {number:number}:": "{number}번째 줄:",
    "Earlier in the log": "로그에서 먼저 난 에러",
    "possibly the original cause": "진짜 원인일 수 있음",
    "Possible causes": "가능한 원인",
    "most likely first": "가능성이 높은 순서",
    "Most likely cause": "가장 가능성이 높은 원인",
    "Cause": "원인",
    "Other possible causes": "다른 가능한 원인",
    "and {count:number} more": "외 {count}개",
    "all causes, checks and fixes": "모든 원인과 확인 방법, 해결 방법",
    "Your code": "내 코드",
    "This machine": "이 머신",
    "Check": "확인",
    "Fix": "해결",
    "Checks on this machine": "이 머신에서 확인한 결과",
    "This machine has no NVIDIA GPU, so GPU checks were skipped.": "이 머신에는 NVIDIA GPU가 없어서 GPU 확인을 건너뛰었습니다.",
    "See `legroom explain {code}`.": "자세한 설명: `legroom explain {code}`",
    "No error found. Provide the complete output of the program, including the last traceback.": (
        "에러를 찾지 못했습니다. 마지막 traceback을 포함해 프로그램의 출력 전체를 넣어 주세요."
    ),
    "The input ends inside a traceback, before the error message. Provide the complete traceback.": (
        "입력이 에러 메시지 전에, traceback 중간에서 끝납니다. traceback 전체를 넣어 주세요."
    ),
    "Legroom does not recognize this error. The traceback shows where the error was raised.": (
        "Legroom이 모르는 에러입니다. 에러가 난 위치는 traceback에 있습니다."
    ),
    "The program was interrupted, usually with Ctrl+C.": "프로그램이 중단되었습니다. 대개 Ctrl+C를 누른 경우입니다.",
    "This is a warning, not an error. It is unrelated to memory.": "에러가 아니라 경고입니다. 메모리와는 관계없습니다.",
    "{name} is a programming error, not a memory error. Look at the last line of your own code in the traceback.": (
        "{name}: 메모리 문제가 아니라 프로그램 에러입니다. traceback에서 내 코드의 마지막 줄을 보세요."
    ),
    "{name} is an operating system error (files, processes or network), not a memory error.": (
        "{name}: 메모리 문제가 아니라 운영체제(파일, 프로세스, 네트워크) 에러입니다."
    ),
    "This error is unrelated to memory, and Legroom has no explanation for it. The traceback shows where the error was raised.": (
        "메모리와 관계없는 에러이고, Legroom에는 설명이 없습니다. 에러가 난 위치는 traceback에 있습니다."
    ),
    "A GPU ran out of memory.": "GPU 메모리가 부족합니다.",
    "GPU {index:number} ran out of memory.": "GPU {index}의 메모리가 부족합니다.",
    "Tried to allocate {requested:size}.": "{requested}를 할당하려 했습니다.",
    "One operation requires {requested:size}, but the whole GPU has only {capacity:size} (LG601).": (
        "연산 하나에 {requested}가 필요한데, GPU 전체가 {capacity}뿐입니다(LG601)."
    ),
    "Print the tensor shapes on the line that the traceback shows.": "traceback이 가리키는 줄에서 tensor의 shape을 출력하세요.",
    "Correct the shape, or compute the result in chunks. Freeing memory does not help.": (
        "shape을 고치거나 나누어 계산하세요. 메모리를 비워도 해결되지 않습니다."
    ),
    "Other processes use {size:size} of memory on this GPU.": "다른 프로세스가 이 GPU의 메모리를 {size} 쓰고 있습니다.",
    "List the processes with `nvidia-smi` or `legroom doctor`. An earlier run may not have exited.": (
        "`nvidia-smi`나 `legroom doctor`로 프로세스를 확인하세요. 이전 실행이 끝나지 않았을 수 있습니다."
    ),
    "Stop these processes, or select another GPU with `CUDA_VISIBLE_DEVICES`.": (
        "그 프로세스를 종료하거나 `CUDA_VISIBLE_DEVICES`로 다른 GPU를 고르세요."
    ),
    "This process can use only {allowed:size} of {capacity:size}.": "이 프로세스는 {capacity} 중 {allowed}만 쓸 수 있습니다.",
    "Search the code for `set_per_process_memory_fraction` or `per_process_memory_fraction`.": (
        "코드에서 `set_per_process_memory_fraction`이나 `per_process_memory_fraction`을 찾으세요."
    ),
    "Raise the fraction if no other process uses the GPU.": "GPU를 쓰는 다른 프로세스가 없다면 비율을 높이세요.",
    "PyTorch reserves {cached:size} in free blocks, but these blocks are too small for {requested:size} (fragmentation).": (
        "PyTorch가 빈 블록으로 {cached}를 확보하고 있지만, {requested}를 할당하기에는 블록이 너무 작습니다(단편화)."
    ),
    "Run again with `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`. If the run succeeds, fragmentation is the cause.": (
        "`PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`로 다시 실행하세요. 성공하면 단편화가 원인입니다."
    ),
    "Keep `expandable_segments:True`, and use fewer different tensor sizes. For example, pad batches to a few fixed lengths.": (
        "`expandable_segments:True`를 유지하고 tensor 크기의 가짓수를 줄이세요. 예를 들어 batch를 정해진 몇 가지 길이로 pad하세요."
    ),
    "Live tensors use {allocated:size} of {capacity:size}.": "살아 있는 tensor가 {capacity} 중 {allocated}를 씁니다.",
    "`legroom run train.py` lists the tensors by line and variable. `legroom estimate train.py` shows whether a step can fit.": (
        "`legroom run train.py`는 tensor를 코드 줄별, 변수별로 보여 줍니다. `legroom estimate train.py`는 step이 메모리에 들어가는지 보여 줍니다."
    ),
    "Use a smaller batch with gradient accumulation (`legroom.Guard`), bfloat16, checkpointing or `legroom.Spill`.": (
        "batch를 줄이고 gradient accumulation(`legroom.Guard`)을 쓰거나, bfloat16, checkpointing, `legroom.Spill`을 쓰세요."
    ),
    "The code indexes a tensor without dimensions, such as a loss. Use `.item()` to get its value.": (
        "손실처럼 차원이 없는 텐서를 인덱싱했습니다. 값을 얻으려면 `.item()`을 사용하세요."
    ),
    "A linear layer or matrix product expects a last dimension of {expected:number} but got {got:number}.": (
        "linear layer나 행렬 곱이 입력 feature {expected}개를 기대했지만 {got}개를 받았습니다."
    ),
    "A convolution received the wrong number of input channels: expected {expected:number}, got {got:number}. The input shape is [{shape}].": (
        "convolution이 입력 channel {expected}개를 기대했지만 {got}개를 받았습니다. 입력의 shape은 [{shape}]입니다."
    ),
    "The shapes of two tensors do not match: dimension {dim:number} has size {a:number} in one tensor and size {b:number} in the other tensor.": (
        "두 tensor의 shape이 맞지 않습니다. 차원 {dim}의 크기가 한쪽은 {a}, 다른 쪽은 {b}입니다."
    ),
    "The checkpoint does not match the model: `{name}` has shape [{there}] in the checkpoint and [{here}] in the model.": (
        "체크포인트가 모델과 맞지 않습니다. `{name}`의 shape이 체크포인트에서는 [{there}], 모델에서는 [{here}]입니다."
    ),
    "The label {label} is out of range for the number of classes in the model's output.": (
        "모델 출력의 class 수를 벗어난 label이 있습니다: {label}."
    ),
    # --- the reasons of memory errors
    "ONNX Runtime's memory pool could not grow. With the CUDA execution provider, GPU memory ran out. With the CPU provider, host memory ran out.": (
        "ONNX Runtime의 메모리 풀을 늘리지 못했습니다. CUDA execution provider라면 GPU 메모리가, CPU provider라면 호스트 메모리가 부족했습니다."
    ),
    "A GPU library failed while almost no GPU memory was free.": "GPU 메모리가 거의 남지 않은 상태에서 GPU 라이브러리가 실패했습니다.",
    "A GPU memory allocation failed.": "GPU 메모리를 할당하지 못했습니다.",
    "The exception is PyTorch's own out-of-memory error.": "PyTorch의 out-of-memory 예외입니다.",
    "The library could not allocate its GPU workspace.": "라이브러리가 GPU workspace를 할당하지 못했습니다.",
    "The library could not allocate a resource, most likely GPU memory. An earlier GPU fault or a lack of host memory can also cause this status.": (
        "라이브러리가 자원을 할당하지 못했습니다. GPU 메모리 부족일 가능성이 높지만, 앞서 난 GPU 에러나 호스트 메모리 부족일 때도 같은 상태가 나옵니다."
    ),
    "Another runtime (Java, Node.js) reached its heap limit, which is independent of the amount of free host memory.": (
        "다른 런타임(Java, Node.js)의 heap이 자체 제한에 도달했습니다. 남은 호스트 메모리와는 관계없습니다."
    ),
    "The model or its cache is larger than the free GPU memory.": "모델이나 모델의 캐시가 남은 GPU 메모리보다 큽니다.",
    "The library could not be initialized on the GPU, often because no GPU memory is free.": (
        "라이브러리를 GPU에서 초기화하지 못했습니다. 남은 GPU 메모리가 없어서인 경우가 많습니다."
    ),
    "The library failed on the GPU without reporting a reason. A lack of memory is one possible cause.": (
        "라이브러리가 GPU에서 실패했지만, 원인은 보고되지 않았습니다. 메모리 부족도 가능한 원인입니다."
    ),
    "cuDNN found no algorithm whose workspace fits. An unsupported data type or layout can also cause this message.": (
        "cuDNN이 workspace가 메모리에 들어가는 알고리즘을 찾지 못했습니다. 지원하지 않는 dtype이나 메모리 배치일 때도 같은 메시지가 나옵니다."
    ),
    "A host memory allocation failed.": "호스트 메모리를 할당하지 못했습니다.",
    "Python could not allocate host memory.": "Python이 호스트 메모리를 할당하지 못했습니다.",
    "The operating system could not allocate host memory.": "운영체제가 호스트 메모리를 할당하지 못했습니다.",
    "The shared memory (/dev/shm) through which processes exchange tensors is full.": (
        "프로세스끼리 tensor를 주고받는 공유 메모리(/dev/shm)가 가득 찼습니다."
    ),
    "A process was killed, often by the operating system because host memory ran out. A user, a scheduler or a launcher may also have killed the process.": (
        "프로세스가 강제로 종료되었습니다. 호스트 메모리가 부족해 운영체제가 종료한 경우가 많지만, 사용자나 스케줄러, launcher가 종료했을 수도 있습니다."
    ),
    "The process used more host memory than the scheduler or container allows.": (
        "프로세스가 스케줄러나 컨테이너가 허용하는 것보다 많은 호스트 메모리를 썼습니다."
    ),
    "Page-locked host memory could not be allocated, because host memory is full or the limit on locked memory is reached.": (
        "호스트 메모리가 가득 찼거나 lock할 수 있는 메모리의 제한에 도달해 page-locked 호스트 메모리를 할당하지 못했습니다."
    ),
    "Page-locked host memory could not be allocated.": "page-locked 호스트 메모리를 할당하지 못했습니다.",
    "The thread that pins batches could not allocate page-locked host memory.": (
        "batch를 pin하는 thread가 page-locked 호스트 메모리를 할당하지 못했습니다."
    ),
    "CUDA reported an out-of-memory error in a call that pins host memory.": (
        "호스트 메모리를 pin하는 호출에서 CUDA가 out-of-memory 에러를 냈습니다."
    ),
    "A CUDA call inside NCCL failed, but no reason was reported. GPU memory may have run out: NCCL allocates its buffers outside PyTorch's allocator.": (
        "NCCL 내부의 CUDA 호출이 실패했지만, 원인은 보고되지 않았습니다. NCCL은 버퍼를 PyTorch의 allocator 밖에서 할당하므로 GPU 메모리 부족일 수 있습니다."
    ),
    "The message reports a lack of memory, but not whether GPU memory or host memory ran out.": (
        "메시지에 메모리가 부족하다고 나오지만, GPU 메모리인지 호스트 메모리인지는 나오지 않습니다."
    ),
    "The amount of free memory is unknown.": "남은 메모리가 얼마인지는 알 수 없습니다.",
    "Only {free:size} of {capacity:size} was free, so the error is treated as an out-of-memory error.": (
        "{capacity} 중 {free}만 남아 있었으므로 메모리 부족으로 봅니다."
    ),
    "However, {free:size} of {capacity:size} was free, so memory is probably not the cause.": (
        "하지만 {capacity} 중 {free}가 남아 있었으므로 메모리 부족은 아닐 것입니다."
    ),
}
