"""CTC on random audio, with a convolution, a GRU, lengths on the host, log_softmax, a complex torch.stft and greedy
decoding."""

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(4)
device = torch.device("cuda")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(33, 16, 3, padding=1)
        self.rnn = nn.GRU(16, 16, bidirectional=True)
        self.head = nn.Linear(32, 7)
        self.register_buffer("window", torch.hann_window(64))

    def forward(self, wave):
        spec = torch.stft(wave, 64, 16, window=self.window, return_complex=True)
        power = spec.abs().pow(2).clamp(min=1e-8).log()
        self.rnn.flatten_parameters()
        x, _ = self.rnn(F.relu(self.conv(power)).permute(2, 0, 1))
        return self.head(x).log_softmax(2)


model = Net().to(device)
optimizer = torch.optim.Adamax(model.parameters(), lr=1e-2)
ctc = nn.CTCLoss(blank=0, zero_infinity=True)
for step in range(3):
    wave = torch.randn(3, 512).to(device)
    log_probs = model(wave)
    targets = torch.randint(1, 7, (3, 5), dtype=torch.long).to(device)
    input_lengths = torch.full((3,), log_probs.size(0), dtype=torch.long)
    target_lengths = torch.randint(2, 6, (3,), dtype=torch.long)
    if step == 1:
        input_lengths, target_lengths = input_lengths.to(device), target_lengths.to(device)
    loss = ctc(log_probs, targets, input_lengths, target_lengths)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    decoded = [torch.unique_consecutive(s).tolist() for s in log_probs.argmax(2).t()]
    print(step, loss.item(), decoded[0][:5])

signal = torch.randn(2, 32, device=device)
spectrum = torch.fft.rfft(signal)
filtered = torch.fft.irfft(
    spectrum * torch.polar(torch.ones(17, device=device), torch.linspace(0, 1, 17, device=device)), n=32
)
freqs = torch.view_as_real(torch.polar(torch.ones(4, 2), torch.rand(4, 2))).to(device)
rotated = torch.view_as_complex(torch.randn(4, 2, 2, device=device)) * torch.view_as_complex(freqs)
print(
    filtered.sum().item(),
    rotated.real.sum().item(),
    rotated.angle().sum().item(),
    spectrum.dtype,
    spectrum.is_complex(),
)
