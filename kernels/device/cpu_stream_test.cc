// The thread pool against what stream.h promises.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/device/stream.h"

namespace lockstep::kernels {
namespace {

TEST(CpuStream, EveryIndexOnceInPiecesOfAtMostGrain) {
  for (const int threads : {1, 2, 3, 8}) {
    const std::unique_ptr<CpuStream> stream = MakeCpuStream(threads);
    EXPECT_EQ(stream->threads(), threads);
    for (const std::int64_t n : {0, 1, 7, 64, 1000}) {
      for (const std::int64_t grain : {1, 3, 64, 5000}) {
        std::vector<std::atomic<int>> visits(static_cast<std::size_t>(n));
        stream->ParallelFor(n, grain, [&](std::int64_t begin, std::int64_t end, int worker) {
          EXPECT_LT(begin, end);
          EXPECT_LE(end - begin, grain);
          EXPECT_TRUE(0 <= worker && worker < threads);
          for (std::int64_t i = begin; i < end; ++i)
            visits[static_cast<std::size_t>(i)].fetch_add(1, std::memory_order_relaxed);
        });
        for (const std::atomic<int>& count : visits) ASSERT_EQ(count.load(), 1);
      }
    }
  }
}

// Each call must see what the one before wrote, and workers asleep or late must not disturb the next.
TEST(CpuStream, CallsFollowOneAnother) {
  const std::unique_ptr<CpuStream> stream = MakeCpuStream(4);
  std::vector<std::int64_t> value(37, 0);
  for (std::int64_t round = 0; round < 2000; ++round) {
    stream->ParallelFor(37, 1 + round % 5, [&](std::int64_t begin, std::int64_t end, int) {
      for (std::int64_t i = begin; i < end; ++i) {
        ASSERT_EQ(value[static_cast<std::size_t>(i)], round * i);
        value[static_cast<std::size_t>(i)] += i;
      }
    });
  }
}

TEST(CpuStream, WorkersNeverShareAnIndexAtOnce) {
  const std::unique_ptr<CpuStream> stream = MakeCpuStream(4);
  std::atomic<int> inside[4] = {};
  stream->ParallelFor(500, 1, [&](std::int64_t, std::int64_t, int worker) {
    EXPECT_EQ(inside[worker].fetch_add(1), 0);
    inside[worker].fetch_sub(1);
  });
}

TEST(CpuStream, ScratchIsAlignedPrivateAndStays) {
  const std::unique_ptr<CpuStream> stream = MakeCpuStream(3);
  std::byte* shared = stream->SharedScratch(1000);
  std::byte* first[3];
  for (int worker = 0; worker < 3; ++worker) {
    first[worker] = stream->Scratch(worker, 100'000);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(first[worker]) % 64, 0u);
    std::memset(first[worker], worker, 100'000);
  }
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(shared) % 64, 0u);
  for (int worker = 0; worker < 3; ++worker) {
    EXPECT_EQ(first[worker][99'999], static_cast<std::byte>(worker));
    EXPECT_EQ(stream->Scratch(worker, 99'000), first[worker]);
  }
  EXPECT_EQ(stream->SharedScratch(900), shared);
}

// --- calls

struct DoubledArgs {
  const int* x = nullptr;
  std::int64_t rows = 0, hidden = 0;
  int* y = nullptr;
};

void Double(Stream&, const DoubledArgs& a) {
  for (std::int64_t i = 0; i < a.rows; ++i) a.y[i] = 2 * a.x[i];
}

void Refuse(Stream&, const DoubledArgs&) { throw LaunchError("doubled: no such device function"); }

TEST(KernelCall, AFailureNamesContractAndShapes) {
  const std::unique_ptr<CpuStream> stream = MakeCpuStream(1);
  const Kernel<DoubledArgs> kernel = {&Refuse, "doubled/F"};
  try {
    kernel(*stream, {nullptr, 3, 5120, nullptr});
    FAIL() << "expected an error";
  } catch (const InputError& error) {
    EXPECT_STREQ(error.what(), "doubled/F (rows=3 hidden=5120): doubled: no such device function");
  }
}

TEST(KernelCall, ARecordedCallRunsLaterOnWhatItsMemoryHoldsThen) {
  const std::unique_ptr<CpuStream> stream = MakeCpuStream(1);
  const Kernel<DoubledArgs> kernel = {&Double, "doubled/F"};
  int x = 1, y = 0;
  RecordedCalls calls;
  stream->Record(&calls);
  kernel(*stream, {&x, 1, 1, &y});
  stream->Record(nullptr);
  EXPECT_EQ(y, 0);
  for (const int value : {4, 5}) {
    x = value;
    for (const auto& call : calls) call();
    EXPECT_EQ(y, 2 * value);
  }
}

}  // namespace
}  // namespace lockstep::kernels
