#ifndef RNNQC_CELLS_SCRATCH_H_
#define RNNQC_CELLS_SCRATCH_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "kernels/packing.h"

namespace rnnqc {

// One growing buffer, handed out piece by piece.
class Scratch {
 public:
  // Makes room for `bytes` in total and forgets the pieces handed out before.
  void Reset(int64_t bytes) {
    if (buffer_.size() < bytes) buffer_ = AlignedArray<uint8_t>(bytes);
    used_ = 0;
  }

  template <typename T>
  static int64_t BytesFor(int64_t count) {
    return RoundUp(count * static_cast<int64_t>(sizeof(T)), static_cast<int64_t>(kAlignment));
  }

  template <typename T>
  T* Take(int64_t count) {
    T* piece = reinterpret_cast<T*>(buffer_.data() + used_);
    used_ += BytesFor<T>(count);
    return piece;
  }

 private:
  AlignedArray<uint8_t> buffer_;
  int64_t used_ = 0;
};

// onnxruntime may run one kernel from several threads at once: each call takes a Scratch and gives it back.
class ScratchPool {
 public:
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
    const std::lock_guard<std::mutex> lock(mutex_);
    free_.push_back(std::move(scratch));
  }

  std::mutex mutex_;
  std::vector<std::unique_ptr<Scratch>> free_;
  size_t created_ = 0;
};

}  // namespace rnnqc

#endif  // RNNQC_CELLS_SCRATCH_H_
