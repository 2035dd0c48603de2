#!/usr/bin/env python3
"""PyTorch peer of one training epoch of the published graph models, for side-by-side measurement only.

An epoch is what the published code does: one training step (feature, hidden and edge dropout of 0.5, a network
features-64-classes, ten unrolled steps of propagation, cross-entropy plus 0.0025 sum W2^2, Adam) and one evaluation
without dropout. Two variants of the same mathematics:
  faithful  sparse products by gather, multiply and scatter-add, as torch_sparse's spmm computes them on a CPU
  tuned     what a strong PyTorch engineer would write: CSR matrices for torch.sparse's kernels, both directions prepared,
            dropout of values in place

  torch_graph_peer.py --data DIR/graphs/dblp [--variant faithful|tuned] [--model appnp-normalized-tanh] [--epochs 5]
Prints one JSON object per variant. Needs torch and numpy.
"""
import argparse, glob, json, math, os, time
import numpy as np
import torch
import torch.nn.functional as F

TELEPORT, STEPS, HIDDEN, DROPOUT, PENALTY = 0.1, 10, 64, 0.5, 0.0025


def load(folder):
    """Normalised adjacency and features as (rows, columns, values), labels."""
    name = os.path.basename(folder.rstrip("/"))
    features = np.load(os.path.join(folder, "features.npz"))
    nodes, columns = (int(x) for x in features["shape"])
    pairs = [np.arange(nodes, dtype=np.int64) * (nodes + 1)]
    with open(os.path.join(folder, f"hyperedges-{name}.txt")) as lines:
        for line in lines:
            edge = np.array([int(x) - 1 for x in line.split(",")], dtype=np.int64)
            pairs.append((edge[:, None] * nodes + edge[None, :]).ravel())
    pairs = np.unique(np.concatenate(pairs))
    rows, cols = pairs // nodes, pairs % nodes
    degrees = np.bincount(rows, minlength=nodes).astype(np.float64)
    values = (1.0 / np.sqrt(degrees[rows] * degrees[cols])).astype(np.float32)
    indptr = features["indptr"].astype(np.int64)
    feature_rows = np.repeat(np.arange(nodes), np.diff(indptr))
    given = glob.glob(os.path.join(folder, "labels-all-*.txt")) + [os.path.join(folder, f"node-labels-{name}.txt")]
    labels = np.loadtxt(given[0], dtype=np.int64) - 1
    x = (feature_rows, features["indices"].astype(np.int64), features["data"].astype(np.float32))
    return (rows, cols, values), x, labels, nodes, columns


class Faithful:
    """Gather, multiply, scatter-add."""

    def __init__(self, entries, shape):
        self.rows, self.cols, self.values = (torch.as_tensor(part) for part in entries)
        self.shape = shape

    def dropped(self, training):
        return F.dropout(self.values, DROPOUT, training)

    def product(self, values, dense):
        gathered = dense.index_select(0, self.cols) * values.unsqueeze(-1)
        return torch.zeros(self.shape[0], dense.shape[1]).index_add(0, self.rows, gathered)


class CsrProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx, matrix, transposed, dense):
        ctx.transposed = transposed
        return matrix @ dense

    @staticmethod
    def backward(ctx, gradient):
        return None, None, ctx.transposed @ gradient


class Tuned:
    """Compressed rows of the matrix and of its transpose."""

    def __init__(self, entries, shape):
        rows, cols, values = (torch.as_tensor(part) for part in entries)
        self.values, self.shape = values, shape
        self.forward = self.compressed(rows, cols, shape)
        order = torch.argsort(cols * shape[0] + rows)
        self.order = order
        self.backward = self.compressed(cols[order], rows[order], (shape[1], shape[0]))

    @staticmethod
    def compressed(rows, cols, shape):
        starts = torch.zeros(shape[0] + 1, dtype=torch.int64)
        starts[1:] = torch.bincount(rows, minlength=shape[0]).cumsum(0)
        return starts.to(torch.int32), cols.to(torch.int32), shape

    def dropped(self, training):
        return F.dropout(self.values, DROPOUT, training)

    def product(self, values, dense):
        build = lambda parts, v: torch.sparse_csr_tensor(parts[0], parts[1], v, parts[2], check_invariants=False)
        return CsrProduct.apply(build(self.forward, values), build(self.backward, values[self.order]), dense)


def propagate(model, adjacency, values, f):
    z = f
    for _ in range(STEPS):
        u = (1 - TELEPORT) * adjacency.product(values, z)
        if model == "appnp":
            z = u + TELEPORT * f
        elif model == "appnp-tanh":
            z = torch.tanh(u + TELEPORT * f)
        else:
            z = F.normalize(torch.tanh(u + TELEPORT * f) + 1.2, dim=1, p=math.inf)
    return z


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=os.path.join(os.path.dirname(__file__), "../../shared/data/graphs/dblp"))
    parser.add_argument("--variant", choices=["faithful", "tuned"], default=None, help="default: both")
    parser.add_argument("--model", choices=["appnp", "appnp-tanh", "appnp-normalized-tanh"], default="appnp-normalized-tanh")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    adjacency, features, labels, nodes, columns = load(args.data)
    classes = int(labels.max()) + 1
    labels = torch.as_tensor(labels)
    train = torch.randperm(nodes)[: math.ceil(0.042 * nodes)]
    validation = torch.randperm(nodes)[: nodes // 2]
    for variant in [args.variant] if args.variant else ["faithful", "tuned"]:
        kind = Faithful if variant == "faithful" else Tuned
        a, x = kind(adjacency, (nodes, nodes)), kind(features, (nodes, columns))
        weights = [torch.empty(columns, HIDDEN), torch.empty(HIDDEN), torch.empty(HIDDEN, classes), torch.empty(classes)]
        for w in weights:
            torch.nn.init.xavier_uniform_(w) if w.dim() == 2 else w.data.uniform_(-1 / math.sqrt(len(w)), 1 / math.sqrt(len(w)))
            w.requires_grad_()
        optimiser = torch.optim.Adam(weights, lr=0.01)

        def forward(training):
            w1, b1, w2, b2 = weights
            hidden = F.dropout(F.relu(x.product(x.dropped(training), w1) + b1), DROPOUT, training)
            return propagate(args.model, a, a.dropped(training), hidden @ w2 + b2)

        times = []
        for _ in range(args.epochs + 1):
            start, cpu = time.perf_counter(), time.process_time()
            optimiser.zero_grad()
            loss = F.nll_loss(F.log_softmax(forward(True), dim=1)[train], labels[train]) + PENALTY * (weights[2] ** 2).sum()
            loss.backward()
            optimiser.step()
            trained = time.perf_counter()
            with torch.no_grad():
                accuracy = (forward(False).argmax(1)[validation] == labels[validation]).float().mean().item()
            times.append((trained - start, time.perf_counter() - trained, time.process_time() - cpu))
        step, evaluation, cpu = (1e3 * float(np.median([t[k] for t in times[1:]])) for k in range(3))
        print(json.dumps({
            "peer": "torch " + torch.__version__, "variant": variant, "model": args.model, "threads": args.threads,
            "nodes": nodes, "entries": len(adjacency[0]), "feature_entries": len(features[0]),
            "ms_step": round(step, 2), "ms_evaluation": round(evaluation, 2), "ms_epoch": round(step + evaluation, 2), "cpu_ms_epoch": round(cpu, 2),
            "loss": round(loss.item(), 4), "accuracy": round(accuracy, 4),
        }))


if __name__ == "__main__":
    main()
