// Plain C++ for any processor; the one that the others can be read against.
#include "matvec.h"

#include <cstring>

namespace emberline::plain {
namespace {

inline float widen(float value) { return value; }
inline float widen(bf16 value) {
  const std::uint32_t bits = static_cast<std::uint32_t>(value) << 16;
  float wide;
  std::memcpy(&wide, &bits, sizeof wide);
  return wide;
}

// Independent partial sums, which the compiler can keep in vector registers of whatever width it has.
constexpr std::size_t kLanes = 16;

template <typename X> float dot(const bf16 *row, const X *x, std::size_t k) {
  float sums[kLanes] = {};
  std::size_t i = 0;
  for (; i + kLanes <= k; i += kLanes)
    for (std::size_t lane = 0; lane < kLanes; ++lane)
      sums[lane] += widen(row[i + lane]) * widen(x[i + lane]);
  for (std::size_t lane = 0; i < k; ++i, ++lane)
    sums[lane] += widen(row[i]) * widen(x[i]);
  float sum = 0;
  for (const float part : sums)
    sum += part;
  return sum;
}

template <typename X> void all_rows(const bf16 *weights, const X *x, float *out, std::size_t n, std::size_t k) {
  for (std::size_t row = 0; row < n; ++row)
    out[row] = dot(weights + row * k, x, k);
}

} // namespace

void matvec(const bf16 *weights, const bf16 *x, float *out, std::size_t n, std::size_t k) {
  all_rows(weights, x, out, n, k);
}
void matvec(const bf16 *weights, const float *x, float *out, std::size_t n, std::size_t k) {
  all_rows(weights, x, out, n, k);
}

} // namespace emberline::plain
