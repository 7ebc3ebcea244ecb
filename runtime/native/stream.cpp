#include "stream.h"

#include <cstring>

// Chosen by the loader, which only glibc's can.
#if defined(EMBERLINE_X86) && defined(__GLIBC__)
#define WIDEST_LOADS __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define WIDEST_LOADS
#endif

namespace emberline {

WIDEST_LOADS std::uint64_t read_stream(const void *from, std::size_t num_bytes) {
  // Enough independent sums that adding is never what is waited for.
  constexpr std::size_t kSums = 32;
  std::uint64_t sums[kSums] = {};
  const auto *bytes = static_cast<const unsigned char *>(from);
  const std::size_t num_words = num_bytes / sizeof(std::uint64_t);
  std::size_t i = 0;
  for (; i + kSums <= num_words; i += kSums) {
    std::uint64_t words[kSums];
    std::memcpy(words, bytes + i * sizeof(std::uint64_t), sizeof words);
    for (std::size_t lane = 0; lane < kSums; ++lane)
      sums[lane] += words[lane];
  }
  std::uint64_t sum = 0;
  for (; i < num_words; ++i) {
    std::uint64_t word;
    std::memcpy(&word, bytes + i * sizeof word, sizeof word);
    sum += word;
  }
  for (const std::uint64_t part : sums)
    sum += part;
  return sum;
}

} // namespace emberline
