#include <atomic>
#include <cstdlib>
#include <new>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "kernels/device/stream.h"
#include "model/error.h"

namespace lockstep::kernels {
namespace {

void Pause() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

// Memory that grows and never shrinks.
class GrowingBuffer {
 public:
  GrowingBuffer() = default;
  GrowingBuffer(const GrowingBuffer&) = delete;
  GrowingBuffer& operator=(const GrowingBuffer&) = delete;
  ~GrowingBuffer() { std::free(data_); }

  std::byte* AtLeast(std::size_t bytes) {
    if (bytes <= bytes_) return data_;
    std::free(data_);
    bytes_ = (bytes + bytes / 2 + kPage - 1) / kPage * kPage;
    data_ = static_cast<std::byte*>(std::aligned_alloc(kPage, bytes_));
    if (data_ == nullptr) throw std::bad_alloc();
    return data_;
  }

 private:
  static constexpr std::size_t kPage = 4096;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

// Workers take pieces from a ticket: the job's number in the high half, the pieces left in the low half.
// Whoever holds a piece knows that the job lives, because the caller returns only when every piece is done; a
// worker that comes too late finds no piece left and need not be waited for.
class ThreadPoolStream : public CpuStream {
 public:
  explicit ThreadPoolStream(int threads) : scratch_(static_cast<std::size_t>(threads)) {
    for (int worker = 1; worker < threads; ++worker)
      workers_.emplace_back([this, worker] { WorkerLoop(worker); });
  }

  ~ThreadPoolStream() override {
    stop_.store(true, std::memory_order_relaxed);
    WakeWorkers();
    for (std::thread& worker : workers_) worker.join();
  }

  int threads() const override { return static_cast<int>(scratch_.size()); }

  void ParallelFor(std::int64_t n, std::int64_t grain, const Body& body) override {
    LOCKSTEP_CHECK(grain > 0);
    const std::int64_t pieces = (n + grain - 1) / grain;
    if (pieces <= 1 || workers_.empty()) {
      for (std::int64_t begin = 0; begin < n; begin += grain)
        body(begin, begin + grain < n ? begin + grain : n, 0);
      return;
    }
    LOCKSTEP_CHECK(pieces < (std::int64_t{1} << 32));
    n_ = n;
    grain_ = grain;
    pieces_ = pieces;
    body_ = &body;
    done_.store(0, std::memory_order_relaxed);
    const std::uint64_t job = (ticket_.load(std::memory_order_relaxed) >> 32) + 1;
    ticket_.store(job << 32 | static_cast<std::uint64_t>(pieces), std::memory_order_release);
    WakeWorkers();
    RunPieces(0);
    for (int spins = 0; done_.load(std::memory_order_acquire) != pieces; ++spins) {
      if (spins < kSpins) {
        Pause();
      } else {
        std::this_thread::yield();
      }
    }
  }

  std::byte* Scratch(int worker, std::size_t bytes) override {
    return scratch_[static_cast<std::size_t>(worker)].AtLeast(bytes);
  }
  std::byte* SharedScratch(std::size_t bytes) override { return shared_.AtLeast(bytes); }

 private:
  // About 50 microseconds: kernels of one step follow one another faster than that.
  static constexpr int kSpins = 1000;

  void WakeWorkers() {
    epoch_.fetch_add(1, std::memory_order_release);
    epoch_.notify_all();
  }

  // Does pieces of the current job until none is left.
  void RunPieces(int worker) {
    std::int64_t completed = 0;  // reported once, to keep the counter out of the way
    std::uint64_t ticket = ticket_.load(std::memory_order_acquire);
    while ((ticket & 0xffffffffu) != 0) {
      if (!ticket_.compare_exchange_weak(ticket, ticket - 1, std::memory_order_acquire)) continue;
      const std::int64_t piece = pieces_ - static_cast<std::int64_t>(ticket & 0xffffffffu);
      const std::int64_t begin = piece * grain_;
      (*body_)(begin, begin + grain_ < n_ ? begin + grain_ : n_, worker);
      ++completed;
      ticket = ticket_.load(std::memory_order_acquire);
    }
    if (completed > 0) done_.fetch_add(completed, std::memory_order_release);
  }

  void WorkerLoop(int worker) {
    while (true) {
      const std::uint32_t epoch = epoch_.load(std::memory_order_acquire);
      if (stop_.load(std::memory_order_relaxed)) return;
      RunPieces(worker);
      for (int spins = 0; spins < kSpins && epoch_.load(std::memory_order_relaxed) == epoch; ++spins) Pause();
      epoch_.wait(epoch, std::memory_order_acquire);
    }
  }

  std::vector<std::thread> workers_;
  std::vector<GrowingBuffer> scratch_;
  GrowingBuffer shared_;

  // The current job. Written before ticket_ is published, read by holders of a piece.
  std::int64_t n_ = 0, grain_ = 0, pieces_ = 0;
  const Body* body_ = nullptr;

  alignas(64) std::atomic<std::uint64_t> ticket_{0};
  alignas(64) std::atomic<std::int64_t> done_{0};
  alignas(64) std::atomic<std::uint32_t> epoch_{0};
  std::atomic<bool> stop_{false};
};

}  // namespace

std::unique_ptr<CpuStream> MakeCpuStream(int threads) {
  LOCKSTEP_CHECK(threads >= 1);
  return std::make_unique<ThreadPoolStream>(threads);
}

}  // namespace lockstep::kernels
