"""Ops on rows: softmax, norms, reductions and scans."""

from __future__ import annotations

from .pair import KEPT, ONCE, SHORT, SUMMED, Pair

X = {"x": "torch.rand(32, 200)"}

ROWS = (
    Pair(
        "softmax",
        X,
        "return torch.softmax(x, 1)",
        "e = torch.exp(x - x.amax(1, keepdim=True))\nreturn e / e.sum(1, keepdim=True)",
        {"uniform": "return torch.full_like(x, 1 / x.shape[1])", "short": SHORT.format(y="torch.softmax(x, 1)")},
    ),
    Pair(
        "log_softmax",
        X,
        "return torch.log_softmax(x, 1)",
        "return x - torch.logsumexp(x, 1, keepdim=True)",
        {"half": "return torch.log_softmax(x.half(), 1).float()"},
    ),
    Pair(
        "layer_norm",
        X,
        "return self.norm(x)",
        "return F.layer_norm(x, (200,), self.norm.weight, self.norm.bias)",
        {"no_eps_no_mean": "return x / x.std(1, keepdim=True)"},
        "self.norm = nn.LayerNorm(200)",
    ),
    Pair(
        "rms_norm",
        X,
        "return x * torch.rsqrt(x.pow(2).mean(1, keepdim=True) + 1e-5)",
        "return F.rms_norm(x, (200,), eps=1e-5)",
        {"once": ONCE.format(y="F.rms_norm(x, (200,), eps=1e-5)")},
    ),
    Pair(
        "l2_norm",
        X,
        "return x / torch.norm(x, p=2, dim=1, keepdim=True)",
        "return F.normalize(x)",
        {"l1": "return F.normalize(x, p=1.0)"},
    ),
    Pair(
        "group_norm",
        {"x": "torch.rand(4, 16, 6, 6)"},
        "return self.norm(x)",
        "return F.group_norm(x, 4, self.norm.weight, self.norm.bias)",
        {"groups": "return F.group_norm(x, 8, self.norm.weight, self.norm.bias)"},
        "self.norm = nn.GroupNorm(4, 16)",
    ),
    Pair(
        "batch_norm",
        {"x": "torch.rand(8, 6, 5, 5)"},
        "return self.norm(x)",
        "m = x.mean((0, 2, 3), keepdim=True)\nv = x.var((0, 2, 3), unbiased=False, keepdim=True)\n"
        "w, b = self.norm.weight.view(1, -1, 1, 1), self.norm.bias.view(1, -1, 1, 1)\n"
        "return (x - m) * torch.rsqrt(v + 1e-5) * w + b",
        {"running": "return F.batch_norm(x, self.norm.running_mean, self.norm.running_var)"},
        "self.norm = nn.BatchNorm2d(6)",
    ),
    Pair(
        "sum_rows",
        X,
        "return x.sum(1, keepdim=True)",
        "return torch.einsum('ij->i', x).unsqueeze(1)",
        {"short": "return x[:, :-1].sum(1, keepdim=True)"},
    ),
    Pair(
        "mean_rows", X, "return x.mean(1)", "return x.sum(1) / x.shape[1]", {"kept": KEPT.format(x="x", y="x.mean(1)")}
    ),
    Pair("max_rows", X, "return x.amax(1)", "return x.max(1).values", {"tail": "return x[:, :192].amax(1)"}),
    Pair(
        "argmax_rows",
        X,
        "return x.argmax(1)",
        "return x.max(1).indices",
        {"zeros": "return torch.zeros(32, dtype=torch.int64)"},
    ),
    Pair(
        "product_rows", X, "return torch.prod(x + 0.5, 1)", "return (x + 0.5).prod(1)", {"log": "return torch.ones(32)"}
    ),
    Pair(
        "cumsum",
        X,
        "return torch.cumsum(x, 1)",
        "return x.cumsum(-1)",
        {"blocks": "return torch.cat([x[:, :100].cumsum(1), x[:, 100:].cumsum(1)], 1)"},
    ),
    Pair(
        "reverse_cumsum",
        X,
        "return x.flip(1).cumsum(1).flip(1)",
        "return x.double().flip(1).cumsum(1).flip(1).float()",
        {"exclusive": "return x.sum(1, keepdim=True) - x.cumsum(1)"},
    ),
    Pair(
        "masked_cumsum",
        {"x": "torch.rand(32, 200)", "mask": "torch.rand(32, 200) > 0.5"},
        "return torch.cumsum(x * mask, 1)",
        "return x.masked_fill(~mask, 0).cumsum(1)",
        {"summed": SUMMED.format(x="x", y="torch.cumsum(x * mask, 1)"), "unmasked": "return x.cumsum(1)"},
    ),
)
