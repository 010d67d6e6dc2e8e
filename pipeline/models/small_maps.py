"""Convolutions on feature maps of 1x1 and 2x2 pixels, computed as matrix products without padding.

The last layers of a ResNet on small images have feature maps of one or four pixels. There most products of a 3x3
convolution with padding 1 are with padding: 8 of 9 on a map of 1x1, 5 of 9 on a map of 2x2.

Derivation. Let x[n, h, w] be the input channels at a pixel and W[i, j] the matrix (out, in) of a tap. A convolution of
stride s and padding p is

    y[n, r, c] = sum over pixels (h, w) of  x[n, h, w] @ W[h - s*r + p, w - s*c + p].T,

without the pixels whose tap lies outside the kernel. For an input row h and an output pixel (r, c), the taps are
adjacent in one row of the kernel. In channels_last memory the pixels of a row are contiguous, and so are the taps of a
row. The sum over w is therefore one product of matrices (n, w*in) and (out, w*in), both of which are views. Nothing is
multiplied by padding, and nothing is copied. `_PRODUCTS` lists these products. For stride 1 on 2x2, output rows with
equal taps share a product: six products replace eight. A 1x1 convolution of stride 1 on 2x2 has no padding and is not
listed.

Gradients. y is bilinear in x and W. Its gradients are bilinear as well: that of x in the gradient of y and W, that of W
in x and the gradient of y. Each of the three functions has the other two as its derivatives, so derivatives of all
orders exist. Every function uses the same list of products.
"""

import math
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

_EACH = slice(None)
_FIRST_TWO, _LAST_TWO = slice(0, 2), slice(1, 3)


class _Product(NamedTuple):
    """One product y += x @ weight.T, as indices into the tensors.

    Attributes:
        x: of (N, H, W, in).
        weight: of (out, kernel, kernel, in).
        y: of (N, H', W', out).
    """

    x: tuple[Any, ...]
    weight: tuple[Any, ...]
    y: tuple[Any, ...]


def _same_size_on_2x2() -> list[_Product]:
    """Return the products of a 3x3 convolution of stride 1 on 2x2.

    For each output column: both rows with the middle row of taps, then each output row with the other input row.
    """
    products = []
    for column, taps in enumerate((_LAST_TWO, _FIRST_TWO)):
        products.append(_Product(x=(_EACH, _EACH), weight=(_EACH, 1, taps), y=(_EACH, _EACH, column)))
        products.append(_Product(x=(_EACH, 1), weight=(_EACH, 2, taps), y=(_EACH, 0, column)))
        products.append(_Product(x=(_EACH, 0), weight=(_EACH, 0, taps), y=(_EACH, 1, column)))
    return products


_PIXEL = (_EACH, 0, 0)
_ON_1X1 = {kernel: [_Product(x=_PIXEL, weight=(_EACH, kernel // 2, kernel // 2), y=_PIXEL)] for kernel in (1, 3)}
_PRODUCTS: dict[tuple[int, int, int], list[_Product]] = {
    # (side of the map, kernel, stride)
    (1, 1, 1): _ON_1X1[1],
    (1, 1, 2): _ON_1X1[1],
    (1, 3, 1): _ON_1X1[3],
    (1, 3, 2): _ON_1X1[3],
    (2, 1, 2): [_Product(x=_PIXEL, weight=(_EACH, 0, 0), y=_PIXEL)],
    (2, 3, 1): _same_size_on_2x2(),
    (2, 3, 2): [_Product(x=(_EACH, row), weight=(_EACH, row + 1, _LAST_TWO), y=_PIXEL) for row in (0, 1)],
}

# On CPUs, below these numbers of images, and of images x input channels x output channels, torch's convolution was
# faster with AVX-512 or without. With the channels that ResNets have above 16 pixels, the first one decides.
_SMALLEST_BATCH = {(1, 1, 1): 8, (1, 1, 2): 8, (2, 3, 1): 8}
_SMALLEST_WORK = {(1, 1, 1): 2**20, (1, 1, 2): 2**18, (2, 1, 2): 2**18, (2, 3, 1): 2**19, (2, 3, 2): 2**18}
# Of steps recorded as CUDA graphs on an H100, those with products in single precision took .62, .54 and .30 of the time
# at 256, 1,024 and 4,096 images, and in mixed precision as much as those with padded convolutions (docs/results/gpu).
# Where operations are launched singly, products are slower below 1,024 images. One rule is for both, which have equal
# bits.
_SMALLEST_GPU_BATCH = 256


class SmallMapConv2d(nn.Conv2d):
    """A `nn.Conv2d` that computes feature maps of 1x1 and 2x2 by `_PRODUCTS`, and all others by its base class.

    Its padding is half of the kernel, rounded down, and it has no bias.

    The choice depends only on the kind of device, the precision, the shape of the input, the kernel, the stride and the
    output channels. On a CPU a batch of one image, or below `_SMALLEST_BATCH` or `_SMALLEST_WORK`, uses the base class,
    which is faster there. So does a GPU with fewer than `_SMALLEST_GPU_BATCH` images, or in mixed precision. Parameters
    and their names are those of the base class.
    """

    def __init__(self, in_channels: int, out_channels: int, kernel: int, *, stride: int, **options: Any) -> None:
        super().__init__(in_channels, out_channels, kernel, stride=stride, padding=kernel // 2, bias=False, **options)
        cases = [case for case in _PRODUCTS if case[1:] == (kernel, stride)]
        self._smallest_batch = {case[0]: _smallest_batch(case, in_channels * out_channels) for case in cases}

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - the name in torch's base class
        """(N, in, H, W) -> (N, out, H', W'), channels_last if the map is small."""
        batch, _, height, width = input.shape
        smallest_batch = self._smallest_batch.get(height)
        if input.is_cuda and smallest_batch is not None:
            smallest_batch = _smallest_gpu_batch()
        if smallest_batch is None or batch < smallest_batch or height != width:
            return super().forward(input)
        weight = self.weight
        if torch.is_autocast_enabled(input.device.type):
            dtype = torch.get_autocast_dtype(input.device.type)
            input, weight = input.to(dtype), weight.to(dtype)  # noqa: A001
        y: Tensor = _convolve(input, weight, self.stride[0])
        return y


def _smallest_batch(case: tuple[int, int, int], channels_product: int) -> int:
    return max(_SMALLEST_BATCH.get(case, 2), math.ceil(_SMALLEST_WORK.get(case, 0) / channels_product))


def _smallest_gpu_batch() -> int | None:
    """Return from how many images on a GPU computes products; None if the padded convolution takes less time."""
    return None if torch.is_autocast_enabled("cuda") else _SMALLEST_GPU_BATCH


def with_small_maps(model: nn.Module) -> nn.Module:
    """Replace every convolution that `SmallMapConv2d` supports, in place; the weights stay the same tensors."""
    for name, child in model.named_children():
        if type(child) is nn.Conv2d and _is_covered(child):
            kernel, stride = child.kernel_size[0], child.stride[0]
            conv = SmallMapConv2d(child.in_channels, child.out_channels, kernel, stride=stride, device="meta")
            conv.weight = child.weight
            setattr(model, name, conv)
        else:
            with_small_maps(child)
    return model


def _is_covered(conv: nn.Conv2d) -> bool:
    kernel, stride = conv.kernel_size[0], conv.stride[0]
    square = conv.kernel_size == (kernel, kernel) and conv.stride == (stride, stride)
    plain = conv.bias is None and conv.groups == 1 and conv.dilation == (1, 1) and conv.padding_mode == "zeros"
    padded = conv.padding == (kernel // 2, kernel // 2)
    return square and plain and padded and any((side, kernel, stride) in _PRODUCTS for side in (1, 2))


def _empty_maps(like: Tensor, channels: int, side: int) -> Tensor:
    """Return uninitialized (N, channels, side, side), channels_last."""
    shape = len(like), channels, side, side
    return torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=torch.channels_last)


def _new_y(x: Tensor, weight: Tensor, stride: int) -> Tensor:
    return _empty_maps(x, len(weight), (x.shape[2] - 1) // stride + 1)


def _new_x(grad_y: Tensor, weight: Tensor, stride: int, side: int) -> Tensor:  # noqa: ARG001
    return _empty_maps(grad_y, weight.shape[1], side)


def _new_weight(x: Tensor, grad_y: Tensor, weight: Tensor, stride: int) -> Tensor:  # noqa: ARG001
    return torch.empty_like(weight)


@torch.library.custom_op("batchsieve::small_map_convolution", mutates_args=())
def _convolve(x: Tensor, weight: Tensor, stride: int) -> Tensor:
    """Return the feature maps y (N, out, side', side')."""
    y = _new_y(x, weight, stride)
    _sum_products(y, ((part, a, w.T) for a, w, part in _matrices(x, weight, y, stride)))
    return y


@torch.library.custom_op("batchsieve::small_map_gradient_of_x", mutates_args=())
def _gradient_of_x(grad_y: Tensor, weight: Tensor, stride: int, side: int) -> Tensor:
    """Return the gradient of x (N, in, side, side)."""
    gradient = _new_x(grad_y, weight, stride, side)
    _sum_products(gradient, ((part, g, w) for part, w, g in _matrices(gradient, weight, grad_y, stride)))
    return gradient


@torch.library.custom_op("batchsieve::small_map_gradient_of_weight", mutates_args=())
def _gradient_of_weight(x: Tensor, grad_y: Tensor, weight: Tensor, stride: int) -> Tensor:
    """Return the gradient of W with the strides of W, since autograd copies gradients of other strides."""
    gradient = torch.empty_like(weight, memory_format=torch.channels_last)
    _sum_products(gradient, ((part, g.T, a) for a, part, g in _matrices(x, gradient, grad_y, stride)))
    return gradient if gradient.stride() == weight.stride() else torch.empty_like(weight).copy_(gradient)


def _matrices(x: Tensor, weight: Tensor, y: Tensor, stride: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield the matrices (n, k), (out, k) and (n, out) of every product; views if the tensors are channels_last."""
    x, weight, y = (t.contiguous(memory_format=torch.channels_last).permute(0, 2, 3, 1) for t in (x, weight, y))
    for product in _PRODUCTS[x.shape[1], weight.shape[1], stride]:
        taps = weight[product.weight].flatten(1)
        yield x[product.x].view(-1, taps.shape[1]), taps, y[product.y].view(-1, len(taps))


def _sum_products(total: Tensor, products: Iterable[tuple[Tensor, Tensor, Tensor]]) -> None:
    """Set `total` to the sum of the products: each a @ b is added to its part of `total`.

    A first product that covers all of `total` overwrites it. Otherwise `total` is filled with zeros, and the first
    product is added like the others: so for weights of 3x3 kernels, and for y of 3x3 kernels on maps of 2x2.
    """
    for index, (part, a, b) in enumerate(products):
        covers_total = index == 0 and part.numel() == total.numel()
        if index == 0 and not covers_total:
            total.zero_()
        part.addmm_(a, b, beta=0 if covers_total else 1)


def _save_operands(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001
    ctx.save_for_backward(*(value for value in inputs if isinstance(value, Tensor)))
    ctx.stride = inputs[2] if isinstance(inputs[2], int) else inputs[3]


def _derive_y(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
    x, weight = ctx.saved_tensors
    need_x, need_weight, _ = ctx.needs_input_grad
    return (
        _gradient_of_x(grad, weight, ctx.stride, x.shape[2]) if need_x else None,
        _gradient_of_weight(x, grad, weight, ctx.stride) if need_weight else None,
        None,
    )


def _derive_gradient_of_x(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    grad_y, weight = ctx.saved_tensors
    return (
        _convolve(grad, weight, ctx.stride),
        _gradient_of_weight(grad, grad_y, weight, ctx.stride),
        None,
        None,
    )


def _derive_gradient_of_weight(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, grad_y, _ = ctx.saved_tensors
    return (
        _gradient_of_x(grad_y, grad, ctx.stride, x.shape[2]),
        _convolve(x, grad, ctx.stride),
        None,
        None,
    )


for _function, _fake, _derivative in (
    (_convolve, _new_y, _derive_y),
    (_gradient_of_x, _new_x, _derive_gradient_of_x),
    (_gradient_of_weight, _new_weight, _derive_gradient_of_weight),
):
    _function.register_fake(_fake)
    _function.register_autograd(_derivative, setup_context=_save_operands)
