#include "dispatch.h"

#include <stdexcept>

namespace emberline {

std::vector<Family> supported_families() {
  std::vector<Family> families;
#ifdef EMBERLINE_X86
  __builtin_cpu_init();
  const bool has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw");
  if (has_avx512 && __builtin_cpu_supports("avx512bf16"))
    families.push_back({"avx512_bf16", avx512_bf16::matvec, avx512::matvec});
  if (has_avx512)
    families.push_back({"avx512", avx512::matvec, avx512::matvec});
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    families.push_back({"avx2", avx2::matvec, avx2::matvec});
#endif
  families.push_back({"plain", plain::matvec, plain::matvec});
  return families;
}

Family choose_family(std::string_view forced) {
  const std::vector<Family> families = supported_families();
  if (forced.empty())
    return families.front();
  std::string names;
  for (const Family &family : families) {
    if (family.name == forced)
      return family;
    names += (names.empty() ? "" : ", ") + std::string(family.name);
  }
  throw std::invalid_argument("EMBERLINE_NATIVE_ISA is '" + std::string(forced) + "', and this processor can run " + names +
                              "; set it to one of these or leave it unset");
}

} // namespace emberline
