// The operations of message programs that a rank carries out alone.

#pragma once

#include <cstdint>
#include <cstring>

#include "sums.hpp"

namespace topoplan {

// Codes of words.py.
enum Code : int64_t { COPY, COMBINE, DIVIDE };

struct Operation {
  int64_t code;
  char *into;
  const char *other;   // what is copied or combined
  int64_t count;       // elements, or bytes to copy
  int64_t divisor;

  int64_t bytes(int64_t dtype) const { return code == COPY ? count : count * WIDTHS[dtype]; }

  void execute(int64_t dtype, int64_t reduction) const {
    if (code == COPY) memcpy(into, other, size_t(count));
    else if (code == COMBINE) COMBINE_BY[dtype][reduction](into, into, other, count);
    else DIVIDE_BY[dtype](into, count, divisor);
  }
};

// Words of an operation: code, two buffers with offsets in bytes, count, divisor.
constexpr int OPERATION_WORDS = 7;

inline Operation read_operation(const int64_t *x, void *const *buffers) {
  return {x[0], static_cast<char *>(buffers[x[1]]) + x[2], static_cast<const char *>(buffers[x[3]]) + x[4],
          x[5], x[6]};
}

}  // namespace topoplan
