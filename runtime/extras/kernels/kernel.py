"""The kernel: plays a one-sided program from tables in device memory (see tables.py).

A one-sided program is one rank's instructions for a schedule: copies and sums between the ranks'
memories, and signals and waits by counters (one_sided/instructions.py).

Program b of a grid of G plays slices b, b+G, ... of the buffer, one after the other, with windows
and counters of its own. It never waits for another program of its rank, only for program b of other
ranks. So a device may start the programs of a grid one after the other, as long as lower numbers
start first.

Memory order: the threads of a program meet in a barrier, and then one thread for each waiting peer
stores the counter with release semantics at system scope, into the peer's own memory: spinning is
local. On CUDA that is a store, since GPUs joined by PCIe alone have no atomic operations on each
other's memory; elsewhere it is an atomic exchange. Waiting threads load with acquire semantics and
meet in a barrier.

Nothing happens on the host between calls: the number of the run is read from device memory and
written back at the end, so CUDA graphs can hold calls.
"""

# mypy: ignore-errors
# Triton reads these functions' source; their arguments are its own tensors.

import triton
import triton.language as tl
from triton.language.extra import cuda, hip

from . import tables

_MOVE = tl.constexpr(tables.MOVE)
_SIGNAL = tl.constexpr(tables.SIGNAL)
_WAIT = tl.constexpr(tables.WAIT)
_HEADER = tl.constexpr(tables.HEADER)
_ROW = tl.constexpr(tables.ROW)
_TERM = tl.constexpr(tables.TERM)
_AWAITED = tl.constexpr(tables.AWAITED)
_RUN_BITS = tl.constexpr(tables.RUN_BITS)
_RUNS = tl.constexpr(tables.RUNS)
_ERROR = tl.constexpr(tables.ERROR)
_SLICE_NUMEL = tl.constexpr(tables.SLICE_NUMEL)
_INPUT = tl.constexpr(tables.INPUT)
_OUTPUT = tl.constexpr(tables.OUTPUT)
_SLOT = tl.constexpr(tables.SLOT)
_ALIGNED = tl.constexpr(tables.ALIGNED)
_DIVIDES = tl.constexpr(tables.DIVIDES)

# Whole multiples of this number of elements are moved in vectors of 16 bytes, whatever the dtype.
_VECTOR = tl.constexpr(16)


@triton.jit
def _load_counters(pointers, mask, TARGET: tl.constexpr):
    """Load counters of this rank's own memory, with acquire semantics."""
    if TARGET == "cuda":
        return tl.inline_asm_elementwise(
            """{
            .reg .pred %p0;
            setp.ne.b32 %p0, $2, 0;
            mov.b64 $0, 0;
            @%p0 ld.acquire.sys.global.b64 $0, [$1];
            }""",
            "=&l,l,r",
            [pointers.to(tl.int64), mask.to(tl.int32)],
            dtype=tl.int64,
            is_pure=False,
            pack=1,
        )
    else:
        return tl.atomic_add(
            pointers, tl.zeros_like(pointers.to(tl.int64)), mask, sem="acquire", scope="sys"
        )


@triton.jit
def _store_counters(pointers, values, mask, TARGET: tl.constexpr):
    """Store counters in the peers' memory, with release semantics."""
    if TARGET == "cuda":
        tl.inline_asm_elementwise(
            """{
            .reg .pred %p0;
            setp.ne.b32 %p0, $3, 0;
            @%p0 st.release.sys.global.b64 [$1], $2;
            mov.b32 $0, 0;
            }""",
            "=&r,l,l,r",
            [pointers.to(tl.int64), values, mask.to(tl.int32)],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )
    else:
        tl.atomic_xchg(pointers, values, mask, sem="release", scope="sys")


@triton.jit
def _read_clock(spins, TARGET: tl.constexpr):
    """Return the time in nanoseconds; the interpreter has no clock and counts spins."""
    if TARGET == "cuda":
        return cuda.globaltimer()
    elif TARGET == "hip":
        return hip.memrealtime() * 10  # a clock of 100 MHz
    else:
        return spins


@triton.jit
def _block_barrier(LANES: tl.constexpr, TARGET: tl.constexpr):
    """Wait for all threads of the program: each then sees what the others have stored."""
    if TARGET == "hip":
        # A barrier alone does not wait for the stores of other waves to be done.
        tl.inline_asm_elementwise(
            "s_waitcnt vmcnt(0)\nv_mov_b32 $0, $1",
            "=v,v",
            [tl.arange(0, LANES)],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )
    tl.debug_barrier()


@triton.jit
def _wait(
    table, entries, count, run, counter_offset, limit, state, error,
    LANES: tl.constexpr, TARGET: tl.constexpr,
):  # fmt: skip
    """Wait until all counters are reached; return 0, or 1 after writing down who was missing."""
    lane = tl.arange(0, LANES)
    mask = lane < count
    entry = entries + lane * _AWAITED
    pointers = (tl.load(entry, mask=mask, other=0) + counter_offset).to(tl.pointer_type(tl.int64))
    targets = tl.load(entry + 1, mask=mask, other=0) + (run << _RUN_BITS)
    seen = _load_counters(pointers, mask, TARGET)
    missing = tl.sum((mask & (seen < targets)).to(tl.int32), axis=0)
    spins = run * 0
    begun = _read_clock(spins, TARGET)
    failed = missing * 0
    while (missing > 0) & (failed == 0):
        seen = _load_counters(pointers, mask, TARGET)
        late = mask & (seen < targets)
        missing = tl.sum(late.to(tl.int32), axis=0)
        spins += 1
        if (missing > 0) & (_read_clock(spins, TARGET) - begun > limit):
            failed += 1
            first = tl.min(tl.where(late, lane, LANES), axis=0)
            is_first = lane == first
            tl.store(error + 1, tl.load(entries + first * _AWAITED + 2))  # the peer
            tl.store(error + 2, tl.load(entries + first * _AWAITED + 3))  # the step
            tl.store(error + 3, tl.sum(tl.where(is_first, targets, 0), axis=0))
            tl.store(error + 4, tl.sum(tl.where(is_first, seen, 0), axis=0))
            tl.store(error + 5, table.to(tl.int64))
            tl.store(state, 1)
            tl.debug_barrier()
            if TARGET == "cuda":  # the host, which looks at any time, sees all of it or nothing
                _store_counters(error + lane, lane.to(tl.int64) + 1, lane == 0, TARGET)
            else:
                tl.store(error, 1)
    tl.debug_barrier()
    return failed


@triton.jit
def _signal(entries, count, value, counter_offset, LANES: tl.constexpr, TARGET: tl.constexpr):
    """Store this rank's progress in the counters of some peers."""
    lane = tl.arange(0, LANES)
    mask = lane < count
    pointers = tl.load(entries + lane, mask=mask, other=0) + counter_offset
    _block_barrier(LANES, TARGET)
    _store_counters(
        pointers.to(tl.pointer_type(tl.int64)),
        tl.zeros([LANES], tl.int64) + value,
        mask,
        TARGET,
    )


@triton.jit
def _find_address(entry, exists, inputs, outputs, work, in_buffer, in_window):
    """Return where the slice of an operand begins."""
    kind = tl.load(entry, mask=exists, other=_SLOT)
    at = tl.load(entry + 1, mask=exists, other=0)
    base = tl.where(kind == _INPUT, inputs, tl.where(kind == _OUTPUT, outputs, work))
    return at + tl.where(kind == _SLOT, in_window, base + in_buffer)


@triton.jit
def _load(address, offsets, mask, DTYPE: tl.constexpr, ALIGNED: tl.constexpr):
    pointer = address.to(tl.pointer_type(DTYPE))
    if ALIGNED:
        pointer = tl.multiple_of(pointer, 16)
    # Slots are not worth a place in the first-level cache: they are read once.
    value = tl.load(pointer + offsets, mask=mask, other=0, cache_modifier=".cg")
    if DTYPE == tl.float16 or DTYPE == tl.bfloat16:
        value = value.to(tl.float32)
    return value


@triton.jit
def _reduce(a, b, REDUCTION: tl.constexpr):
    if REDUCTION == "sum":
        return a + b
    elif REDUCTION == "prod":
        return a * b
    elif REDUCTION == "max":
        return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
    else:
        return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _divide(value, divisor, DTYPE: tl.constexpr):
    if DTYPE == tl.float64:
        return value / divisor.to(tl.float64)
    elif DTYPE.is_floating():
        return tl.div_rn(value, tl.zeros_like(value) + divisor.to(tl.float32))
    else:
        return value


@triton.jit
def _move(
    terms, term_count, targets, target_count, divisor, first, last,
    inputs, outputs, work, in_buffer, in_window,
    DTYPE: tl.constexpr, REDUCTION: tl.constexpr, BLOCK: tl.constexpr,
    ALIGNED: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """Reduce elements [first, last) of all terms in their order, and store them to all targets."""
    own = _find_address(terms, term_count > 0, inputs, outputs, work, in_buffer, in_window)
    for at in range(first, last, BLOCK):
        offsets = at + tl.arange(0, BLOCK)
        mask = offsets < last
        value = _load(own, offsets, mask, DTYPE, ALIGNED)
        for group in range(1, term_count, UNROLL):
            # The loads do not depend on each other: all of them are in flight at once.
            for number in tl.static_range(UNROLL):
                exists = term_count > group + number
                address = _find_address(
                    terms + (group + number) * _TERM, exists,
                    inputs, outputs, work, in_buffer, in_window,
                )  # fmt: skip
                end = tl.where(exists, last, 0)
                other = _load(address, offsets, offsets < end, DTYPE, ALIGNED)
                value = tl.where(exists, _reduce(value, other, REDUCTION), value)
        if divisor > 1:
            value = _divide(value, divisor, DTYPE)
        for number in range(0, target_count):
            address = _find_address(
                targets + number * _TERM,
                target_count > number,
                inputs,
                outputs,
                work,
                in_buffer,
                in_window,
            )
            pointer = address.to(tl.pointer_type(DTYPE))
            if ALIGNED:
                pointer = tl.multiple_of(pointer, 16)
            tl.store(pointer + offsets, value.to(DTYPE), mask=mask)


@triton.jit
def _move_part(
    terms, term_count, targets, target_count, divisor, first, last,
    inputs, outputs, work, in_buffer, in_window,
    DTYPE: tl.constexpr, REDUCTION: tl.constexpr, BLOCK: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """Call `_move` for as many terms as there are, with about as many bytes in flight for each.

    A program waits for its loads, so these bytes decide how much of a link it fills.
    """
    if term_count == 1:
        _move(
            terms, term_count, targets, target_count, divisor, first, last,
            inputs, outputs, work, in_buffer, in_window, DTYPE, REDUCTION, BLOCK * 4, ALIGNED, 1,
        )  # fmt: skip
    elif term_count == 2:
        _move(
            terms, term_count, targets, target_count, divisor, first, last,
            inputs, outputs, work, in_buffer, in_window, DTYPE, REDUCTION, BLOCK * 2, ALIGNED, 1,
        )  # fmt: skip
    else:
        _move(
            terms, term_count, targets, target_count, divisor, first, last,
            inputs, outputs, work, in_buffer, in_window, DTYPE, REDUCTION, BLOCK, ALIGNED, 7,
        )  # fmt: skip


@triton.jit(
    do_not_specialize_on_alignment=["table", "state", "errors", "source", "target", "scratch"]
)
def execute_program(
    table, state, errors, source, target, scratch,
    REDUCTION: tl.constexpr, BLOCK: tl.constexpr, LANES: tl.constexpr, TARGET: tl.constexpr,
):  # fmt: skip
    """Run the instructions of one rank on `source`, `target` and the work buffer `scratch`.

    `table` holds the instructions, `state` the time limit and the numbers of runs; `errors`
    receives a time-out. `BLOCK` is in elements; `LANES` is the most ranks that one instruction
    names; `REDUCTION` is the reduction; `TARGET` is "cuda", "hip" or "interpreter".
    """
    DTYPE: tl.constexpr = source.dtype.element_ty
    SIZE: tl.constexpr = DTYPE.primitive_bitwidth // 8
    inputs, outputs, work = source.to(tl.int64), target.to(tl.int64), scratch.to(tl.int64)
    program = tl.program_id(0).to(tl.int64)
    count = tl.load(table)
    slices = tl.load(table + 1)
    half_bytes = tl.load(table + 2)
    ranks = tl.load(table + 3)
    limit = tl.load(state + 1)
    run = tl.load(state + _RUNS + program)
    failed = tl.load(state).to(tl.int32)
    error = errors + program * _ERROR
    counter_offset = program * ranks * 8
    are_aligned = ((inputs | outputs | work) & 15) == 0
    part = program
    while (part < slices) & (failed == 0):
        in_window = (program * 2 + (run & 1)) * half_bytes
        at = count * 0
        while (at < count) & (failed == 0):
            row = table + _HEADER + at * _ROW
            operation = tl.load(row)
            number = tl.load(row + 1)
            flags = tl.load(row + 2)
            terms = table + tl.load(row + 3)
            term_count = tl.load(row + 4).to(tl.int32)
            targets = table + tl.load(row + 5)
            target_count = tl.load(row + 6).to(tl.int32)
            if operation == _MOVE:
                blocks = (number + _SLICE_NUMEL - 1) // _SLICE_NUMEL
                lo = tl.minimum(blocks * part // slices * _SLICE_NUMEL, number)
                hi = tl.minimum(blocks * (part + 1) // slices * _SLICE_NUMEL, number)
                length = (hi - lo).to(tl.int32)
                divisor = tl.where((flags & _DIVIDES) != 0, ranks, 1).to(tl.int32)
                whole = tl.where(
                    are_aligned & ((flags & _ALIGNED) != 0), length // _VECTOR * _VECTOR, 0
                )
                whole = tl.multiple_of(whole, 16)
                if whole > 0:
                    _move_part(
                        terms, term_count, targets, target_count, divisor, 0, whole,
                        inputs, outputs, work, lo * SIZE, in_window,
                        DTYPE, REDUCTION, BLOCK, True,
                    )  # fmt: skip
                if whole < length:
                    _move_part(
                        terms, term_count, targets, target_count, divisor, whole, length,
                        inputs, outputs, work, lo * SIZE, in_window,
                        DTYPE, REDUCTION, BLOCK // 2, False,
                    )  # fmt: skip
                # Later instructions may read by other threads what was stored.
                _block_barrier(LANES, TARGET)
            elif operation == _SIGNAL:
                value = (run << _RUN_BITS) + number
                _signal(terms, term_count, value, counter_offset, LANES, TARGET)
            else:
                failed += _wait(
                    table, terms, term_count, run, counter_offset, limit, state, error,
                    LANES, TARGET,
                )  # fmt: skip
            at += 1
        run += 1
        part += tl.num_programs(0)
    tl.store(state + _RUNS + program, run)
