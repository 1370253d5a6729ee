#include "sums.hpp"

#include <cstring>

#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GNUC__)
// Compiled for several processors; the loader picks the one at hand.
#define FOR_EACH_PROCESSOR __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define FOR_EACH_PROCESSOR
#endif

namespace topoplan {
namespace {

enum Reduction : int64_t { SUM, PRODUCT, MAX, MIN };

// The values of 16-bit floats; sums are rounded to nearest even after each addition, as torch does.
struct Bfloat16 { uint16_t bits; };
struct Float16 { uint16_t bits; };

inline float bits_to_float(uint32_t bits) { float x; memcpy(&x, &bits, 4); return x; }
inline uint32_t float_to_bits(float x) { uint32_t bits; memcpy(&bits, &x, 4); return bits; }

inline float widen(Bfloat16 x) { return bits_to_float(uint32_t(x.bits) << 16); }
inline void narrow(float x, Bfloat16 &into) {
  uint32_t bits = float_to_bits(x);
  uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  into.bits = x != x ? uint16_t(0x7fc0) : uint16_t(rounded);
}

// Without branches, so that compilers vectorise it. Subnormals are converted as integers: as floats they
// would be zeros after torch.set_flush_denormal(True), but not in torch's own sums.
inline float widen(Float16 x) {
  uint32_t magnitude = uint32_t(x.bits) & 0x7fffu, sign = (uint32_t(x.bits) & 0x8000u) << 16;
  uint32_t small = float_to_bits(float(int32_t(magnitude)) * bits_to_float(0x33800000u));  // 2^-24
  uint32_t bias = magnitude >= 0x7c00u ? 0x70000000u : 0x38000000u;  // infinities and NaN, others
  return bits_to_float((magnitude < 0x400u ? small : (magnitude << 13) + bias) | sign);
}
inline void narrow(float x, Float16 &into) {
  uint32_t bits = float_to_bits(x), sign = bits & 0x80000000u, magnitude = bits ^ sign;
  // Below 2^-14 the result is subnormal: adding 0.5 rounds it in the float's own mantissa.
  uint32_t small = float_to_bits(bits_to_float(magnitude) + 0.5f) - 0x3f000000u;
  uint32_t normal = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  uint32_t large = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;  // NaN, infinity
  uint32_t rest = magnitude < 0x38800000u ? small : normal;
  into.bits = uint16_t((magnitude >= 0x47800000u ? large : rest) | (sign >> 16));
}

template <class T> struct As { using Wide = T; };
template <> struct As<Bfloat16> { using Wide = float; };
template <> struct As<Float16> { using Wide = float; };

template <class T> inline T widen(T x) { return x; }
template <class T> inline void narrow(T x, T &into) { into = x; }

template <int64_t R, class W> inline W reduce(W a, W b) {
  if constexpr (R == SUM) return a + b;
  if constexpr (R == PRODUCT) return a * b;
  // Like torch's: if one is NaN, the result is.
  if constexpr (R == MAX) return a != a ? a : (b != b ? b : (a >= b ? a : b));
  return a != a ? a : (b != b ? b : (a <= b ? a : b));
}

// Built with -fwrapv: integers wrap around.
template <class T, int64_t R> inline void add_pair(T *into, const T *a, const T *b, int64_t n) {
  using W = typename As<T>::Wide;
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC ivdep  // `into` may be `a` or `b`, but never overlaps a part of them
#endif
  for (int64_t i = 0; i < n; i++) narrow(reduce<R, W>(widen(a[i]), widen(b[i])), into[i]);
}

#define COMBINER(NAME, T, R)                                                                   \
  FOR_EACH_PROCESSOR void NAME(void *into, const void *a, const void *b, int64_t n) {          \
    add_pair<T, R>(static_cast<T *>(into), static_cast<const T *>(a), static_cast<const T *>(b), n); \
  }
#define COMBINERS(NAME, T)                                                                     \
  COMBINER(NAME##_sum, T, SUM)                                                                 \
  COMBINER(NAME##_product, T, PRODUCT)                                                         \
  COMBINER(NAME##_max, T, MAX)                                                                 \
  COMBINER(NAME##_min, T, MIN)
COMBINERS(float32, float)
COMBINERS(float64, double)
COMBINERS(float16, Float16)
COMBINERS(bfloat16, Bfloat16)
COMBINERS(uint8, uint8_t)
COMBINERS(int8, int8_t)
COMBINERS(int16, int16_t)
COMBINERS(int32, int32_t)
COMBINERS(int64, int64_t)

template <class T> inline void divide_all(T *values, int64_t n, int64_t by) {
  using W = typename As<T>::Wide;
  for (int64_t i = 0; i < n; i++) narrow(W(widen(values[i]) / W(by)), values[i]);
}
#define DIVIDER(NAME, T)                                                                       \
  FOR_EACH_PROCESSOR void NAME##_divide(void *values, int64_t n, int64_t by) {                 \
    divide_all<T>(static_cast<T *>(values), n, by);                                            \
  }
DIVIDER(float32, float)
DIVIDER(float64, double)
DIVIDER(float16, Float16)
DIVIDER(bfloat16, Bfloat16)

}  // namespace

#define ROW(NAME) {NAME##_sum, NAME##_product, NAME##_max, NAME##_min}
const Combiner COMBINE_BY[][4] = {ROW(float32), ROW(float64), ROW(float16), ROW(bfloat16), ROW(uint8),
                                  ROW(int8),    ROW(int16),   ROW(int32),   ROW(int64)};
const Divider DIVIDE_BY[] = {float32_divide, float64_divide, float16_divide, bfloat16_divide,
                             nullptr,        nullptr,        nullptr,        nullptr, nullptr};

}  // namespace topoplan
