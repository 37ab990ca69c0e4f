// A model of one LSTM layer in onnxruntime through its C API, for peer_ways.py: no Python around a run.
//
//   ort_lstm THREADS FOLDER LIBONNXRUNTIME [LIBRARY]      then lines on stdin, as turns.py says:
//   prepare TxBxIxH      reads model.onnx, X, h0, c0 from FOLDER, writes y.f32
//   burst SECONDS

#include <dlfcn.h>

#include <cstdlib>

#include "bursts.h"
#include "ort_session_abi.h"

namespace {

using namespace rnnqc::ort;

class Session {
 public:
  Session(int threads, std::string folder, const char* runtime, const char* library) : folder_(std::move(folder)) {
    void* handle = dlopen(runtime, RTLD_NOW | RTLD_GLOBAL);
    auto* base =
        handle == nullptr ? nullptr : reinterpret_cast<const OrtApiBase* (*)()>(dlsym(handle, "OrtGetApiBase"));
    if (base == nullptr) throw std::runtime_error(std::string("onnxruntime's library (") + dlerror() + ")");
    version_ = base()->GetVersionString();
    api_.api = base()->GetApi(kApiVersion);
    OrtEnv* env = nullptr;
    Check(api_.CreateEnv()(kLogFatal, "rnnqc", &env));
    env_ = env;
    Check(api_.CreateSessionOptions()(&options_));
    Check(api_.SetIntraOpNumThreads()(options_, threads));
    Check(api_.SetInterOpNumThreads()(options_, 1));
    const char* spinning = threads == 1 ? "0" : "1";
    Check(api_.AddSessionConfigEntry()(options_, "session.intra_op.allow_spinning", spinning));
    if (library != nullptr) Check(api_.RegisterCustomOpsLibrary_V2()(options_, library));
    Check(api_.api->CreateCpuMemoryInfo()(kArenaAllocator, kMemoryDefault, &memory_));
  }

  std::string Version() const { return "onnxruntime " + version_ + " (C API)"; }

  std::string Prepare(const bursts::Shape& s) {
    for (OrtValue* value : values_) api_.api->ReleaseValue()(value);
    values_.clear();
    if (session_ != nullptr) api_.ReleaseSession()(session_);
    session_ = nullptr;
    Check(api_.CreateSession()(env_, (folder_ + "/model.onnx").c_str(), options_, &session_));
    buffers_ = {
        bursts::ReadFile(folder_ + "/X.f32", s.t * s.b * s.i), bursts::ReadFile(folder_ + "/h0.f32", s.b * s.h),
        bursts::ReadFile(folder_ + "/c0.f32", s.b * s.h),      std::vector<float>(static_cast<size_t>(s.t * s.b * s.h)),
        std::vector<float>(static_cast<size_t>(s.b * s.h)),    std::vector<float>(static_cast<size_t>(s.b * s.h)),
    };
    const std::vector<int64_t> state{1, s.b, s.h};
    const std::vector<int64_t> shapes[] = {{s.t, s.b, s.i}, state, state, {s.t, 1, s.b, s.h}, state, state};
    for (size_t n = 0; n < buffers_.size(); ++n) {
      OrtValue* value = nullptr;
      Check(api_.api->CreateTensorWithDataAsOrtValue()(memory_, buffers_[n].data(), 4 * buffers_[n].size(),
                                                       shapes[n].data(), shapes[n].size(), kFloat, &value));
      values_.push_back(value);
    }
    Run();
    bursts::WriteFile(folder_ + "/y.f32", buffers_[3]);
    return "";
  }

  void Run() {
    static const char* const kInputs[] = {"X", "h0", "c0"};
    static const char* const kOutputs[] = {"Y", "Y_h", "Y_c"};
    Check(api_.Run()(session_, nullptr, kInputs, values_.data(), 3, kOutputs, 3, values_.data() + 3));
  }

 private:
  void Check(OrtStatus* status) const {
    if (status != nullptr) throw std::runtime_error(api_.api->GetErrorMessage()(status));
  }

  const std::string folder_;
  std::string version_;
  SessionApi api_{};
  const OrtEnv* env_ = nullptr;
  OrtSessionOptions* options_ = nullptr;
  OrtMemoryInfo* memory_ = nullptr;
  OrtSession* session_ = nullptr;
  std::vector<std::vector<float>> buffers_;
  std::vector<OrtValue*> values_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  return bursts::Serve([&] { return Session(std::atoi(argv[1]), argv[2], argv[3], argc > 4 ? argv[4] : nullptr); });
}
