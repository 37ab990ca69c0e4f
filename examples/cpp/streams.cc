// Many streams through one session: THREADS threads, each with ROWS streams in the rows of its calls.
//
//   streams MODEL.onnx STEPS ROWS THREADS [--stock] [IN:OUT ...] < inputs.f32 > outputs.f32
//
// As stream.cc, but for: unknown dimensions other than the steps are ROWS; a chunk of the input is a chunk for each
// thread in turn, and so is one of the output. All of the input is read before the threads start. A thread waits for no
// other: each goes on when its own streams have samples. Standard error gets the time of a call and what all threads
// together do in a second.

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <thread>

#include "stream.h"

#ifdef _WIN32
#include <fcntl.h>
#include <io.h>
#endif

namespace {

struct Arguments {
  std::string model;
  int64_t steps = 0, rows = 0, threads = 0;
  bool stock = false;
  States states;
};

int64_t Count(const char* name, const char* text) {
  const int64_t count = std::atoll(text);
  if (count < 1) throw std::runtime_error(std::string(name) + " is " + text + "; it must be 1 or more");
  return count;
}

Arguments Read(int argc, char** argv) {
  Arguments read;
  if (argc < 5) {
    throw std::runtime_error("usage: streams MODEL.onnx STEPS ROWS THREADS [--stock] [IN:OUT ...]");
  }
  read.model = argv[1];
  read.steps = Count("STEPS", argv[2]);
  read.rows = Count("ROWS", argv[3]);
  read.threads = Count("THREADS", argv[4]);
  for (int i = 5; i < argc; ++i) {
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

// The streams of one thread, from their first chunk to their last.
struct Worker {
  Stream stream;
  std::vector<float> results;
  std::vector<double> microseconds;
  std::exception_ptr error;

  // Its chunks lie `stride` samples apart.
  void Run(const float* samples, size_t chunks, size_t stride) {
    try {
      for (size_t i = 0; i < chunks; ++i) {
        std::copy_n(samples + i * stride, stream.Size(), stream.Chunk());
        const auto start = std::chrono::steady_clock::now();
        stream.Run(results);
        const std::chrono::duration<double, std::micro> taken = std::chrono::steady_clock::now() - start;
        microseconds.push_back(taken.count());
      }
    } catch (...) {
      error = std::current_exception();
    }
  }
};

std::vector<float> ReadAll(std::FILE* file) {
  std::vector<float> samples;
  std::vector<float> part(1 << 16);
  for (size_t count; (count = std::fread(part.data(), sizeof(float), part.size(), file)) > 0;) {
    samples.insert(samples.end(), part.begin(), part.begin() + static_cast<std::ptrdiff_t>(count));
  }
  return samples;
}

void Main(const Arguments& arguments) {
  Ort::Env env(ORT_LOGGING_LEVEL_WARNING, "streams");
  Ort::Session session = OpenModel(env, arguments.model, arguments.stock);
  std::vector<Worker> workers;
  for (int64_t i = 0; i < arguments.threads; ++i) {
    workers.push_back({Stream(session, arguments.states, arguments.steps, arguments.rows), {}, {}, nullptr});
  }
  const std::vector<float> samples = ReadAll(stdin);
  const size_t size = workers[0].stream.Size();
  const size_t chunks = samples.size() / (size * workers.size());
  if (chunks == 0) throw std::runtime_error("standard input has less than one chunk for each thread");

  const auto start = std::chrono::steady_clock::now();
  std::vector<std::thread> threads;
  for (size_t i = 0; i < workers.size(); ++i) {
    threads.emplace_back(&Worker::Run, &workers[i], samples.data() + i * size, chunks, size * workers.size());
  }
  for (std::thread& thread : threads) thread.join();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();

  std::vector<double> microseconds;
  for (const Worker& worker : workers) {
    if (worker.error) std::rethrow_exception(worker.error);
    microseconds.insert(microseconds.end(), worker.microseconds.begin(), worker.microseconds.end());
  }
  const size_t result = workers[0].results.size() / chunks;
  for (size_t i = 0; i < chunks; ++i) {
    for (const Worker& worker : workers) {
      if (std::fwrite(worker.results.data() + i * result, sizeof(float), result, stdout) != result) {
        throw std::runtime_error("standard output cannot be written");
      }
    }
  }
  const double all = static_cast<double>(chunks) * static_cast<double>(arguments.rows * arguments.threads);
  std::fprintf(stderr, "%zu calls, median %.1f us, %.0f chunks of a stream in a second, native kernels: %s\n",
               microseconds.size(), Median(microseconds), all / seconds,
               arguments.stock ? "none" : rnnqc_isa(nullptr, 0));
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
    std::fprintf(stderr, "streams: %s\n", error.what());
    return 1;
  }
}
