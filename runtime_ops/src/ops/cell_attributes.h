#ifndef RNNQC_OPS_CELL_ATTRIBUTES_H_
#define RNNQC_OPS_CELL_ATTRIBUTES_H_

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "cells/driver/cell_config.h"
#include "cells/gru_rnn/config.h"
#include "cells/lstm/config.h"
#include "ort_support.h"

namespace rnnqc {

// Reading attributes. Everything here throws std::invalid_argument, naming the attribute, for what is missing, of
// another type, or has a value the operators do not allow or this library does not know.

// Enumeration values by name.
template <typename Value>
using Choices = std::vector<std::pair<const char*, Value>>;

template <typename Value>
Value Choose(const std::string& attribute, const std::string& text, const Choices<Value>& choices) {
  std::string known;
  for (const auto& choice : choices) {
    if (text == choice.first) return choice.second;
    known += (known.empty() ? "" : ", ") + std::string(choice.first);
  }
  throw std::invalid_argument("attribute " + attribute + " is \"" + text + "\"; this version of the library knows " +
                              known + ". Use a newer rnnqc library.");
}

template <typename Value>
void ReadChoice(const ort::KernelInfo& info, const char* name, const Choices<Value>& choices, Value* value) {
  std::string text;
  if (info.Read(name, &text)) *value = Choose(name, text, choices);
}

const Choices<Kind>& Kinds();
void ReadInputMode(const ort::KernelInfo& info, CodeMode* mode);
bool ReadFlag(const ort::KernelInfo& info, const char* name);
[[noreturn]] void FailMissing(const char* name);
void CheckCount(const char* name, size_t found, size_t expected, const std::string& words);
std::vector<std::string> SplitAtCommas(const std::string& text);

// One element for each gate; `gate_names`, as "z, r, h", are for messages.
template <typename Element>
std::vector<Element> ReadPerGate(const ort::KernelInfo& info, const char* name, int64_t gates, const char* gate_names,
                                 bool required, Element otherwise = Element()) {
  std::vector<Element> values(static_cast<size_t>(gates), otherwise);
  const bool found = info.Read(name, &values);
  if (!found && required) FailMissing(name);
  if (found) CheckCount(name, values.size(), static_cast<size_t>(gates), "gates " + std::string(gate_names));
  return values;
}

// Sizes, direction, axes, x_mode: what every arithmetic has.
void ReadCell(const ort::KernelInfo& info, CellConfig* config);
// Quantized values and gates of arithmetic "tables".
void ReadCodes(const ort::KernelInfo& info, CellConfig* config);
void ReadGates(const ort::KernelInfo& info, const char* gate_names, CellConfig* config);
// The attributes of arithmetic "grid" that all operators have, for a cell of so many quantizers, and what follows from
// them.
void ReadGrid(const ort::KernelInfo& info, int64_t points, const char* gate_names, CellConfig* config);

// The attributes of a node of each operator.
LstmConfig ReadLstmConfig(const ort::KernelInfo& info);
GruConfig ReadGruConfig(const ort::KernelInfo& info);
RnnConfig ReadRnnConfig(const ort::KernelInfo& info);

}  // namespace rnnqc

#endif  // RNNQC_OPS_CELL_ATTRIBUTES_H_
