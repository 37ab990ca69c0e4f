// Streams float32 samples through a model, chunk by chunk, and feeds its states back:
//
//   stream MODEL.onnx STEPS [--stock] [IN:OUT ...] < inputs.f32 > outputs.f32
//
// The model has one input that is not a state. Its first unknown dimension is STEPS, other unknown dimensions are 1; a
// chunk is as many samples as that shape has. States begin as zeros. The first output that is not a state is written.
// Standard error gets the time of a chunk. With --stock the native library stays out: the same file runs in standard
// operators, with the same bits.

#include "stream.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>

#ifdef _WIN32
#include <fcntl.h>
#include <io.h>
#endif

namespace {

struct Arguments {
  std::string model;
  int64_t steps = 0;
  bool stock = false;
  States states;
};

Arguments Read(int argc, char** argv) {
  Arguments read;
  if (argc < 3) throw std::runtime_error("usage: stream MODEL.onnx STEPS [--stock] [IN:OUT ...]");
  read.model = argv[1];
  read.steps = std::atoll(argv[2]);
  if (read.steps < 1) throw std::runtime_error("STEPS is " + std::string(argv[2]) + "; it must be 1 or more");
  for (int i = 3; i < argc; ++i) {
    const std::string text = argv[i];
    const size_t equals = text.find('=');  // for names with colons
    const size_t end = equals != std::string::npos ? equals : text.find(':');
    if (text == "--stock") {
      read.stock = true;
    } else if (end != std::string::npos) {
      read.states[text.substr(0, end)] = text.substr(end + 1);
    } else {
      throw std::runtime_error("argument '" + text + "' is neither --stock nor IN:OUT");
    }
  }
  return read;
}

void Main(const Arguments& arguments) {
  Ort::Env env(ORT_LOGGING_LEVEL_WARNING, "stream");
  Ort::Session session = OpenModel(env, arguments.model, arguments.stock);
  Stream stream(session, arguments.states, arguments.steps, 1);
  std::vector<float> result;
  std::vector<double> microseconds;
  while (std::fread(stream.Chunk(), sizeof(float), stream.Size(), stdin) == stream.Size()) {
    result.clear();
    const auto start = std::chrono::steady_clock::now();
    stream.Run(result);
    microseconds.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count());
    if (std::fwrite(result.data(), sizeof(float), result.size(), stdout) != result.size()) {
      throw std::runtime_error("standard output cannot be written");
    }
  }
  if (microseconds.empty()) throw std::runtime_error("standard input has less than one chunk");
  const char* isa = arguments.stock ? "none" : rnnqc_isa(nullptr, 0);
  std::fprintf(stderr, "%zu chunks, median %.1f us, native kernels: %s\n", microseconds.size(), Median(microseconds),
               isa);
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
