#include "threads/team.h"

#include <algorithm>
#include <thread>

#if defined(__x86_64__) || defined(_M_X64) || defined(__i386__) || defined(_M_IX86)
#include <immintrin.h>
#endif

namespace rnnqc {
namespace {

// Waits a little longer each time: a few loads, then pauses, then the processor goes to others.
class Spin {
 public:
  void Wait() {
    ++rounds_;
    if (rounds_ > kPauses) {
      std::this_thread::yield();
    } else if (rounds_ > kLoads) {
#if defined(__x86_64__) || defined(_M_X64) || defined(__i386__) || defined(_M_IX86)
      _mm_pause();
#elif defined(__aarch64__) && defined(__GNUC__)
      __asm__ __volatile__("yield");
#endif
    }
  }

 private:
  static constexpr int kLoads = 16;
  static constexpr int kPauses = 20000;
  int rounds_ = 0;
};

}  // namespace

int64_t Team::Members() const { return std::min(1 + helpers_.load(std::memory_order_relaxed), kMaxMembers); }

bool Team::Claim(int64_t part, uint64_t number) {
  std::atomic<uint64_t>& claimed = slots_[part].claimed;
  uint64_t last = claimed.load(std::memory_order_relaxed);
  return last < number && claimed.compare_exchange_strong(last, number, std::memory_order_acq_rel);
}

void Team::Run(int64_t parts) {
  if (parts == 1) {
    work_(user_, 0, 1);
    return;
  }
  ++number_;
  phase_.store(number_ << kPartBits | static_cast<uint64_t>(parts), std::memory_order_release);
  work_(user_, 0, parts);
  bool waits[kMaxMembers];
  for (int64_t part = 1; part < parts; ++part) {
    waits[part] = !Claim(part, number_);
    if (!waits[part]) work_(user_, part, parts);
  }
  for (int64_t part = 1; part < parts; ++part) {
    Spin spin;
    while (waits[part] && slots_[part].done.load(std::memory_order_acquire) != number_) spin.Wait();
  }
}

void Team::Help() {
  // A task that runs after the leader's, perhaps on the same thread, has not taken part.
  if (phase_.load(std::memory_order_acquire) == kFinished) return;
  const int64_t part = helpers_.fetch_add(1, std::memory_order_relaxed) + 1;
  if (part >= kMaxMembers) return;
  uint64_t seen = 0;
  Spin spin;
  for (;;) {
    const uint64_t phase = phase_.load(std::memory_order_acquire);
    if (phase == kFinished) return;
    if (phase == seen) {
      spin.Wait();
      continue;
    }
    seen = phase;
    spin = Spin();
    const uint64_t number = phase >> kPartBits;
    const int64_t parts = static_cast<int64_t>(phase & ((uint64_t{1} << kPartBits) - 1));
    if (part >= parts || !Claim(part, number)) continue;
    work_(user_, part, parts);
    slots_[part].done.store(number, std::memory_order_release);
  }
}

}  // namespace rnnqc
