// Experts on the threads of a CpuStream: every phase spans all experts of a batch, so that few rows still give
// every thread work.
#include <algorithm>
#include <atomic>
#include <functional>
#include <new>
#include <string_view>

#include "kernels/device/profile_kernel.h"
#include "kernels/expert_ffn/expert_ffn.h"
#include "kernels/expert_ffn/expert_ffn_simd.h"
#include "kernels/linear/linear_steps.h"

namespace lockstep::kernels {
namespace {

constexpr std::int64_t kBatchRows = 256;     // bounds the scratch memory, about 80 KB a row for V4.1's experts
constexpr std::int64_t kBlocksPerPiece = 4;  // of 128 inputs or outputs

struct ExpertSteps {
  LinearSteps linear;
  void (*swiglu)(std::uint16_t* gate, const std::uint16_t* up, std::int64_t n, float limit,
                 const float* weight);
};

// Consecutive pairs of one expert, and everything computed for them.
struct Chunk {
  std::int64_t first_pair = 0;
  LinearWork gate, up, down;
  std::uint16_t* gate_out = nullptr;  // bf16 [rows][gate out_features]; then the SwiGLU's result
  std::uint16_t* up_out = nullptr;    // bf16 [rows][up out_features]

  std::int64_t rows() const { return gate.rows; }
  std::int64_t features() const { return gate.spec->out_features; }
};

std::size_t RoundUp(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

// Places what a chunk needs at `memory` and returns its size; with memory null only counts.
std::size_t PlaceChunk(Chunk* chunk, std::byte* memory) {
  std::size_t used = 0;
  for (LinearWork* work : {&chunk->gate, &chunk->up, &chunk->down})
    used += PlaceLinearWork(work, memory ? memory + used : nullptr);
  for (std::uint16_t** values : {&chunk->gate_out, &chunk->up_out}) {
    *values = memory ? reinterpret_cast<std::uint16_t*>(memory + used) : nullptr;
    used += RoundUp(static_cast<std::size_t>(chunk->rows() * chunk->features()) * sizeof(std::uint16_t));
  }
  return used;
}

// A run over the jobs' pairs in steps of whole chunks.
struct Cursor {
  std::int64_t job = 0;
  std::int64_t row = 0;  // of that job
};

class BatchRun {
 public:
  BatchRun(CpuStream& stream, const ExpertSteps& steps, const ExpertFfnArgs& args, Profile profile)
      : stream_(stream), steps_(steps), args_(args), profile_(profile) {}

  void RunAll() {
    Cursor cursor;
    while (cursor.job < num_jobs()) {
      const Cursor begin = cursor;
      std::size_t bytes = 0;
      std::int64_t count = 0;
      Walk(&cursor, [&](Chunk chunk) {
        bytes += PlaceChunk(&chunk, nullptr);
        ++count;
      });
      if (count > 0) RunBatch(begin, count, bytes);
    }
  }

 private:
  std::int64_t num_jobs() const { return args_.table ? *args_.groups.num_active : args_.num_jobs; }
  ExpertJob JobAt(std::int64_t i) const {
    if (!args_.table) return args_.jobs[i];
    const std::int32_t expert = args_.groups.active_X[i];
    return {.spec = &args_.table->forms[args_.table->form_X[expert]],
            .blob = args_.table->blob_X[expert],
            .begin = args_.groups.begin_X[expert],
            .rows = args_.groups.count_X[expert]};
  }

  // Calls visit for the chunks of the batch that begins at `cursor`, and leaves it at the next.
  template <typename Visit>
  void Walk(Cursor* cursor, Visit visit) const {
    std::int64_t batch_rows = 0;
    while (cursor->job < num_jobs() && batch_rows < kBatchRows) {
      const ExpertJob job = JobAt(cursor->job);
      const std::int64_t rows = std::min({job.rows - cursor->row, kMaxLinearRows, kBatchRows - batch_rows});
      if (rows > 0) {
        Chunk chunk;
        chunk.first_pair = job.begin + cursor->row;
        const LinearWork work = {.blob = job.blob, .profile = profile_, .rows = rows};
        chunk.gate = chunk.up = chunk.down = work;
        chunk.gate.spec = &job.spec->gate;
        chunk.up.spec = &job.spec->up;
        chunk.down.spec = &job.spec->down;
        visit(chunk);
        batch_rows += rows;
        cursor->row += rows;
      }
      if (cursor->row >= job.rows) *cursor = {cursor->job + 1, 0};
    }
  }

  void RunBatch(Cursor begin, std::int64_t count, std::size_t bytes) {
    const std::size_t table_bytes = RoundUp(static_cast<std::size_t>(count) * sizeof(Chunk));
    std::byte* memory = stream_.SharedScratch(table_bytes + bytes);
    chunks_ = reinterpret_cast<Chunk*>(memory);
    count_ = 0;
    memory += table_bytes;
    Walk(&begin, [&](Chunk chunk) {
      memory += PlaceChunk(&chunk, memory);
      new (&chunks_[count_++]) Chunk(chunk);
    });
    PrepareInputs();
    MultiplyGateAndUp();
    Activate();
    MultiplyDown();
    Finish();
  }

  // Calls body(chunk, i, worker) for every i in [0, count_of(chunk)) of every chunk, in pieces of
  // grain_of(total) over all threads.
  template <typename CountOf, typename GrainOf, typename Body>
  void ForEach(CountOf count_of, GrainOf grain_of, Body body) {
    std::int64_t total = 0;
    for (std::int64_t c = 0; c < count_; ++c) total += count_of(chunks_[c]);
    const auto piece = [&](std::int64_t begin, std::int64_t end, int worker) {
      std::int64_t c = 0, first = 0;  // index of chunk c's item 0
      for (std::int64_t i = begin; i < end; ++i) {
        while (i - first >= count_of(chunks_[c])) first += count_of(chunks_[c++]);
        body(chunks_[c], i - first, worker);
      }
    };
    stream_.ParallelFor(total, grain_of(total), std::cref(piece));  // the lambda itself would make it allocate
  }
  template <typename CountOf, typename Body>
  void ForEachBlock(CountOf count_of, Body body) {
    ForEach(
        count_of, [](std::int64_t) { return kBlocksPerPiece; }, body);
  }
  template <typename CountOf, typename Body>
  void ForEachStrip(CountOf count_of, Body body) {
    ForEach(
        count_of, [this](std::int64_t total) { return StripGrain(total, stream_.threads()); }, body);
  }

  void Report(bool fits) const {
    if (!fits && args_.overflow)
      std::atomic_ref<std::int32_t>(*args_.overflow).store(1, std::memory_order_relaxed);
  }

  void PrepareInputs() {
    ForEachBlock([](const Chunk& chunk) { return 2 * chunk.rows() * PrepareBlocks(*chunk.gate.spec); },
                 [&](const Chunk& chunk, std::int64_t i, int) {
                   const LinearWork& work = i % 2 == 0 ? chunk.gate : chunk.up;
                   const std::int64_t blocks = PrepareBlocks(*work.spec), row = i / 2 / blocks,
                                      block = i / 2 % blocks;
                   const std::int64_t pair = chunk.first_pair + row;
                   const std::int64_t x_row = args_.token ? args_.token[pair] : pair;
                   Report(steps_.linear.prepare(work, args_.x + x_row * args_.hidden, row, block, block + 1));
                 });
  }

  void MultiplyGateAndUp() {
    ForEachStrip([](const Chunk& chunk) { return Strips(*chunk.gate.spec) + Strips(*chunk.up.spec); },
                 [&](const Chunk& chunk, std::int64_t i, int worker) {
                   const std::int64_t gate_strips = Strips(*chunk.gate.spec);
                   const LinearWork& work = i < gate_strips ? chunk.gate : chunk.up;
                   steps_.linear.strip(work, i < gate_strips ? i : i - gate_strips,
                                       stream_.Scratch(worker, StripScratchBytes(work)));
                 });
  }

  // A block of 128 features at a time: the outputs of gate and up, their SwiGLU, and its transform for down.
  void Activate() {
    ForEachBlock(
        [](const Chunk& chunk) { return chunk.rows() * FinishBlocks(*chunk.gate.spec); },
        [&](const Chunk& chunk, std::int64_t i, int) {
          const std::int64_t blocks = FinishBlocks(*chunk.gate.spec), row = i / blocks, block = i % blocks;
          std::uint16_t* gate = chunk.gate_out + row * chunk.features();
          std::uint16_t* up = chunk.up_out + row * chunk.features();
          steps_.linear.finish(chunk.gate, row, block, gate, nullptr);
          steps_.linear.finish(chunk.up, row, block, up, nullptr);
          const std::int64_t begin = block * kLinearBlock, n = std::min(kLinearBlock, chunk.features() - begin);
          steps_.swiglu(gate + begin, up + begin, n, args_.limit,
                        args_.weight ? args_.weight + chunk.first_pair + row : nullptr);
          Report(steps_.linear.prepare(chunk.down, gate, row, block, block + 1));
        });
  }

  void MultiplyDown() {
    ForEachStrip([](const Chunk& chunk) { return Strips(*chunk.down.spec); },
                 [&](const Chunk& chunk, std::int64_t i, int worker) {
                   steps_.linear.strip(chunk.down, i, stream_.Scratch(worker, StripScratchBytes(chunk.down)));
                 });
  }

  void Finish() {
    ForEachBlock([](const Chunk& chunk) { return chunk.rows() * FinishBlocks(*chunk.down.spec); },
                 [&](const Chunk& chunk, std::int64_t i, int) {
                   const std::int64_t blocks = FinishBlocks(*chunk.down.spec), row = i / blocks;
                   steps_.linear.finish(chunk.down, row, i % blocks,
                                        args_.y + (chunk.first_pair + row) * args_.hidden, nullptr);
                 });
  }

  CpuStream& stream_;
  const ExpertSteps& steps_;
  const ExpertFfnArgs& args_;
  Profile profile_;
  Chunk* chunks_ = nullptr;
  std::int64_t count_ = 0;
};

ExpertSteps StepsFor(Isa isa) {
  return {.linear = LinearStepsFor(isa), .swiglu = ForIsa(isa, generic::SwiGlu, avx2::SwiGlu, avx512::SwiGlu)};
}

template <Isa isa, Profile profile>
void RunAll(Stream& stream, const ExpertFfnArgs& args) {
  static const ExpertSteps steps = StepsFor(isa);
  BatchRun(AsCpu(stream), steps, args, profile).RunAll();
}

template <Isa isa>
struct For {
  template <Profile profile>
  struct Run {
    static void Call(Stream& stream, const ExpertFfnArgs& args) { RunAll<isa, profile>(stream, args); }
  };
};

}  // namespace

Kernel<ExpertFfnArgs> CpuExpertFfn(Isa isa, Profile profile) {
  constexpr std::string_view kContracts[7] = LOCKSTEP_PROFILE_CONTRACTS("expert_ffn", "+I+F");
  if (isa == Isa::kAvx512) return ProfileKernel<ExpertFfnArgs, For<Isa::kAvx512>::template Run>(profile, kContracts);
  if (isa == Isa::kAvx2) return ProfileKernel<ExpertFfnArgs, For<Isa::kAvx2>::template Run>(profile, kContracts);
  return ProfileKernel<ExpertFfnArgs, For<Isa::kGeneric>::template Run>(profile, kContracts);
}

}  // namespace lockstep::kernels
