"""Matrix products over chosen rows: what is zero is left out, and the numbers do not depend on how rows are batched.

A product of torch computes every number, also where a row of inputs has zeros at known places, as the features behind
a ReLU have: half of them. Here lists say which rows take part. A block of 6 × 64 sums stays in vector registers. numba
does not write such loops, so their LLVM instructions are written out here.

Measured on an AMD EPYC with AVX512, one core, 12 × 128 rows against 128 × 256: 195 to 224 GFLOPS; torch.mm of square
matrices 91 to 98.

Each sum is made in the order of its list, whatever the blocks. So no bit depends on the rows beside it.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from remuda.core.kernels import kernel

BLOCK = 64
"""Columns of a large block."""
LANE = 16
"""Columns of a small block; numbers of columns are multiples of it."""
SPARE = 8
"""Rows, and entries of lists of rows, that must be there behind the last one: blocks of rows are filled up."""


def filled(count: int) -> int:
    """The next multiple of LANE."""
    return -(-count // LANE) * LANE


def _block(rows: int, columns: int) -> Any:
    """A function for numba that computes `rows` × `columns` sums; its arguments are those of `add_product`."""

    @intrinsic  # type: ignore[untyped-decorator]
    def multiply(
        typing: Any, a: Any, a0: Any, ar: Any, ra: Any, ka: Any, sa: Any, depth: Any, b: Any, b0: Any, kb: Any,
        sb: Any, c: Any, c0: Any, cr: Any, sc: Any, first: Any, add: Any,
    ) -> Any:  # fmt: skip
        number = types.int64
        signature = types.void(
            a, number, ar, number, ka, number, number, b, number, kb, number, c, number, cr, number, number,
            types.boolean,
        )  # fmt: skip

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            arrays = {
                name: context.make_array(signature.args[i])(context, builder, arguments[i]).data
                for name, i in (("a", 0), ("ar", 2), ("ka", 4), ("b", 7), ("kb", 9), ("c", 11), ("cr", 13))
            }
            numbers = {
                name: arguments[i]
                for name, i in (
                    ("a0", 1), ("ra", 3), ("sa", 5), ("depth", 6), ("b0", 8), ("sb", 10), ("c0", 12), ("sc", 14),
                    ("first", 15), ("add", 16),
                )
            }  # fmt: skip
            lanes, max_rows, max_vectors = _registers(context.codegen().magic_tuple(), rows, columns)
            for row in range(0, rows, max_rows):
                for column in range(0, columns, lanes * max_vectors):
                    own = range(row, min(row + max_rows, rows))
                    vectors = min(max_vectors, (columns - column) // lanes)
                    _Loop(builder, arrays, numbers, lanes).write(own, column, vectors)
            return context.get_dummy_value()

        return signature, generate

    return multiply


def _registers(target: tuple[str, str, str], rows: int, columns: int) -> tuple[int, int, int]:
    """Numbers in a vector register, and the rows and vectors of sums that the registers hold at once."""
    triple, _, features = target
    if "+avx512f" in features:  # 32 registers
        return 16, rows, columns // 16
    wide = triple.startswith(("x86", "i686", "amd64"))
    max_rows = 6 if rows % 6 == 0 else 4
    return (8, max_rows, 2) if wide else (4, max_rows, 4)  # 16 registers of AVX2, 32 of NEON


class _Loop:
    """Writes one loop whose sums stay in registers."""

    def __init__(self, builder: Any, arrays: dict[str, Any], numbers: dict[str, Any], lanes: int) -> None:
        self.builder, self.arrays, self.numbers, self.lanes = builder, arrays, numbers, lanes
        self.long, self.vector = ir.IntType(64), ir.VectorType(ir.FloatType(), lanes)
        kind = ir.FunctionType(self.vector, [self.vector] * 3)
        self.multiply_add = cgutils.get_or_insert_function(builder.module, kind, f"llvm.fmuladd.v{lanes}f32")

    def _constant(self, value: int) -> Any:
        return ir.Constant(self.long, value)

    def _row(self, array: str, start: Any, index: Any, stride: str) -> Any:
        """The address of row `index` of an array whose rows are `stride` apart."""
        offset = self.builder.add(start, self.builder.mul(index, self.numbers[stride]))
        return self.builder.gep(self.arrays[array], [offset])

    def _listed(self, name: str, place: Any) -> Any:
        return self.builder.load(self.builder.gep(self.arrays[name], [place]))

    def _vectors(self, pointer: Any, count: int) -> list[Any]:
        """Addresses of `count` vectors from an address on."""
        pointer = self.builder.bitcast(pointer, self.vector.as_pointer())
        return [self.builder.gep(pointer, [self._constant(i)]) for i in range(count)]

    def _spread(self, value: Any) -> Any:
        """A vector of one number."""
        undefined, index = ir.Constant(self.vector, ir.Undefined), ir.Constant(ir.IntType(32), 0)
        places = ir.Constant(ir.VectorType(ir.IntType(32), self.lanes), None)
        return self.builder.shuffle_vector(self.builder.insert_element(undefined, value, index), undefined, places)

    def write(self, rows: range, column: int, vectors: int) -> None:
        """Write the loop for some rows of the block and for `vectors` vectors from `column` on."""
        builder, numbers = self.builder, self.numbers
        places = [builder.add(numbers["first"], self._constant(row)) for row in rows]
        c0, b0 = (builder.add(numbers[name], self._constant(column)) for name in ("c0", "b0"))
        left = [self._row("a", numbers["a0"], self._listed("ar", place), "ra") for place in places]
        out = [self._vectors(self._row("c", c0, self._listed("cr", place), "sc"), vectors) for place in places]
        before, load = builder.block, builder.append_basic_block("load")
        head, body, end = (builder.append_basic_block(name) for name in ("head", "body", "end"))
        builder.cbranch(numbers["add"], load, head)
        builder.position_at_end(load)
        loaded = [[builder.load(place, align=4) for place in row] for row in out]
        builder.branch(head)

        builder.position_at_end(head)
        k, sums = builder.phi(self.long), [[builder.phi(self.vector) for _ in row] for row in out]
        for origin in (before, load):
            k.add_incoming(self._constant(0), origin)
        for own, old in zip(sums, loaded, strict=True):
            for total, start in zip(own, old, strict=True):
                total.add_incoming(ir.Constant(self.vector, None), before)
                total.add_incoming(start, load)
        builder.cbranch(builder.icmp_signed("<", k, numbers["depth"]), body, end)

        builder.position_at_end(body)
        offset = builder.mul(self._listed("ka", k), numbers["sa"])
        right = self._vectors(self._row("b", b0, self._listed("kb", k), "sb"), vectors)
        factors = [builder.load(place, align=4) for place in right]
        for own, row in zip(sums, left, strict=True):
            value = self._spread(builder.load(builder.gep(row, [offset])))
            for total, factor in zip(own, factors, strict=True):
                total.add_incoming(builder.call(self.multiply_add, [value, factor, total]), body)
        k.add_incoming(builder.add(k, self._constant(1)), body)
        builder.branch(head)

        builder.position_at_end(end)
        for own, row in zip(sums, out, strict=True):
            for total, place in zip(own, row, strict=True):
                builder.store(total, place, align=4)


_six, _four = _block(6, BLOCK), _block(4, BLOCK)
_eight_narrow, _four_narrow = _block(8, LANE), _block(4, LANE)


@kernel(allocates=False)
def add_product(
    a: Any, a0: int, ar: Any, ra: int, ka: Any, sa: int, depth: int, b: Any, b0: int, kb: Any, sb: int, c: Any,
    c0: int, cr: Any, sc: int, rows: int, columns: int, add: bool,
) -> None:  # fmt: skip
    """c[cr[i], j] = sum over k < depth of a[ar[i], ka[k]] × b[kb[k], j], for i < rows and j < columns; += if `add`.

    a, b and c are flat float32 arrays and a0, b0, c0 where the matrices begin in them. Number (i, k) of the first is
    a[a0 + ar[i] * ra + ka[k] * sa], row k of the second begins at b[b0 + kb[k] * sb], row i of the third at
    c[c0 + cr[i] * sc]. `ar` and `cr` have SPARE entries behind the last row, whose sums may be written, too.
    """
    j = 0
    while j + BLOCK <= columns:
        i = 0
        while i < rows:
            left = rows - i
            if left <= 4 or left == 7 or left == 8:
                _four(a, a0, ar, ra, ka, sa, depth, b, b0 + j, kb, sb, c, c0 + j, cr, sc, i, add)
                i += 4
            else:
                _six(a, a0, ar, ra, ka, sa, depth, b, b0 + j, kb, sb, c, c0 + j, cr, sc, i, add)
                i += 6
        j += BLOCK
    while j < columns:
        i = 0
        while i < rows:
            if rows - i <= 4:
                _four_narrow(a, a0, ar, ra, ka, sa, depth, b, b0 + j, kb, sb, c, c0 + j, cr, sc, i, add)
                i += 4
            else:
                _eight_narrow(a, a0, ar, ra, ka, sa, depth, b, b0 + j, kb, sb, c, c0 + j, cr, sc, i, add)
                i += 8
        j += LANE


@kernel(allocates=False)
def list_nonzero(values: Any, start: int, count: int, spare: int, out: Any) -> int:
    """Which of values[start : start + count] are not zero, to `out`, and behind them SPARE times `spare`; how many."""
    n = 0
    for j in range(count):
        out[n] = j
        n += values[start + j] != 0
    for j in range(n, n + SPARE):
        out[j] = spare
    return n


@kernel(allocates=False)
def transpose(source: Any, s0: int, rows: int, columns: int, width: int, out: Any, o0: int, out_width: int) -> None:
    """Copy a matrix (rows, columns) whose rows are `width` apart to one (columns, rows) in another flat array."""
    for i0 in range(0, rows, LANE):
        for j0 in range(0, columns, LANE):
            for j in range(j0, min(j0 + LANE, columns)):
                for i in range(i0, min(i0 + LANE, rows)):
                    out[o0 + j * out_width + i] = source[s0 + i * width + j]
