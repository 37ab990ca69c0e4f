#ifndef RNNQC_BENCHMARKS_BURSTS_H_
#define RNNQC_BENCHMARKS_BURSTS_H_

// A worker of turns.py around one LSTM layer: what is said on standard input and output, and the raw float32 files of
// write_layer in peer_ways.py.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <fstream>
#include <iostream>
#include <stdexcept>
#include <string>
#include <vector>

namespace bursts {

struct Shape {
  int64_t t, b, i, h;
};

inline std::vector<float> ReadFile(const std::string& path, int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  std::ifstream file(path, std::ios::binary);
  if (!file.read(reinterpret_cast<char*>(values.data()), static_cast<std::streamsize>(4 * values.size()))) {
    throw std::runtime_error("cannot read " + path);
  }
  return values;
}

inline void WriteFile(const std::string& path, const std::vector<float>& values) {
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(values.data()), static_cast<std::streamsize>(4 * values.size()));
}

inline std::string Quoted(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) result += c == '"' || c == '\\' ? std::string{'\\', c} : std::string(1, c < ' ' ? ' ' : c);
  return result + "\"";
}

// Seconds of every run, sorted. The first runs refill the caches and do not count, as in rnnqc.timing.burst.
template <typename Layer>
std::vector<double> Burst(Layer& layer, double seconds) {
  constexpr double kSettle = 0.005;
  const auto now = [] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  };
  double begin = now();
  do {
    layer.Run();
  } while (now() - begin < kSettle);
  std::vector<double> times;
  begin = now();
  for (double start = begin; times.empty() || start - begin < seconds;) {
    layer.Run();
    const double end = now();
    times.push_back(end - start);
    start = end;
  }
  std::sort(times.begin(), times.end());
  return times;
}

// `make` gives an object with `std::string Version()`, `std::string Prepare(Shape)` (what it is that runs) and `Run()`.
template <typename Make>
int Serve(const Make& make) try {
  auto layer = make();
  std::cout << "{\"version\": " << Quoted(layer.Version()) << "}" << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    long long t = 0, b = 0, i = 0, h = 0;
    double seconds = 0;
    try {
      if (std::sscanf(line.c_str(), "prepare %lldx%lldx%lldx%lld", &t, &b, &i, &h) == 4) {
        const std::string implementation = layer.Prepare({t, b, i, h});
        std::cout << "{\"implementation\": " << Quoted(implementation) << "}" << std::endl;
      } else if (std::sscanf(line.c_str(), "burst %lf", &seconds) == 1) {
        const std::vector<double> times = Burst(layer, seconds);
        std::printf("{\"runs\": %zu, \"min\": %.9g, \"median\": %.9g}\n", times.size(), times[0],
                    times[times.size() / 2]);
        std::fflush(stdout);
      }
    } catch (const std::exception& error) {
      std::cout << "{\"error\": " << Quoted(error.what()) << "}" << std::endl;
    }
  }
  return 0;
} catch (const std::exception& error) {
  std::cout << "{\"missing\": " << Quoted(error.what()) << "}" << std::endl;
  return 2;
}

}  // namespace bursts

#endif  // RNNQC_BENCHMARKS_BURSTS_H_
