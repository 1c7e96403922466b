// EXL3 linears on the device: what the kernels of a call share. Tiles of one or two rows are one launch (exl3_small.cuh). Of more: a call prepares
// its rows (exl3_prepare_*.cu), then multiplies, up to eight rows by exl3_small.cuh, many by exl3_large.cuh. Contract: docs/numerics.md section 4.
#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "kernels/linear/dense_linear.h"
#include "kernels/linear/linear_layout.h"
#include "kernels/pair_groups/pair_groups.h"

namespace lockstep::kernels {

class CudaStream;

// One matrix.
struct Exl3Job {
  const std::uint32_t* tiles = nullptr;
  const float* input_scale = nullptr;
  const float* output_scale = nullptr;
  const float* bias = nullptr;  // null: none
  std::int32_t bits_x2 = 0;
  std::int32_t act_limit = 0;
  std::int32_t out = 0, out_features = 0;  // padded; stored
  Codebook codebook = Codebook::kMul1;

  __host__ __device__ bool integer() const { return codebook == Codebook::kMul1 && act_limit > 0; }
};

__host__ __device__ inline Exl3Job Exl3JobOf(const LinearSpec& spec, const std::byte* blob) {
  return {reinterpret_cast<const std::uint32_t*>(blob + spec.weight),
          reinterpret_cast<const float*>(blob + spec.input_scale),
          reinterpret_cast<const float*>(blob + spec.output_scale),
          spec.has_bias ? reinterpret_cast<const float*>(blob + spec.bias) : nullptr,
          spec.bits_x2,
          spec.act_limit,
          spec.out_padded,
          spec.out_features,
          spec.codebook};
}

// The same where `job` was made of offsets alone, without a blob.
__host__ __device__ inline Exl3Job InBlob(Exl3Job job, const std::byte* blob) {
  const auto move = [blob](const auto*& part) { part = reinterpret_cast<std::remove_reference_t<decltype(part)>>(blob + reinterpret_cast<std::uintptr_t>(part)); };
  move(job.tiles), move(job.input_scale), move(job.output_scale);
  if (job.bias) move(job.bias);
  return job;
}

// Up to Exl3Tiles::tile_rows rows of one job.
struct RowTile {
  std::int32_t job = 0;
  std::int32_t rows = 0;
  std::int64_t begin = 0;  // first row of the call
};

// How a product multiplies: family I on int8 or int16 codes, family H on fp16.
enum class Exl3Form : std::int32_t { kInt8, kInt16, kHalf };

__host__ __device__ inline Exl3Form FormOf(const Exl3Job& job) {
  return !job.integer() ? Exl3Form::kHalf : job.act_limit > 127 ? Exl3Form::kInt16 : Exl3Form::kInt8;
}

inline constexpr int kExl3Parts = 8;  // of a call

// The experts of a layer as they lie on the device (ExpertTable of kernels/expert_ffn), and the part of each that a call multiplies by.
struct DeviceExperts {
  const std::byte* const* blob_X = nullptr;  // null: the host made the jobs
  const std::int32_t* form_X = nullptr;
  const std::byte* forms = nullptr;  // ExpertSpec array; null: Exl3Tiles::small_jobs has the parts of each, without blobs, for one load less
  std::int64_t form_bytes = 0;
  std::int64_t spec_offset[kExl3Parts] = {};  // of a part's LinearSpec in an ExpertSpec
  PairGroups groups;
  std::int32_t tiles_per_group = 0;
  // The last expert, where the host knows its rows: those from `shared_begin` on. It has the first tiles, and is the last active one.
  std::int32_t shared = 0, shared_tiles = 0, shared_rows = 0;
  std::int64_t shared_begin = std::numeric_limits<std::int64_t>::max();
};

// The row tiles of a launch and their jobs. Made by the host: short lists travel as kernel parameters, long ones lie in device memory.
// Or found on the device: those of the shared expert, then tile i is tile i % tiles_per_group of the (i / tiles_per_group)-th active expert.
// A launch of one form passes over the jobs of the others, but one of int16 with `any_integer` takes int8 too: its codes are int16's whose high byte is zero.
struct Exl3Tiles {
  static constexpr int kSmall = 22;
  Exl3Form form = Exl3Form::kInt8;
  bool any_integer = false;
  std::int32_t parts = 1;      // matrices that every tile is multiplied by; job of part p: jobs[tile.job * job_stride + first_job + p]
  std::int32_t job_stride = 1, first_job = 0;
  std::int32_t tile_rows = 0;  // small tiles
  std::int64_t count = 0;
  std::int64_t count_128 = 0;  // large tiles: the first so many have up to 128 rows, the others up to 64
  const Exl3Job* jobs = nullptr;  // null: small_jobs, small_tiles
  const RowTile* tiles = nullptr;
  DeviceExperts experts;
  RowTile small_tiles[kSmall];
  Exl3Job small_jobs[2 * kSmall];

#if defined(__CUDACC__)
  // False: no such tile for this launch.
  __device__ bool Find(std::int64_t index, int part, RowTile* tile, Exl3Job* job) const {
    if (experts.blob_X) {
      if (!FindExpert(index, part, tile, job)) return false;
    } else {
      *tile = tiles ? tiles[index] : small_tiles[index];
      const int at = tile->job * job_stride + first_job + part;
      if (jobs) *job = JobInMemory(jobs + at);
      else *job = small_jobs[at];
    }
    return job->bits_x2 > 0 && (FormOf(*job) == form || (any_integer && form == Exl3Form::kInt16 && job->integer()));
  }

  // Word by word: the same expression for jobs in memory and in parameters would read both at generic addresses, where parameters are cold.
  __device__ static Exl3Job JobInMemory(const Exl3Job* job) {
    constexpr int kWords = sizeof(Exl3Job) / sizeof(uint2);
    static_assert(kWords * sizeof(uint2) == sizeof(Exl3Job));
    uint2 words[kWords];
#pragma unroll
    for (int i = 0; i < kWords; ++i) words[i] = __ldcg(reinterpret_cast<const uint2*>(job) + i);
    Exl3Job copy;
    memcpy(&copy, words, sizeof(copy));
    return copy;
  }

  // Loads that do not need each other stand together, before any branch: their latencies overlap.
  __device__ bool FindExpert(std::int64_t index, int part, RowTile* tile, Exl3Job* job) const {
    if (index < experts.shared_tiles) return FindShared(static_cast<std::int32_t>(index), part, tile, job);
    const std::int32_t at = static_cast<std::int32_t>(index) - experts.shared_tiles, group = experts.tiles_per_group > 1 ? at / experts.tiles_per_group : at;
    const std::int32_t active = *experts.groups.num_active - (experts.shared_tiles > 0 ? 1 : 0), named = experts.groups.active_X[group];
    const std::int32_t expert = group < active ? named : 0;
    const std::int32_t first = (at - group * experts.tiles_per_group) * tile_rows;
    const std::int32_t rows = experts.groups.count_X[expert] - first, begin = experts.groups.begin_X[expert] + first;
    const std::byte* blob = experts.blob_X[expert];
    *job = JobOfForm(experts.form_X[expert], first_job + part, blob);
    *tile = {expert, rows < tile_rows ? rows : tile_rows, begin};
    return group < active && rows > 0;
  }

  __device__ bool FindShared(std::int32_t index, int part, RowTile* tile, Exl3Job* job) const {
    const std::int32_t first = index * tile_rows, rows = experts.shared_rows - first;
    *job = JobOfForm(experts.form_X[experts.shared], first_job + part, experts.blob_X[experts.shared]);
    *tile = {experts.shared, rows < tile_rows ? rows : tile_rows, experts.shared_begin + first};
    return true;
  }

  __device__ Exl3Job JobOfForm(std::int32_t form_index, int part, const std::byte* blob) const {
    if (!experts.forms) return InBlob(small_jobs[form_index * job_stride + part], blob);
    const LinearSpec& spec = *reinterpret_cast<const LinearSpec*>(experts.forms + form_index * experts.form_bytes + experts.spec_offset[part]);
    return spec.kind == LinearSpec::Kind::kExl3 ? Exl3JobOf(spec, blob) : Exl3Job();
  }
#endif

  // Slots of the transformed rows: tile i of part p has slots from (p * count + i) * tile_rows on.
  __host__ __device__ std::int64_t SlotOf(std::int64_t index, int part) const { return (part * count + index) * tile_rows; }
  __host__ __device__ std::int64_t slots() const { return parts * count * tile_rows; }
  // The same of large tiles, 128 or 64 each.
  __host__ __device__ std::int64_t LargeSlotOf(std::int64_t index, int part) const {
    return 64 * (part * (count + count_128) + index + (index < count_128 ? index : count_128));
  }
  __host__ __device__ std::int64_t large_slots() const { return 64 * parts * (count + count_128); }
};

// What a part has of its own: its rows, and where the results go. With Exl3Input::up, x is the gate.
struct Exl3Part {
  const std::uint16_t* x = nullptr;  // bf16 rows
  std::int64_t x_stride = 0;
  std::uint16_t* y_bf16 = nullptr;  // exactly one of these
  float* y_fp32 = nullptr;
  std::int64_t y_stride = 0;
};

// What all parts' inputs share.
struct Exl3Input {
  const std::int32_t* index = nullptr;  // row r of a part is row index[r] of x; null: row r
  const std::uint16_t* up = nullptr;    // not null: x[r] = bf16([weight *] silu(min(gate, limit)) * clamp(up, -limit, limit)), one part
  const float* weight = nullptr;        // [rows] or null
  float limit = 0.0f;                   // 0: no clamp
  const float* norm_weight = nullptr;   // not null: rms_norm of the rows first, which the product prepares itself
  float norm_eps = 0.0f;
};

// Scale and code sum of a row's 128-block, family I.
struct __align__(8) ScaleSum {
  float scale;
  std::int32_t sum;
};

// Codes of small tiles; per slot and tile of 16 inputs, in the order of RunReader's lanes: for each q the inputs 2q, 2q+1, 2q+8,
// 2q+9. int8 codes are words that repeat the byte four times, int16 the same with high and low bytes in a row each, halves are fp16.
struct SmallCodes {
  std::byte* codes = nullptr;        // [slots][terms][in/16] tiles
  ScaleSum* scale_sums = nullptr;    // [slots][in/128], family I
};

// What follows two parts, gate and up, in the same launch: the part after theirs, down, whose inputs are the codes of their SwiGLU. Small tiles.
struct Exl3Down {
  SmallCodes codes;               // slots are the rows; null: nothing follows
  std::int32_t in = 0;            // padded
  std::int32_t outputs = 0;       // blocks of 128, by the widest job
  std::int32_t* ready = nullptr;  // [tile][4 segments]: 128-blocks of inputs that are there; zero between calls
};

// Gate and up, then down, tile by tile: large tiles of down begin when their own inputs are there (exl3_relay.cuh).
struct Exl3Relay {
  std::int32_t* outputs = nullptr;  // [tile]: blocks of 128 outputs of gate and up that are stored; null: no relay
  std::int32_t* inputs = nullptr;   // [tile]: blocks of rows of down that are prepared
  std::int32_t awaited = 0;         // outputs of gate and up that a tile of down waits for; 0: this call is gate and up
};

// BF16 linears that a launch of small tiles takes along, if they get a place: they read what its linears read, and would be a launch of their own.
struct DenseBeside {
  static constexpr int kMax = 3;
  DenseLinear linears[kMax];
  std::int32_t count = 0;
  std::int32_t blocks = 0;  // of the launch, the first ones; 0: no place
  std::int32_t groups = 0, group_bytes = 0;  // groups of warps with eight columns each in a block, and their shared memory
};

// Shared memory of a block of small tiles: codes, scales and sums of the rows, sums of the product (SmallRows), a ring a warp. Byte offsets.
struct SmallLayout {
  std::int32_t code_row = 0, scale_sums = 0, sums = 0, rings = 0;
  std::int32_t group_bits = 0;  // log2 of the groups of warps that share a segment
};

// What every block of small tiles reads lies side by side, from the end of `dense` to the beginning of `tiles`: a block waits for each line of parameters that
// it reads first.
struct Exl3Call {
  Exl3Part parts[kExl3Parts];
  std::int32_t out = 0;                  // the widest job's, padded
  std::int32_t num_counts = 0;
  std::int32_t* counts = nullptr;        // large tiles: the preparation sets num_counts integers to zero
  std::int32_t* taken = nullptr;         // large tiles: of those, the tiles of a launch that blocks have taken beyond their first
  bool waits = true;                     // large tiles: the product waits for the kernel before it; false: for nobody, or for what the relay counts
  // Prepared rows of large tiles: [in/64][terms * slots][64] fp16 whose 16-byte chunks are permuted as wgmma reads them (wgmma_sm90.cuh).
  std::byte* codes = nullptr;
  float* scales = nullptr;               // large tiles: [in/128][slots]
  float* z = nullptr;                    // large tiles: [slots], the affine correction
  Exl3Relay relay;

  Exl3Down down;
  DenseBeside dense;
  bool prepared = true;                  // small tiles; false: the product prepares the rows itself
  bool shared_first = false;             // tiles of the shared expert need nothing of the kernel before: small tiles
  std::int32_t max_tile_rows = 0;        // no tile has more rows; at most tiles.tile_rows
  std::int32_t in = 0, in_features = 0;  // padded; stored
  std::int32_t first_output[kExl3Parts + 1] = {};  // blocks of 128 outputs of the parts before, by the widest job of each; the last of parts: of all
  Exl3Input input;
  std::int32_t* overflow = nullptr;
  SmallCodes small;                      // prepared rows of small tiles
  // Small tiles: [tile][out/128 of all parts], then the same of down: sums [tile_rows][4 segments][128], corrections [tile_rows][4]; words (lane_words.cuh),
  // zero between calls.
  std::uint32_t* partial = nullptr;
  SmallLayout layout;
  Exl3Tiles tiles;

#if defined(__CUDACC__)
  // Which row of x is the call's row `row`, and its weight.
  __device__ std::int64_t InputRow(std::int64_t row) const {
    if (!input.index) return row;
    return row < tiles.experts.shared_begin ? input.index[row] : row - tiles.experts.shared_begin;
  }
  __device__ float Weight(std::int64_t row) const { return input.weight && row < tiles.experts.shared_begin ? input.weight[row] : 1.0f; }
#endif

  __host__ __device__ std::int32_t outputs() const { return first_output[tiles.parts]; }
  __host__ __device__ int terms() const { return tiles.form == Exl3Form::kInt16 ? 2 : 1; }
};
static_assert(sizeof(Exl3Call) <= 4096 - 64);  // a kernel's parameters

inline constexpr int kExl3OwnRows = 2;      // rows that a product prepares itself: more, and one launch for all its blocks is cheaper
inline constexpr int kExl3NormInputs = 1280;  // of a row that a product norms itself: no queries have more
inline constexpr int kExl3Columns = 128;    // outputs of a block: one Hadamard block
inline constexpr int kExl3SmallSlots = 8;   // code rows of a small tile: the n of an m16n8 product

inline constexpr int kSmallStrips = 2;      // of 16 columns, which a warp of a small product has
inline constexpr int kSmallWarps = 4;       // that share the 128 outputs of its block
static_assert(kSmallWarps * kSmallStrips * 16 == kExl3Columns);

// Small products: stages of 128 inputs that a warp keeps on their way, and the shared memory that these take.
__host__ __device__ constexpr int SmallStages(int bits_x2) { return bits_x2 > 8 ? 2 : 3; }
__host__ __device__ constexpr int SmallRingBytes(int bits_x2) { return SmallStages(bits_x2) * kSmallStrips * 128 * bits_x2; }

// Words of Exl3Call::partial for 128 outputs of a small tile.
__host__ __device__ constexpr int SmallPartialWords(int tile_rows) { return 4 * tile_rows * (kExl3Columns + 1); }

// Each runs over tiles of the call. Defined in the .cu files named after them.
void LaunchExl3PrepareSmall(const Exl3Call& call, CudaStream& stream);
void LaunchExl3PrepareLarge(const Exl3Call& call, CudaStream& stream);
// `ring_bytes`: SmallRingBytes of the jobs' rates, the most.
void LaunchExl3SmallInteger(const Exl3Call& call, int ring_bytes, CudaStream& stream);
void LaunchExl3SmallHalf(const Exl3Call& call, int ring_bytes, CudaStream& stream);
// The tiles of 64 or 128 rows whose jobs have `bits_x2` (and codebook).
void LaunchExl3LargeInt8(const Exl3Call& call, int tile_rows, int bits_x2, CudaStream& stream);
void LaunchExl3LargeInt16(const Exl3Call& call, int tile_rows, int bits_x2, CudaStream& stream);
void LaunchExl3LargeHalf(const Exl3Call& call, int tile_rows, Codebook codebook, int bits_x2, CudaStream& stream);

}  // namespace lockstep::kernels
