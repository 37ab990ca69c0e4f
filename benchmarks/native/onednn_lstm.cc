// One LSTM layer in oneDNN, for peers.py.
//
//   onednn_lstm f32|u8 THREADS FOLDER      then lines on stdin, as turns.py says:
//   prepare TxBxIxH      reads x, w, r, h0, c0 from FOLDER (see write_layer in peer_ways.py), writes y.f32
//   burst SECONDS
//
// u8: activations uint8 with one scale and zero point, weights int8 per output channel, gates and c float. Its inputs
// and outputs are uint8: to convert them is not measured.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <dnnl.hpp>
#include <string>
#include <unordered_map>
#include <vector>
#if defined(_OPENMP)
#include <omp.h>
#endif

#include "bursts.h"

namespace {

using dnnl::memory;
using Dims = memory::dims;
using Tag = memory::format_tag;
using Type = memory::data_type;

constexpr float kActivationScale = 32.0F;  // x in [-4, 4)
constexpr float kActivationShift = 128.0F;

class Lstm {
 public:
  Lstm(bool quantized, std::string folder)
      : quantized_(quantized), folder_(std::move(folder)), engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) {}

  static std::string Version() {
    const dnnl_version_t* version = dnnl_version();
    return "onednn " + std::to_string(version->major) + "." + std::to_string(version->minor) + "." +
           std::to_string(version->patch);
  }

  std::string Prepare(const bursts::Shape& shape) {
    const auto [t, b, i, h] = shape;
    const Type activations = quantized_ ? Type::u8 : Type::f32;
    const Type weights = quantized_ ? Type::s8 : Type::f32;
    const auto any = [](const Dims& dims, Type type) { return memory::desc(dims, type, Tag::any); };
    const Dims x{t, b, i}, y{t, b, h}, state{1, 1, b, h}, w{1, 1, i, 4, h}, r{1, 1, h, 4, h}, bias{1, 1, 4, h};

    dnnl::primitive_attr attributes;
    if (quantized_) {
      std::vector<float> scales(static_cast<size_t>(4 * h));
      const std::vector<float> values[] = {Read("w", i * 4 * h), Read("r", h * 4 * h)};
      for (size_t column = 0; column < scales.size(); ++column) {
        float largest = 0;
        for (const std::vector<float>& matrix : values) {
          for (size_t at = column; at < matrix.size(); at += scales.size()) {
            largest = std::max(largest, std::abs(matrix[at]));
          }
        }
        scales[column] = 127.0F / largest;
      }
      attributes.set_rnn_data_qparams(kActivationScale, kActivationShift);
      attributes.set_rnn_weights_qparams((1 << 3) + (1 << 4), scales);
    }
    const dnnl::lstm_forward::primitive_desc desc(
        engine_, dnnl::prop_kind::forward_inference, dnnl::rnn_direction::unidirectional_left2right,
        memory::desc(x, activations, Tag::tnc), memory::desc(state, activations, Tag::ldnc),
        memory::desc(state, Type::f32, Tag::ldnc), any(w, weights), any(r, weights),
        memory::desc(bias, Type::f32, Tag::ldgo), memory::desc(y, activations, Tag::tnc),
        memory::desc(state, activations, Tag::ldnc), memory::desc(state, Type::f32, Tag::ldnc), attributes);
    arguments_ = {
        {DNNL_ARG_SRC_LAYER, Filled(desc.src_layer_desc(), "X", x, Tag::tnc, attributes)},
        {DNNL_ARG_SRC_ITER, Filled(desc.src_iter_desc(), "h0", state, Tag::ldnc, attributes)},
        {DNNL_ARG_SRC_ITER_C, Filled(desc.src_iter_c_desc(), "c0", state, Tag::ldnc, attributes)},
        {DNNL_ARG_WEIGHTS_LAYER, Filled(desc.weights_layer_desc(), "w", w, Tag::ldigo, attributes)},
        {DNNL_ARG_WEIGHTS_ITER, Filled(desc.weights_iter_desc(), "r", r, Tag::ldigo, attributes)},
        {DNNL_ARG_BIAS, Filled(desc.bias_desc(), "", bias, Tag::ldgo, attributes)},
        {DNNL_ARG_DST_LAYER, memory(desc.dst_layer_desc(), engine_)},
        {DNNL_ARG_DST_ITER, memory(desc.dst_iter_desc(), engine_)},
        {DNNL_ARG_DST_ITER_C, memory(desc.dst_iter_c_desc(), engine_)},
    };
    if (desc.workspace_desc().get_size() != 0) arguments_[DNNL_ARG_WORKSPACE] = memory(desc.workspace_desc(), engine_);
    primitive_ = dnnl::lstm_forward(desc);
    Run();
    Write(t * b * h);
    return desc.impl_info_str();
  }

  void Run() {
    primitive_.execute(stream_, arguments_);
    stream_.wait();
  }

 private:
  std::vector<float> Read(const std::string& name, int64_t count) const {
    return bursts::ReadFile(folder_ + "/" + name + ".f32", count);
  }

  // The contents of the file, in the type and layout of `desc`.
  memory Filled(const memory::desc& desc, const std::string& name, const Dims& dims, Tag tag,
                const dnnl::primitive_attr& attributes) {
    int64_t count = 1;
    for (const int64_t dim : dims) count *= dim;
    std::vector<float> values = name.empty() ? std::vector<float>(static_cast<size_t>(count)) : Read(name, count);
    memory plain({dims, Type::f32, tag}, engine_, values.data());
    memory result(desc, engine_);
    if (desc.get_data_type() == Type::u8) {
      auto* codes = static_cast<uint8_t*>(result.get_data_handle());
      for (size_t at = 0; at < values.size(); ++at) {
        codes[at] = static_cast<uint8_t>(
            std::clamp(std::nearbyint(values[at] * kActivationScale + kActivationShift), 0.0F, 255.0F));
      }
      return result;
    }
    const bool codes = desc.get_data_type() == Type::s8;
    const dnnl::reorder::primitive_desc reorder(engine_, plain.get_desc(), engine_, desc,
                                                codes ? attributes : dnnl::primitive_attr());
    dnnl::reorder(reorder).execute(stream_, plain, result);
    stream_.wait();
    return result;
  }

  void Write(int64_t count) const {
    std::vector<float> values(static_cast<size_t>(count));
    const void* data = arguments_.at(DNNL_ARG_DST_LAYER).get_data_handle();
    for (size_t at = 0; at < values.size(); ++at) {
      values[at] =
          quantized_ ? (static_cast<float>(static_cast<const uint8_t*>(data)[at]) - kActivationShift) / kActivationScale
                     : static_cast<const float*>(data)[at];
    }
    bursts::WriteFile(folder_ + "/y.f32", values);
  }

  const bool quantized_;
  const std::string folder_;
  dnnl::engine engine_;
  dnnl::stream stream_;
  dnnl::lstm_forward primitive_;
  std::unordered_map<int, memory> arguments_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return 2;
#if defined(_OPENMP)
  omp_set_num_threads(std::atoi(argv[2]));
#endif
  return bursts::Serve([&] { return Lstm(std::string(argv[1]) == "u8", argv[3]); });
}
