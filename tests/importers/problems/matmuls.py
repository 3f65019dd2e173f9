"""Matrix products."""

from __future__ import annotations

from .pair import KEPT, SHORT, SUMMED, Pair

MATMULS = (
    Pair(
        "square_matmul",
        {"a": "torch.rand(96, 96)", "b": "torch.rand(96, 96)"},
        "return a @ b",
        "return torch.mm(a, b)",
        {"bfloat16": "return (a.bfloat16() @ b.bfloat16()).float()", "kept": KEPT.format(x="a", y="a @ b")},
    ),
    Pair(
        "batched_matmul",
        {"a": "torch.rand(4, 32, 48)", "b": "torch.rand(4, 48, 16)"},
        "return torch.bmm(a, b)",
        "return torch.einsum('bik,bkj->bij', a, b)",
        {"first_batch": "y = torch.zeros(4, 32, 16)\ny[0] = a[0] @ b[0]\nreturn y"},
    ),
    Pair(
        "matrix_vector",
        {"a": "torch.rand(64, 500)", "v": "torch.rand(500, 1)"},
        "return a @ v",
        "return (a * v.view(-1)).sum(1, keepdim=True)",
        {"short_k": "return a[:, :-1] @ v[:-1]"},
    ),
    Pair(
        "scalar_product",
        {"a": "torch.rand(64, 64)"},
        "return a * 2.5",
        "return torch.mul(a, 2.5)",
        {"input": "return a", "in_place": "return a.mul_(2.5)"},
    ),
    Pair(
        "transposed_matmul",
        {"a": "torch.rand(48, 64)", "b": "torch.rand(32, 48)"},
        "return a.T @ b.T",
        "return (b @ a).T.contiguous()",
        {"other_way": "return b @ a"},
    ),
    Pair(
        "triangular_matmul",
        {"a": "torch.rand(64, 64).tril()", "b": "torch.rand(64, 64).tril()"},
        "return torch.tril(a @ b)",
        "return torch.mm(a, b).tril_()",
        {"untrimmed": "return a @ b.triu()"},
    ),
    Pair(
        "diagonal_matmul",
        {"d": "torch.rand(64)", "b": "torch.rand(64, 48)"},
        "return torch.diag(d) @ b",
        "return d.unsqueeze(1) * b",
        {"short": SHORT.format(y="d.unsqueeze(1) * b")},
    ),
    Pair(
        "linear_relu",
        {"x": "torch.rand(64, 128)"},
        "return torch.relu(self.linear(x))",
        "return torch.addmm(self.linear.bias, x, self.linear.weight.T).relu_()",
        {
            "no_bias": "return torch.relu(x @ self.linear.weight.T)",
            "first_weights": "if 'w' not in self.__dict__:\n    self.__dict__['w'] = self.linear.weight.clone()\n"
            "return torch.relu(F.linear(x, self.__dict__['w'], self.linear.bias))",
        },
        "self.linear = nn.Linear(128, 64)",
    ),
    Pair(
        "tensor_matmul",
        {"a": "torch.rand(4, 8, 32)", "b": "torch.rand(32, 24)"},
        "return torch.einsum('nml,lk->nmk', a, b)",
        "return a @ b",
        {"summed": SUMMED.format(x="a", y="a @ b")},
    ),
)
