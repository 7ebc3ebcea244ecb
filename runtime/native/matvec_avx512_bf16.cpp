// AVX-512 BF16: one instruction multiplies pairs of bf16 and adds them to an fp32 sum.
#include "matvec.h"

#include <immintrin.h>

namespace emberline::avx512_bf16 {
namespace {

constexpr std::size_t kLanes = 32;

inline __m512bh load(const bf16 *from) { return (__m512bh)_mm512_loadu_si512(from); }

// The last num (1 to 32) values, zeros behind them: masked lanes are not read.
inline __m512bh load_tail(const bf16 *from, std::size_t num) {
  return (__m512bh)_mm512_maskz_loadu_epi16(static_cast<__mmask32>((std::uint64_t{1} << num) - 1), from);
}

// Several rows share each load of x; two sums a row hide the latency of the dot product.
template <int kRows> void some_rows(const bf16 *weights, const bf16 *x, float *out, std::size_t k) {
  __m512 even[kRows], odd[kRows];
  for (int row = 0; row < kRows; ++row)
    even[row] = odd[row] = _mm512_setzero_ps();
  std::size_t i = 0;
  for (; i + 2 * kLanes <= k; i += 2 * kLanes) {
    const __m512bh x_even = load(x + i), x_odd = load(x + i + kLanes);
    for (int row = 0; row < kRows; ++row) {
      even[row] = _mm512_dpbf16_ps(even[row], load(weights + row * k + i), x_even);
      odd[row] = _mm512_dpbf16_ps(odd[row], load(weights + row * k + i + kLanes), x_odd);
    }
  }
  for (; i < k; i += kLanes) {
    const std::size_t num = k - i < kLanes ? k - i : kLanes;
    const __m512bh x_tail = load_tail(x + i, num);
    for (int row = 0; row < kRows; ++row)
      even[row] = _mm512_dpbf16_ps(even[row], load_tail(weights + row * k + i, num), x_tail);
  }
  for (int row = 0; row < kRows; ++row)
    out[row] = _mm512_reduce_add_ps(_mm512_add_ps(even[row], odd[row]));
}

} // namespace

void matvec(const bf16 *weights, const bf16 *x, float *out, std::size_t n, std::size_t k) {
  std::size_t row = 0;
  for (; row + 4 <= n; row += 4)
    some_rows<4>(weights + row * k, x, out + row, k);
  for (; row < n; ++row)
    some_rows<1>(weights + row * k, x, out + row, k);
}

} // namespace emberline::avx512_bf16
