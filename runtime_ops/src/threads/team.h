#ifndef RNNQC_THREADS_TEAM_H_
#define RNNQC_THREADS_TEAM_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace rnnqc {

// Threads that work on one call together. Every task of a parallel loop joins; the first to arrive leads, the others
// help. The leader runs phases one after the other; a phase has parts, and one part is the smallest unit of work.
//
// A helper claims its part of the phase that is running; the leader does whatever part nobody has claimed. So the
// leader waits only for parts that a thread is working on, never for a thread that has not arrived: the loop may run
// all its tasks on one thread, one after the other.
class Team {
 public:
  static constexpr int64_t kMaxMembers = 64;

  using Part = void(void* user, int64_t part, int64_t parts);

  Team(Part* work, void* user) : work_(work), user_(user) {}
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  // Whether the calling thread leads. If not, Help() has to follow.
  bool Lead() { return !led_.exchange(true, std::memory_order_acq_rel); }

  // Threads that have arrived while the leader worked, itself included.
  int64_t Members() const;

  // Leader: runs all parts of one phase. Its earlier writes are visible to them, and theirs are visible to it after.
  void Run(int64_t parts);

  // Leader: releases the helpers.
  void Finish() { phase_.store(kFinished, std::memory_order_release); }

  // Others: work until the leader finishes.
  void Help();

 private:
  static constexpr uint64_t kFinished = ~uint64_t{0};
  static constexpr int kPartBits = 8;
  static constexpr size_t kCacheLine = 64;

  // Numbers of the last phases whose part was claimed and done.
  struct alignas(kCacheLine) Slot {
    std::atomic<uint64_t> claimed{0};
    std::atomic<uint64_t> done{0};
  };

  // Call it only once for each phase. A claim keeps the leader in the phase until the part is done.
  bool Claim(int64_t part, uint64_t number);

  Part* work_;
  void* user_;
  uint64_t number_ = 0;  // of the phase, counted by the leader
  std::atomic<bool> led_{false};
  std::atomic<int64_t> helpers_{0};
  alignas(kCacheLine) std::atomic<uint64_t> phase_{0};  // number << kPartBits | parts
  Slot slots_[kMaxMembers];
};

}  // namespace rnnqc

#endif  // RNNQC_THREADS_TEAM_H_
