// The clock of deadlines, and when players return to Python.

#pragma once

#include <ctime>

namespace topoplan {

// After this time in one wait control returns to Python, which handles signals such as Ctrl-C.
constexpr double PAUSE_S = 0.2;

// Python's time.monotonic.
inline double now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}

}  // namespace topoplan
