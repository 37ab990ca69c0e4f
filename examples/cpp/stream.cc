// Streams float32 samples through a model, chunk by chunk, and feeds its states back:
//
//   stream MODEL.onnx STEPS [--stock] [STATE_INPUT=STATE_OUTPUT ...] < inputs.f32 > outputs.f32
//
// The model has one input that is not a state. Its first unknown dimension is STEPS, other unknown dimensions are 1; a
// chunk is as many samples as that shape has. States begin as zeros. The first output that is not a state is written.
// Standard error gets the time of a chunk. With --stock the native library stays out: the same file runs in standard
// operators, with the same bits.

#include <onnxruntime_cxx_api.h>
#include <rnnqc_ops.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#ifdef _WIN32
#include <fcntl.h>
#include <io.h>
#endif

namespace {

struct Arguments {
  std::string model;
  int64_t steps = 0;
  bool stock = false;
  std::map<std::string, std::string> states;  // from the input's name to the output's
};

Arguments Read(int argc, char** argv) {
  Arguments read;
  if (argc < 3) throw std::runtime_error("usage: stream MODEL.onnx STEPS [--stock] [STATE_INPUT=STATE_OUTPUT ...]");
  read.model = argv[1];
  read.steps = std::atoll(argv[2]);
  if (read.steps < 1) throw std::runtime_error("STEPS is " + std::string(argv[2]) + "; it must be 1 or more");
  for (int i = 3; i < argc; ++i) {
    const std::string text = argv[i];
    const size_t equals = text.find('=');
    if (text == "--stock") {
      read.stock = true;
    } else if (equals != std::string::npos) {
      read.states[text.substr(0, equals)] = text.substr(equals + 1);
    } else {
      throw std::runtime_error("argument '" + text + "' is neither --stock nor STATE_INPUT=STATE_OUTPUT");
    }
  }
  return read;
}

std::basic_string<ORTCHAR_T> PathOf(const std::string& name) { return {name.begin(), name.end()}; }

class Stream {
 public:
  Stream(Ort::Env& env, const Arguments& arguments) : session_(nullptr) {
    Ort::SessionOptions options;
    options.SetIntraOpNumThreads(1);
    if (!arguments.stock) Ort::ThrowOnError(RegisterCustomOps(options, OrtGetApiBase()));
    session_ = Ort::Session(env, PathOf(arguments.model).c_str(), options);
    NameOutputs();
    for (size_t i = 0; i < session_.GetInputCount(); ++i) {
      const std::string name = session_.GetInputNameAllocated(i, allocator_).get();
      std::vector<int64_t> shape = session_.GetInputTypeInfo(i).GetTensorTypeAndShapeInfo().GetShape();
      const auto state = arguments.states.find(name);
      bool steps_are_known = state != arguments.states.end();
      for (int64_t& dimension : shape) {
        if (dimension >= 0) continue;
        dimension = steps_are_known ? 1 : arguments.steps;
        steps_are_known = true;
      }
      if (state != arguments.states.end()) {
        AddState(name, state->second, shape);
      } else if (samples_name_.empty()) {
        samples_name_ = name;
        samples_shape_ = shape;
      } else {
        throw std::runtime_error("inputs '" + samples_name_ + "' and '" + name + "' are no states; say '" + name +
                                 "=<its output>' if one is");
      }
    }
    if (states_.size() != arguments.states.size()) throw std::runtime_error("the model has no input of a state's name");
    if (samples_name_.empty()) throw std::runtime_error("every input of the model is a state");
    result_ = 0;
    while (is_state_[result_]) {
      if (++result_ == is_state_.size()) throw std::runtime_error("every output of the model is a state");
    }
  }

  // Samples of a chunk.
  size_t Size() const {
    size_t size = 1;
    for (int64_t dimension : samples_shape_) size *= static_cast<size_t>(dimension);
    return size;
  }

  // The output of a chunk; the states are those after it.
  std::vector<float> Run(std::vector<float>& chunk) {
    std::vector<const char*> names{samples_name_.c_str()};
    std::vector<Ort::Value> inputs;
    inputs.push_back(Ort::Value::CreateTensor<float>(memory_, chunk.data(), chunk.size(), samples_shape_.data(),
                                                     samples_shape_.size()));
    for (State& state : states_) {
      names.push_back(state.name.c_str());
      inputs.push_back(std::move(state.value));
    }
    std::vector<const char*> output_names;
    for (const std::string& name : outputs_) output_names.push_back(name.c_str());
    std::vector<Ort::Value> outputs = session_.Run(Ort::RunOptions{nullptr}, names.data(), inputs.data(), inputs.size(),
                                                   output_names.data(), output_names.size());
    const Ort::Value& result = outputs[result_];
    const float* values = result.GetTensorData<float>();
    std::vector<float> copy(values, values + result.GetTensorTypeAndShapeInfo().GetElementCount());
    for (State& state : states_) state.value = std::move(outputs[state.output]);
    return copy;
  }

 private:
  struct State {
    std::string name;
    size_t output;
    Ort::Value value;
  };

  void NameOutputs() {
    for (size_t i = 0; i < session_.GetOutputCount(); ++i) {
      outputs_.emplace_back(session_.GetOutputNameAllocated(i, allocator_).get());
    }
    is_state_.resize(outputs_.size());
  }

  void AddState(const std::string& name, const std::string& output, const std::vector<int64_t>& shape) {
    const auto found = std::find(outputs_.begin(), outputs_.end(), output);
    if (found == outputs_.end()) throw std::runtime_error("the model has no output '" + output + "'");
    const size_t index = static_cast<size_t>(found - outputs_.begin());
    is_state_[index] = true;
    Ort::Value value = Ort::Value::CreateTensor<float>(allocator_, shape.data(), shape.size());
    float* elements = value.GetTensorMutableData<float>();
    std::fill(elements, elements + value.GetTensorTypeAndShapeInfo().GetElementCount(), 0.0f);
    states_.push_back({name, index, std::move(value)});
  }

  Ort::AllocatorWithDefaultOptions allocator_;
  Ort::MemoryInfo memory_ = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
  Ort::Session session_;
  std::vector<std::string> outputs_;
  std::vector<bool> is_state_;
  size_t result_ = 0;
  std::vector<State> states_;
  std::string samples_name_;
  std::vector<int64_t> samples_shape_;
};

void Main(const Arguments& arguments) {
  Ort::Env env(ORT_LOGGING_LEVEL_WARNING, "stream");
  Stream stream(env, arguments);
  std::vector<float> chunk(stream.Size());
  std::vector<double> microseconds;
  while (std::fread(chunk.data(), sizeof(float), chunk.size(), stdin) == chunk.size()) {
    const auto start = std::chrono::steady_clock::now();
    const std::vector<float> result = stream.Run(chunk);
    microseconds.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count());
    if (std::fwrite(result.data(), sizeof(float), result.size(), stdout) != result.size()) {
      throw std::runtime_error("standard output cannot be written");
    }
  }
  if (microseconds.empty()) throw std::runtime_error("standard input has less than one chunk");
  std::nth_element(microseconds.begin(), microseconds.begin() + microseconds.size() / 2, microseconds.end());
  const char* isa = arguments.stock ? "none" : rnnqc_isa(nullptr, 0);
  std::fprintf(stderr, "%zu chunks, median %.1f us, native kernels: %s\n", microseconds.size(),
               microseconds[microseconds.size() / 2], isa);
}

}  // namespace

int main(int argc, char** argv) {
#ifdef _WIN32
  _setmode(_fileno(stdin), _O_BINARY);
  _setmode(_fileno(stdout), _O_BINARY);
#endif
  try {
    Main(Read(argc, argv));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "stream: %s\n", error.what());
    return 1;
  }
}
