"""Convolutions, activations, pooling and losses."""

from __future__ import annotations

from .pair import KEPT, ONCE, SHORT, Pair

X = {"x": "torch.rand(32, 200)"}
IMAGE = {"x": "torch.rand(2, 3, 16, 16)"}
PAIR = {"p": "torch.rand(32, 20)", "t": "torch.rand(32, 20)"}

LAYERS = (
    Pair("relu", X, "return torch.relu(x)", "return x.clamp(min=0)", {"input": "return x", "copy": "return x.clone()"}),
    Pair(
        "leaky_relu",
        X,
        "return F.leaky_relu(x, 0.1)",
        "return torch.where(x > 0, x, 0.1 * x)",
        {"relu": "return x.relu()"},
    ),
    Pair("sigmoid", X, "return torch.sigmoid(x)", "return 1 / (1 + torch.exp(-x))", {"line": "return 0.5 + x / 4"}),
    Pair(
        "tanh",
        X,
        "return torch.tanh(x)",
        "return 2 * torch.sigmoid(2 * x) - 1",
        {"half": "return x.half().tanh().float()"},
    ),
    Pair(
        "gelu",
        X,
        "return F.gelu(x)",
        "return 0.5 * x * (1 + torch.erf(x * 0.7071067811865476))",
        {"tanh": "return F.gelu(x, approximate='tanh')"},
    ),
    Pair("silu", X, "return x * torch.sigmoid(x)", "return F.silu(x)", {"short": SHORT.format(y="F.silu(x)")}),
    Pair("hardtanh", X, "return F.hardtanh(x, -1, 1)", "return x.clamp(-1, 1)", {"input": "return x.clone()"}),
    Pair(
        "softplus",
        X,
        "return F.softplus(x)",
        "return torch.logaddexp(x, torch.zeros_like(x))",
        {"once": ONCE.format(y="F.softplus(x)")},
    ),
    Pair(
        "conv2d",
        IMAGE,
        "return self.conv(x)",
        "return F.conv2d(x, self.conv.weight, self.conv.bias)",
        {"no_bias": "return F.conv2d(x, self.conv.weight)", "kept": KEPT.format(x="x", y="self.conv(x)")},
        "self.conv = nn.Conv2d(3, 8, 3)",
    ),
    Pair(
        "conv1d_dilated",
        {"x": "torch.rand(2, 3, 64)"},
        "return self.conv(x)",
        "return F.conv1d(x, self.conv.weight, self.conv.bias, stride=2, dilation=3)",
        {"undilated": "return F.conv1d(x, self.conv.weight, self.conv.bias, stride=2)[..., :29]"},
        "self.conv = nn.Conv1d(3, 8, 3, stride=2, dilation=3)",
    ),
    Pair(
        "depthwise",
        {"x": "torch.rand(2, 6, 12, 12)"},
        "return self.conv(x)",
        "return F.conv2d(x, self.conv.weight, groups=6)",
        {"short": SHORT.format(y="self.conv(x)")},
        "self.conv = nn.Conv2d(6, 6, 3, groups=6, bias=False)",
    ),
    Pair(
        "transposed_conv",
        {"x": "torch.rand(2, 4, 10)"},
        "return self.conv(x)",
        "return F.conv_transpose1d(x, self.conv.weight, self.conv.bias)",
        {"flipped": "return F.conv_transpose1d(x, self.conv.weight.flip(2), self.conv.bias)"},
        "self.conv = nn.ConvTranspose1d(4, 6, 3)",
    ),
    Pair(
        "max_pool",
        IMAGE,
        "return F.max_pool2d(x, 2)",
        "return x.unfold(2, 2, 2).unfold(3, 2, 2).amax((4, 5))",
        {"corner": "return x[:, :, ::2, ::2]"},
    ),
    Pair(
        "avg_pool",
        IMAGE,
        "return F.avg_pool2d(x, 4)",
        "return x.view(2, 3, 4, 4, 4, 4).mean((3, 5))",
        {"max": "return F.max_pool2d(x, 4)"},
    ),
    Pair(
        "mse_loss",
        PAIR,
        "return torch.mean((p - t) ** 2)",
        "return F.mse_loss(p, t)",
        {"constant": "return torch.tensor(1 / 6)"},
    ),
    Pair(
        "huber_loss",
        PAIR,
        "return F.smooth_l1_loss(p, t)",
        "d = (p - t).abs()\nreturn torch.where(d < 1, d * d / 2, d - 0.5).mean()",
        {"l2_only": "return ((p - t) ** 2).mean() / 2"},
    ),
    Pair(
        "cross_entropy",
        {"x": "torch.rand(64, 10)", "target": "torch.randint(0, 10, (64,))"},
        "return F.cross_entropy(x, target)",
        "return -x.log_softmax(1).gather(1, target[:, None]).mean()",
        {"first_class": "return -x.log_softmax(1)[:, 0].mean()"},
    ),
    Pair(
        "lstm",
        {"x": "torch.rand(3, 5, 8)"},
        "return self.lstm(x)[0]",
        "return self.lstm(x)[0]",
        {"first_step": "y = self.lstm(x)[0]\nreturn y[:, :1].expand_as(y).contiguous()"},
        "self.lstm = nn.LSTM(8, 6, batch_first=True)",
    ),
)
