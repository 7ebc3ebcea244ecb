// What Python sees of the native code: checks of the buffers, and the release of the interpreter's lock.
#include "dispatch.h"
#include "stream.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdlib>

namespace nb = nanobind;

namespace {

using Input = nb::ndarray<nb::ro>;
using Output = nb::ndarray<>;

template <typename Array> std::string shape_of(const Array &array) {
  std::string text = "[";
  for (std::size_t i = 0; i < array.ndim(); ++i)
    text += (i ? ", " : "") + std::to_string(array.shape(i));
  return text + "]";
}

template <typename Array> void demand(const char *name, const Array &array, std::size_t num_dimensions) {
  if (array.device_type() != nb::device::cpu::value)
    throw nb::value_error((std::string(name) + " is not in the memory of the CPU; move it there").c_str());
  if (array.ndim() != num_dimensions)
    throw nb::value_error((std::string(name) + " has shape " + shape_of(array) + ", it must have " +
                           std::to_string(num_dimensions) + (num_dimensions == 1 ? " dimension" : " dimensions"))
                              .c_str());
  std::int64_t stride = 1;
  for (std::size_t i = array.size() ? num_dimensions : 0; i-- > 0; stride *= static_cast<std::int64_t>(array.shape(i)))
    if (array.shape(i) > 1 && array.stride(i) != stride)
      throw nb::value_error((std::string(name) + " is not contiguous; make a contiguous copy first").c_str());
}

// bf16 by DLPack, or its bits as 16-bit unsigned numbers: Python's buffers have no bf16.
bool is_bf16(nb::dlpack::dtype type) {
  return type.bits == 16 && type.lanes == 1 &&
         (type.code == static_cast<std::uint8_t>(nb::dlpack::dtype_code::Bfloat) ||
          type.code == static_cast<std::uint8_t>(nb::dlpack::dtype_code::UInt));
}
bool is_fp32(nb::dlpack::dtype type) { return type == nb::dtype<float>(); }

bool overlap(const void *a, std::size_t a_bytes, const void *b, std::size_t b_bytes) {
  const auto first = reinterpret_cast<std::uintptr_t>(a), second = reinterpret_cast<std::uintptr_t>(b);
  return first < second + b_bytes && second < first + a_bytes;
}

void matvec(const emberline::Family &family, const Input &weights, const Input &x, const Output &out) {
  demand("weights", weights, 2);
  demand("x", x, 1);
  demand("out", out, 1);
  if (!is_bf16(weights.dtype()))
    throw nb::type_error("weights must be bf16, or uint16 with the bits of bf16");
  if (!is_bf16(x.dtype()) && !is_fp32(x.dtype()))
    throw nb::type_error("x must be float32 or bf16, or uint16 with the bits of bf16");
  if (!is_fp32(out.dtype()))
    throw nb::type_error("out must be float32");
  const std::size_t n = weights.shape(0), k = weights.shape(1);
  if (x.shape(0) != k)
    throw nb::value_error(
        ("x has " + std::to_string(x.shape(0)) + " values, the rows of weights have " + std::to_string(k)).c_str());
  if (out.shape(0) != n)
    throw nb::value_error(
        ("out has " + std::to_string(out.shape(0)) + " values, weights has " + std::to_string(n) + " rows").c_str());
  if (overlap(out.data(), out.nbytes(), weights.data(), weights.nbytes()) ||
      overlap(out.data(), out.nbytes(), x.data(), x.nbytes()))
    throw nb::value_error("out shares memory with an input; give it memory of its own");

  const auto *rows = static_cast<const emberline::bf16 *>(weights.data());
  auto *sums = static_cast<float *>(out.data());
  const bool wide = is_fp32(x.dtype());
  const nb::gil_scoped_release other_threads_run;
  if (wide)
    family.matvec_fp32(rows, static_cast<const float *>(x.data()), sums, n, k);
  else
    family.matvec_bf16(rows, static_cast<const emberline::bf16 *>(x.data()), sums, n, k);
}

std::uint64_t read_stream(const Input &array) {
  demand("array", array, 1);
  const nb::gil_scoped_release other_threads_run;
  return emberline::read_stream(array.data(), array.nbytes());
}

} // namespace

NB_MODULE(_native, m) {
  m.doc() = "Emberline's native CPU kernels.";
  const char *forced = std::getenv("EMBERLINE_NATIVE_ISA");
  const emberline::Family family = emberline::choose_family(forced ? forced : "");

  m.attr("ISA") = std::string(family.name);
  nb::list names;
  for (const emberline::Family &each : emberline::supported_families())
    names.append(std::string(each.name));
  m.attr("SUPPORTED_ISAS") = nb::tuple(names);
  m.def(
      "matvec", [family](const Input &weights, const Input &x, const Output &out) { matvec(family, weights, x, out); },
      nb::arg("weights").noconvert(), nb::arg("x").noconvert(), nb::arg("out").noconvert(),
      "out[n] = weights[n, k] * x[k], all contiguous and in the memory of the CPU: weights bf16 (or uint16 with its bits), x the "
      "same or float32, out float32.\n\nOther threads run meanwhile; nobody may write to the arrays until it returns.");
  m.def("read_stream", &read_stream, nb::arg("array").noconvert(),
        "The sum of a one-dimensional array's 8-byte words, modulo 2**64: reads every byte once, to measure memory by.");
}
