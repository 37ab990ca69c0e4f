// A model with states, called for one chunk after the other.

#ifndef STREAM_H_
#define STREAM_H_

#include <onnxruntime_cxx_api.h>
#include <rnnqc_ops.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

using States = std::map<std::string, std::string>;  // from the input's name to the output's

// One session serves any number of streams and threads. With `stock` the native library stays out: the same file runs
// in standard operators, with the same bits.
inline Ort::Session OpenModel(Ort::Env& env, const std::string& path, bool stock) {
  Ort::SessionOptions options;
  options.SetIntraOpNumThreads(1);
  if (!stock) Ort::ThrowOnError(RegisterCustomOps(options, OrtGetApiBase()));
  const std::basic_string<ORTCHAR_T> native_path(path.begin(), path.end());
  return Ort::Session(env, native_path.c_str(), options);
}

// Streams that advance together: each is a row of one call, and no row has an influence on another. One thread at a
// time may call it. The states stand in two sets of buffers that take turns: what one call reads, the next one writes.
class Stream {
 public:
  // The model has one input that is not a state. Its first unknown dimension is `steps`, other unknown dimensions are
  // `rows`. States begin as zeros.
  Stream(Ort::Session& session, const States& states, int64_t steps, int64_t rows) : session_(session) {
    for (size_t i = 0; i < session.GetOutputCount(); ++i) {
      const std::string name = session.GetOutputNameAllocated(i, allocator_).get();
      const auto is_name = [&name](const auto& pair) { return pair.second == name; };
      if (result_name_.empty() && std::none_of(states.begin(), states.end(), is_name)) result_name_ = name;
    }
    if (result_name_.empty()) throw std::runtime_error("every output of the model is a state");
    for (size_t i = 0; i < 2; ++i) {
      calls_.emplace_back(session);
      calls_[i].BindOutput(result_name_.c_str(), memory_);
    }
    size_t found = 0;
    for (size_t i = 0; i < session.GetInputCount(); ++i) {
      const std::string name = session.GetInputNameAllocated(i, allocator_).get();
      std::vector<int64_t> shape = session.GetInputTypeInfo(i).GetTensorTypeAndShapeInfo().GetShape();
      const auto state = states.find(name);
      bool steps_are_known = state != states.end();
      for (int64_t& dimension : shape) {
        if (dimension >= 0) continue;
        dimension = steps_are_known ? rows : steps;
        steps_are_known = true;
      }
      if (state != states.end()) {
        BindState(name, state->second, shape);
        ++found;
      } else if (samples_ == nullptr) {
        samples_ = Zeros(shape);
        for (Ort::IoBinding& call : calls_) call.BindInput(name.c_str(), samples_);
      } else {
        throw std::runtime_error("input '" + name + "' is a second one that is no state; say '" + name +
                                 "=<its output>' if it is one");
      }
    }
    if (found != states.size()) throw std::runtime_error("the model has no input of a state's name");
    if (samples_ == nullptr) throw std::runtime_error("every input of the model is a state");
  }

  // Where the next chunk belongs, and how many samples it has.
  float* Chunk() { return samples_.GetTensorMutableData<float>(); }
  size_t Size() const { return samples_.GetTensorTypeAndShapeInfo().GetElementCount(); }

  // Appends the output of the chunk to `results`; the states are those after it.
  void Run(std::vector<float>& results) {
    Ort::IoBinding& call = calls_[turn_];
    session_.Run(Ort::RunOptions{nullptr}, call);
    turn_ = 1 - turn_;
    const Ort::Value result = std::move(call.GetOutputValues()[0]);
    const float* values = result.GetTensorData<float>();
    results.insert(results.end(), values, values + result.GetTensorTypeAndShapeInfo().GetElementCount());
  }

 private:
  void BindState(const std::string& input, const std::string& output, const std::vector<int64_t>& shape) {
    for (size_t i = 0; i < 2; ++i) states_.push_back(Zeros(shape));
    for (size_t i = 0; i < 2; ++i) {
      calls_[i].BindInput(input.c_str(), states_[states_.size() - 2 + i]);
      calls_[i].BindOutput(output.c_str(), states_[states_.size() - 1 - i]);
    }
  }

  Ort::Value Zeros(const std::vector<int64_t>& shape) {
    Ort::Value value = Ort::Value::CreateTensor<float>(allocator_, shape.data(), shape.size());
    float* elements = value.GetTensorMutableData<float>();
    std::fill(elements, elements + value.GetTensorTypeAndShapeInfo().GetElementCount(), 0.0f);
    return value;
  }

  Ort::Session& session_;
  Ort::AllocatorWithDefaultOptions allocator_;
  Ort::MemoryInfo memory_ = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
  std::string result_name_;
  Ort::Value samples_{nullptr};
  std::vector<Ort::Value> states_;
  std::vector<Ort::IoBinding> calls_;
  size_t turn_ = 0;
};

// The time that at most half of the calls took.
inline double Median(std::vector<double> times) {
  std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2), times.end());
  return times[times.size() / 2];
}

#endif  // STREAM_H_
