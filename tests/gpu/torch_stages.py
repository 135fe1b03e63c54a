"""A program for command.sh: layers in PyTorch with NVTX ranges, alone or under torchrun."""

import sys

import torch

tokens = int(sys.argv[1])
device = torch.device("cuda:0")
layers = torch.nn.Sequential(
    *(torch.nn.Linear(2048, 2048, device=device, dtype=torch.bfloat16) for _ in range(8))
)


def stage(name, rows, times):
    torch.cuda.nvtx.range_push(name)
    for _ in range(times):
        layers(torch.ones(rows, 2048, device=device, dtype=torch.bfloat16))
    torch.cuda.synchronize()
    torch.cuda.nvtx.range_pop()


with torch.no_grad():
    stage("warmup", 512, 2)
    stage("prefill", 512, 1)
    stage("decode_all", 1, tokens)
