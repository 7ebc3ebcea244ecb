// AVX-512 F and BW: bf16 is widened to fp32 by a shift.
#include "matvec.h"

#include <immintrin.h>

namespace emberline::avx512 {
namespace {

constexpr std::size_t kLanes = 16;

inline __m512 widen(__m256i narrow) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(narrow), 16));
}
inline __m512 load(const bf16 *from) { return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(from))); }
inline __m512 load(const float *from) { return _mm512_loadu_ps(from); }

// The last num (1 to 16) values, zeros behind them: masked lanes are not read.
inline __m512 load_tail(const bf16 *from, std::size_t num) {
  return widen(_mm512_castsi512_si256(_mm512_maskz_loadu_epi16(static_cast<__mmask32>((1u << num) - 1), from)));
}
inline __m512 load_tail(const float *from, std::size_t num) {
  return _mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << num) - 1), from);
}

// Several rows share each load of x; two sums a row hide the latency of the multiply-add.
template <int kRows, typename X>
void some_rows(const bf16 *weights, const X *x, float *out, std::size_t k) {
  __m512 even[kRows], odd[kRows];
  for (int row = 0; row < kRows; ++row)
    even[row] = odd[row] = _mm512_setzero_ps();
  std::size_t i = 0;
  for (; i + 2 * kLanes <= k; i += 2 * kLanes) {
    const __m512 x_even = load(x + i), x_odd = load(x + i + kLanes);
    for (int row = 0; row < kRows; ++row) {
      even[row] = _mm512_fmadd_ps(load(weights + row * k + i), x_even, even[row]);
      odd[row] = _mm512_fmadd_ps(load(weights + row * k + i + kLanes), x_odd, odd[row]);
    }
  }
  for (; i < k; i += kLanes) {
    const std::size_t num = k - i < kLanes ? k - i : kLanes;
    const __m512 x_tail = load_tail(x + i, num);
    for (int row = 0; row < kRows; ++row)
      even[row] = _mm512_fmadd_ps(load_tail(weights + row * k + i, num), x_tail, even[row]);
  }
  for (int row = 0; row < kRows; ++row)
    out[row] = _mm512_reduce_add_ps(_mm512_add_ps(even[row], odd[row]));
}

template <typename X> void all_rows(const bf16 *weights, const X *x, float *out, std::size_t n, std::size_t k) {
  std::size_t row = 0;
  for (; row + 4 <= n; row += 4)
    some_rows<4>(weights + row * k, x, out + row, k);
  for (; row < n; ++row)
    some_rows<1>(weights + row * k, x, out + row, k);
}

} // namespace

void matvec(const bf16 *weights, const bf16 *x, float *out, std::size_t n, std::size_t k) {
  all_rows(weights, x, out, n, k);
}
void matvec(const bf16 *weights, const float *x, float *out, std::size_t n, std::size_t k) {
  all_rows(weights, x, out, n, k);
}

} // namespace emberline::avx512
