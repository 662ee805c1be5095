"""The data_prefetcher of Apex: workers, pin_memory, a side stream, record_stream, wait_stream, non_blocking, timing
with events."""

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset


class Pictures(Dataset):
    def __init__(self):
        self.generator = torch.Generator().manual_seed(0)
        self.data = torch.randint(0, 256, (48, 3, 8, 8), dtype=torch.uint8, generator=self.generator)

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        return {"image": self.data[index], "label": index % 4}


class data_prefetcher:  # noqa: N801
    def __init__(self, loader):
        self.loader = iter(loader)
        self.stream = torch.cuda.Stream()
        self.mean = torch.tensor([123.0, 116.0, 103.0]).cuda().view(1, 3, 1, 1)
        self.preload()

    def preload(self):
        try:
            batch = next(self.loader)
        except StopIteration:
            self.next_input = self.next_target = None
            return
        self.pinned = batch["image"].is_pinned()
        with torch.cuda.stream(self.stream):
            self.next_input = batch["image"].cuda(non_blocking=True)
            self.next_target = batch["label"].cuda(non_blocking=True)
            self.next_input = self.next_input.float()
            self.next_input = self.next_input.sub_(self.mean).div_(58.0)

    def next(self):
        torch.cuda.current_stream().wait_stream(self.stream)
        input, target = self.next_input, self.next_target
        if input is not None:
            input.record_stream(torch.cuda.current_stream())
            target.record_stream(torch.cuda.current_stream())
        self.preload()
        return input, target


def main():
    torch.manual_seed(0)
    loader = DataLoader(Pictures(), batch_size=16, num_workers=2, pin_memory=True, prefetch_factor=2)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4)).cuda()
    criterion = nn.CrossEntropyLoss().cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    for epoch in range(2):
        prefetcher = data_prefetcher(loader)
        input, target = prefetcher.next()
        while input is not None:
            start.record()
            loss = criterion(model(input), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            end.record()
            end.synchronize()
            print(epoch, loss.item(), start.elapsed_time(end) >= 0)
            input, target = prefetcher.next()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        a = torch.ones(4, device="cuda") * 2
        event = side.record_event()
    torch.cuda.current_stream().wait_event(event)
    a.record_stream(torch.cuda.current_stream())
    torch.cuda.synchronize()
    print(a.sum().item(), event.query())


if __name__ == "__main__":
    main()
