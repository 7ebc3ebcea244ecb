// Binding of the native module.
#include <nanobind/nanobind.h>

NB_MODULE(_native, m) { m.doc() = "Emberline's native CPU kernels."; }
