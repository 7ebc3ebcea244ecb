// The matrix-vector product of a decoder step with one row: out = weights * x.
//
// Weights are bf16 [n, k] in row-major order, x is bf16 or fp32 [k], out is fp32 [n]; sums are fp32. In every family the sum of
// a row is formed in an order that depends on k alone, so a row's result does not change with the rows around it.
// Files of one family are compiled with flags of their own: they include nothing that could leave instructions of that
// family in code shared with others (no standard containers, no inline functions of the library).
#pragma once

#include <cstddef>
#include <cstdint>

namespace emberline {

using bf16 = std::uint16_t;

using MatvecBf16 = void (*)(const bf16 *weights, const bf16 *x, float *out, std::size_t n, std::size_t k);
using MatvecFp32 = void (*)(const bf16 *weights, const float *x, float *out, std::size_t n, std::size_t k);

namespace plain {
void matvec(const bf16 *weights, const bf16 *x, float *out, std::size_t n, std::size_t k);
void matvec(const bf16 *weights, const float *x, float *out, std::size_t n, std::size_t k);
} // namespace plain

#ifdef EMBERLINE_X86
namespace avx2 { // AVX2 and FMA
void matvec(const bf16 *weights, const bf16 *x, float *out, std::size_t n, std::size_t k);
void matvec(const bf16 *weights, const float *x, float *out, std::size_t n, std::size_t k);
} // namespace avx2

namespace avx512 { // AVX-512 F and BW
void matvec(const bf16 *weights, const bf16 *x, float *out, std::size_t n, std::size_t k);
void matvec(const bf16 *weights, const float *x, float *out, std::size_t n, std::size_t k);
} // namespace avx512

namespace avx512_bf16 { // the dot product of bf16 pairs, which treats subnormal numbers as zero; fp32 x is avx512's
void matvec(const bf16 *weights, const bf16 *x, float *out, std::size_t n, std::size_t k);
} // namespace avx512_bf16
#endif

} // namespace emberline
