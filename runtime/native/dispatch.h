// Which kernel family this process uses: chosen once, when the module is loaded, and never changed after that.
#pragma once

#include "matvec.h"

#include <string>
#include <string_view>
#include <vector>

namespace emberline {

struct Family {
  std::string_view name;
  MatvecBf16 matvec_bf16;
  MatvecFp32 matvec_fp32;
};

// The families that this processor can run, best first; "plain" is always the last.
std::vector<Family> supported_families();

// The best one, or the one that `forced` names ("" names none). Throws std::invalid_argument for a name that is unknown or that
// this processor lacks.
Family choose_family(std::string_view forced);

} // namespace emberline
