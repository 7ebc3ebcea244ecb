// How fast memory can be read, to measure kernels against: reads every byte once and does next to nothing with it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace emberline {

// The sum of the 8-byte words, so that no read can be left out; num_bytes is rounded down to a multiple of 8.
std::uint64_t read_stream(const void *from, std::size_t num_bytes);

} // namespace emberline
