// Full shapes of both models, packed row pools, and the operations that the timing program runs.
#pragma once

#include <functional>
#include <string>

#include "harness/gpu/op_timing.h"
#include "kernels/kv_rows/kv_rows_cpu.h"
#include "kernels/table/kernel_table.h"

namespace lockstep::timing {

struct ModelShape {
  const char* name;
  std::int64_t hidden;
  int q_lora, index_heads, experts;
  kernels::RowFormat window, compressed, index_key;
};

inline constexpr int kHeads = 64, kHeadDim = 512, kRopeDim = 64, kIndexDim = 128, kTopK = 512, kWindow = 128, kStreams = 4;

inline ModelShape V4Flash() {
  using Kind = kernels::RowFormat::Kind;
  return {"v4", 4096, 1024, 64, 256, {Kind::kFp8, 512, 448, 64}, {Kind::kFp8, 512, 448, 64}, {Kind::kHadamardFp4, 128, 0, 32}};
}
inline ModelShape V41Flash() {
  using Kind = kernels::RowFormat::Kind;
  return {"v4.1", 5120, 1280, 32, 384, {Kind::kFp8, 512, 512, 32}, {Kind::kFp4E4M3, 512, 0, 16}, {Kind::kFp4E8M0, 128, 0, 32}};
}

// Packed rows of random values in pages, on both sides. A set starts at a page of its own.
class RowPool {
 public:
  static constexpr int kPageShift = 6;

  RowPool(const kernels::RowFormat& format, std::int64_t rows, Values& values)
      : format_(format), row_bytes_(format.row_bytes()), pages_((rows >> kPageShift) + 1), bytes_(static_cast<std::size_t>((pages_ << kPageShift) * row_bytes_)),
        host_pages_(static_cast<std::size_t>(pages_)), device_pages_(static_cast<std::size_t>(pages_)) {
    const std::int64_t total = pages_ << kPageShift;
    constexpr std::int64_t kPiece = 4096;
    const auto stream = kernels::MakeCpuStream(8);
    for (std::int64_t first = 0; first < total; first += kPiece) {
      const std::vector<std::uint16_t> x = values.BF16s(static_cast<std::size_t>(kPiece * format.width));
      kernels::PackRowsArgs pack;
      pack.format = format;
      pack.x = x.data();
      pack.x_stride = format.width;
      pack.rows = std::min(kPiece, total - first);
      pack.flat = bytes_.host().data() + first * row_bytes_;
      kernels::CpuPackRows(BestIsa())(*stream, pack);
    }
    bytes_.Upload();
    for (std::int64_t i = 0; i < pages_; ++i) {
      host_pages_[static_cast<std::size_t>(i)] = bytes_.host().data() + (i << kPageShift) * row_bytes_;
      device_pages_.host()[static_cast<std::size_t>(i)] = bytes_.device() + (i << kPageShift) * row_bytes_;
    }
    device_pages_.Upload();
  }

  const kernels::RowFormat& format() const { return format_; }
  std::int64_t row_bytes() const { return row_bytes_; }
  // First page of a set whose rows number `rows`: neighbours of a set lie elsewhere as long as the pool has room.
  std::int64_t FirstPage(int set, std::int64_t rows) const {
    const std::int64_t needed = (rows >> kPageShift) + 1, starts = pages_ - needed + 1;
    return set * needed % starts;
  }
  kernels::PagedRows Paged(bool device, std::int64_t first_page) {
    std::byte* const* table = device ? device_pages_.device() : host_pages_.data();
    return {table + first_page, kPageShift, static_cast<std::int32_t>(row_bytes_)};
  }
  const std::byte* Flat(bool device, std::int64_t first_page) { return (device ? bytes_.device() : bytes_.host().data()) + (first_page << kPageShift) * row_bytes_; }

 private:
  kernels::RowFormat format_;
  std::int64_t row_bytes_, pages_;
  Mirror<std::byte> bytes_;
  std::vector<std::byte*> host_pages_;
  Mirror<std::byte*> device_pages_;
};

// Rows whose bits are compared.
inline std::vector<std::int64_t> SampledRows(std::int64_t rows) {
  std::vector<std::int64_t> sample = {0};
  if (rows > 2) sample.push_back(rows / 2 + 1);
  if (rows > 1) sample.push_back(rows - 1);
  return sample;
}

inline std::string Tokens(std::int64_t n) { return n % 1024 == 0 ? std::to_string(n / 1024) + "K" : std::to_string(n); }

struct TimingRun {
  CudaStream& stream;
  kernels::CpuStream& cpu;
  kernels::KernelTable cpu_kernels;
  Values& values;
  Ceilings ceilings;
  Table& table;
  std::string filter;  // only operations whose name contains it
};

void TimeAttention(TimingRun& run);
void TimeIndexSelect(TimingRun& run);
void TimeRowOperations(TimingRun& run);
void TimeDenseLinears(TimingRun& run);
void TimeProjections(TimingRun& run);

}  // namespace lockstep::timing
