#ifndef RNNQC_CELLS_DRIVER_CONFIG_ERRORS_H_
#define RNNQC_CELLS_DRIVER_CONFIG_ERRORS_H_

#include <sstream>
#include <stdexcept>
#include <string>

namespace rnnqc {

// Throws std::invalid_argument with the value of an attribute and the expected one.
template <typename Value>
[[noreturn]] void FailAttribute(const std::string& attribute, const Value& found, const std::string& expected) {
  std::ostringstream text;
  text.precision(9);
  text << "attribute " << attribute << " is " << found << ", expected " << expected;
  throw std::invalid_argument(text.str());
}

}  // namespace rnnqc

#endif  // RNNQC_CELLS_DRIVER_CONFIG_ERRORS_H_
