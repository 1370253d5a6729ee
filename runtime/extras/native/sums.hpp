// Sums and other reductions of arrays, with the bits of torch's.

#pragma once

#include <cstdint>

namespace topoplan {

// Writes the reduction of two arrays of some elements to the first argument, which may be one of them.
using Combiner = void (*)(void *into, const void *a, const void *b, int64_t elements);
// Divides some elements by a number, in place.
using Divider = void (*)(void *values, int64_t elements, int64_t by);

// By the number of a dtype, and of a reduction, in library.py. Integers have no divider.
constexpr int WIDTHS[] = {4, 8, 2, 2, 1, 1, 2, 4, 8};
extern const Combiner COMBINE_BY[][4];
extern const Divider DIVIDE_BY[];

}  // namespace topoplan
