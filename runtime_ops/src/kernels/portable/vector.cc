#include "kernels/common/vector.h"

#include <cstdint>
#include <cstring>

#include "kernels/kernel_table.h"

namespace rnnqc {
namespace {

#include "kernels/common/vector.inc"

}  // namespace

void vector__portable(const VectorArgs& args) { Run(args); }

}  // namespace rnnqc
