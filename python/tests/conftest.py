"""Small problems: where other programs run, PyTorch's threads spend most of their time waiting for each other."""

try:
    import torch
except ImportError:
    pass
else:
    torch.set_num_threads(1)
