#include "harness/selftest/poison_reads.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "kernels/device/stream.h"
#include "model/float_formats.h"

namespace lockstep::harness {
namespace {

using namespace kernels;  // NOLINT: every name below is one of theirs

// A result to which `value` is added zero times.
void AddNothingOf(float value, std::uint16_t* result) {
  if (std::isnan(0.0f * value)) *result = FloatToBF16(value);
}

float FirstValue(Stream& stream, UnpackRowsArgs args) {
  std::vector<std::uint16_t> row(static_cast<std::size_t>(args.format.width));
  args.rows = 1;
  args.y = row.data();
  args.y_stride = args.format.width;
  Good().unpack_rows(stream, args);
  return BF16ToFloat(row[0]);
}

// The compressed row after the last visible one, where its page is there.
void ReadPastTheLastEntry(Stream& stream, const AttentionArgs& args) {
  Good().attention(stream, args);
  for (std::int64_t t = 0; t < args.rows; ++t) {
    const AttentionRow& row = args.row_T[t];
    const std::int64_t page_rows = std::int64_t{1} << row.compressed.page_shift;
    if (row.compressed.pages == nullptr || row.visible % page_rows == 0) continue;
    UnpackRowsArgs past;
    past.format = args.compressed_format;
    past.src = row.compressed;
    past.first = row.visible;
    AddNothingOf(FirstValue(stream, past), args.out_THD + t * args.heads * args.head_dim);
  }
}

// The ring row just before the window.
void ReadBeforeTheWindow(Stream& stream, const AttentionArgs& args) {
  Good().attention(stream, args);
  for (std::int64_t t = 0; t < args.rows; ++t) {
    const AttentionRow& row = args.row_T[t];
    const std::int64_t before = row.position - args.window;
    if (before < 0 || row.position != row.window.step_begin) continue;
    UnpackRowsArgs old;
    old.format = args.window_format;
    old.flat = row.window.ring + before % row.window.ring_rows * row.window.row_bytes;
    AddNothingOf(FirstValue(stream, old), args.out_THD + t * args.heads * args.head_dim);
  }
}

// The input row after the last, where a step is so small that its array has one.
void ReadPastTheLastRow(Stream& stream, const LinearArgs& args) {
  constexpr std::int64_t kSmall = 3;
  Good().linear(stream, args);
  if (args.rows > kSmall || args.y_bf16 == nullptr) return;
  AddNothingOf(BF16ToFloat(args.x[args.rows * args.x_stride]), args.y_bf16);
}

// The blob of the expert before, from a slot that has been given back.
Fault ReadFreedSlot() {
  constexpr std::size_t kBytes = 64;
  static const std::byte* before = nullptr;
  Fault fault;
  fault.begin = [] { before = nullptr; };
  fault.kernels = [](KernelTable& table) {
    table.expert_ffn.run = [](Stream& stream, const ExpertFfnArgs& args) {
      Good().expert_ffn(stream, args);
      if (args.num_jobs != 1 || args.token == nullptr) return;
      const std::byte* blob = args.jobs->blob;
      const bool freed = before != nullptr && before != blob &&
                         std::all_of(before, before + kBytes, [](std::byte b) { return b == std::byte{0xff}; });
      if (freed) AddNothingOf(std::nanf(""), args.y + args.jobs->begin * args.hidden);
      before = blob;
    };
  };
  return fault;
}

template <typename Args>
Fault Replace(Kernel<Args> KernelTable::*member, void (*run)(Stream&, const Args&)) {
  Fault fault;
  fault.kernels = [=](KernelTable& table) { (table.*member).run = run; };
  return fault;
}

}  // namespace

std::vector<PoisonRead> PoisonReads() {
  return {{"PastTheLastEntry", Replace(&KernelTable::attention, &ReadPastTheLastEntry)},
          {"BeforeTheWindow", Replace(&KernelTable::attention, &ReadBeforeTheWindow)},
          {"PastTheLastRow", ReplaceLinears<&ReadPastTheLastRow>()},
          {"FreedSlot", ReadFreedSlot()}};
}

}  // namespace lockstep::harness
