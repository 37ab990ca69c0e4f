#ifndef RNNQC_CELLS_DRIVER_SCRATCH_H_
#define RNNQC_CELLS_DRIVER_SCRATCH_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "kernels/common/packing.h"

namespace rnnqc {

// The memory of a run, piece by piece, each aligned to kAlignment: handed out, and counted.
class ScratchPieces {
 public:
  // The memory may be smaller than the pieces, which must not be used then.
  explicit ScratchPieces(uint8_t* memory) : memory_(reinterpret_cast<uintptr_t>(memory)) {}

  template <typename T>
  void operator()(T*& pointer, int64_t count) {
    pointer = reinterpret_cast<T*>(memory_ + static_cast<uintptr_t>(bytes_));
    bytes_ += RoundUp(count * static_cast<int64_t>(sizeof(T)), static_cast<int64_t>(kAlignment));
  }

  int64_t bytes() const { return bytes_; }

 private:
  const uintptr_t memory_;
  int64_t bytes_ = 0;
};

// A growing buffer, with information that one call leaves for the next.
class Scratch {
 public:
  // Makes room for `count` shares of `bytes` each, a multiple of kAlignment, and forgets the ones before.
  void Reset(int64_t count, int64_t bytes) {
    if (buffer_.size() < count * bytes) buffer_ = AlignedArray<uint8_t>(count * bytes);
    bytes_ = bytes;
  }

  uint8_t* Share(int64_t index) { return buffer_.data() + index * bytes_; }

  // Memory for pieces that `visit(pieces)` takes, in one visit unless it has to grow.
  template <typename Visit>
  void Take(const Visit& visit) {
    ScratchPieces pieces(buffer_.data());
    visit(pieces);
    if (pieces.bytes() <= buffer_.size()) return;
    Reset(1, pieces.bytes());
    ScratchPieces grown(buffer_.data());
    visit(grown);
  }

  // Threads that took part in the last call that was divided into parts.
  int64_t members() const { return members_; }
  void SetMembers(int64_t members) { members_ = members; }

  // Whether the next `steps` start reading weights at the end, so that consecutive steps alternate the direction.
  bool Turn(int64_t steps) {
    const bool turned = turned_;
    turned_ = turned != (steps % 2 != 0);
    return turned;
  }

 private:
  AlignedArray<uint8_t> buffer_;
  int64_t bytes_ = 0;
  int64_t members_ = 1;
  bool turned_ = false;
};

// onnxruntime may run one kernel from several threads at once: each call takes a Scratch and gives it back.
class ScratchPool {
 public:
  ScratchPool() = default;
  ~ScratchPool() { delete last_.load(); }
  ScratchPool(const ScratchPool&) = delete;
  ScratchPool& operator=(const ScratchPool&) = delete;

  class Lease {
   public:
    explicit Lease(ScratchPool* pool) : pool_(pool), scratch_(pool->Acquire()) {}
    ~Lease() { pool_->Release(std::move(scratch_)); }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    Scratch* get() const { return scratch_.get(); }

   private:
    ScratchPool* pool_;
    std::unique_ptr<Scratch> scratch_;
  };

 private:
  std::unique_ptr<Scratch> Acquire() {
    // One exchange takes the Scratch that was released last: a lock would be a noticeable part of a call of one step.
    std::unique_ptr<Scratch> last(last_.exchange(nullptr, std::memory_order_acquire));
    if (last != nullptr) return last;
    const std::lock_guard<std::mutex> lock(mutex_);
    // The free list gets room for every Scratch there is, so that Release cannot fail.
    if (free_.empty()) {
      auto created = std::make_unique<Scratch>();
      free_.reserve(++created_);
      return created;
    }
    std::unique_ptr<Scratch> scratch = std::move(free_.back());
    free_.pop_back();
    return scratch;
  }

  void Release(std::unique_ptr<Scratch> scratch) {
    Scratch* none = nullptr;
    if (last_.compare_exchange_strong(none, scratch.get(), std::memory_order_release, std::memory_order_relaxed)) {
      scratch.release();
      return;
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    free_.push_back(std::move(scratch));
  }

  std::atomic<Scratch*> last_{nullptr};
  std::mutex mutex_;
  std::vector<std::unique_ptr<Scratch>> free_;
  size_t created_ = 0;
};

}  // namespace rnnqc

#endif  // RNNQC_CELLS_DRIVER_SCRATCH_H_
