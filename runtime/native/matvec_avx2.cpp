// AVX2 and FMA: bf16 is widened to fp32 by a shift.
#include "matvec.h"

#include <immintrin.h>

namespace emberline::avx2 {
namespace {

constexpr std::size_t kLanes = 8;

inline __m256 load(const bf16 *from) {
  const __m128i narrow = _mm_loadu_si128(reinterpret_cast<const __m128i *>(from));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(narrow), 16));
}
inline __m256 load(const float *from) { return _mm256_loadu_ps(from); }

// The last num values, zeros behind them: nothing past the end of a row is read.
template <typename X> inline __m256 load_tail(const X *from, std::size_t num) {
  X padded[kLanes] = {};
  for (std::size_t i = 0; i < num; ++i)
    padded[i] = from[i];
  return load(padded);
}

inline float sum_of_lanes(__m256 lanes) {
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(lanes), _mm256_extractf128_ps(lanes, 1));
  four = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}

// Several rows share each load of x; two sums a row hide the latency of the multiply-add.
template <int kRows, typename X>
void some_rows(const bf16 *weights, const X *x, float *out, std::size_t k) {
  __m256 even[kRows], odd[kRows];
  for (int row = 0; row < kRows; ++row)
    even[row] = odd[row] = _mm256_setzero_ps();
  std::size_t i = 0;
  for (; i + 2 * kLanes <= k; i += 2 * kLanes) {
    const __m256 x_even = load(x + i), x_odd = load(x + i + kLanes);
    for (int row = 0; row < kRows; ++row) {
      even[row] = _mm256_fmadd_ps(load(weights + row * k + i), x_even, even[row]);
      odd[row] = _mm256_fmadd_ps(load(weights + row * k + i + kLanes), x_odd, odd[row]);
    }
  }
  for (; i < k; i += kLanes) {
    const std::size_t num = k - i < kLanes ? k - i : kLanes;
    const __m256 x_tail = load_tail(x + i, num);
    for (int row = 0; row < kRows; ++row)
      even[row] = _mm256_fmadd_ps(load_tail(weights + row * k + i, num), x_tail, even[row]);
  }
  for (int row = 0; row < kRows; ++row)
    out[row] = sum_of_lanes(_mm256_add_ps(even[row], odd[row]));
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

} // namespace emberline::avx2
