// EXL3 products of up to eight code rows: decode, short suffixes, experts with few picks. A block takes 128 outputs, one K segment and one tile;
// each warp streams two 16-column strips through its own ring in shared memory and decodes them straight into MMA fragments, with the weights'
// columns as the m of the product and the rows as its n. The last of an output's four segments to arrive folds them and finishes the rows.
// All rates of a form in one kernel, so that matrices of any mix share a launch.
#pragma once

#include <algorithm>
#include <type_traits>

#include "kernels/contract/segments.h"
#include "kernels/device/launch.cuh"
#include "kernels/linear/async_copy.cuh"
#include "kernels/linear/exl3_epilogue.cuh"
#include "kernels/linear/imma_sm80.cuh"
#include "kernels/linear/mma_sm80.cuh"
#include "kernels/linear/trellis_cuda.cuh"

namespace lockstep::kernels {

inline constexpr int kSmallWarps = 4, kSmallStrips = 2, kSmallStages = 3, kSmallBlocks = 8;  // kSmallBlocks: of a multiprocessor at once
static_assert(kSmallWarps * kSmallStrips * 16 == kExl3Columns);

// Bytes of a code row's tile of 16 inputs, and of a code row's segment in shared memory: lanes of a row apart by whole phases of the banks.
template <Exl3Form kForm>
inline constexpr int kCodeTileBytes = kForm == Exl3Form::kHalf ? 32 : 64;
template <Exl3Form kForm>
__host__ __device__ constexpr std::int64_t CodeRowBytes(std::int64_t blocks) {
  return blocks * 8 * kCodeTileBytes<kForm> + kCodeTileBytes<kForm>;
}

__host__ __device__ inline std::int64_t MaxSegmentBlocks(std::int64_t in) { return (in / 128 + contract::kSegments - 1) / contract::kSegments; }

inline std::size_t StageBytes(int bits_x2) { return static_cast<std::size_t>(kSmallStrips * 128 * bits_x2); }

// Where a block works.
struct SmallPlace {
  RowTile tile;
  Exl3Job job;
  std::int64_t slot;
  std::int64_t first_block;  // of the segment
  int blocks;
  std::int64_t column;  // first output of the block
};

// Family I: bytes of the products times code bytes, exact in int32; -510 times the code sum turns b into b - 510.
template <int kTerms>
class IntegerSums {
 public:
  static constexpr Exl3Form kForm = kTerms == 2 ? Exl3Form::kInt16 : Exl3Form::kInt8;

  __device__ IntegerSums(const Exl3Call& call, const SmallPlace& place) {
    const int q = threadIdx.x & 3;
    const std::int64_t blocks = call.in / 128;
    rows_ = place.tile.rows - (kTerms == 2 ? q : 2 * q);
    scale_sum_ = call.scale_sums + (place.slot + (kTerms == 2 ? q : 2 * q)) * blocks + place.first_block;
    row_blocks_ = static_cast<int>(blocks);
#pragma unroll
    for (int s = 0; s < kSmallStrips; ++s) y_[s][0] = y_[s][1] = y_[s][2] = y_[s][3] = 0.0f;
  }

  __device__ void BeginBlock() {
#pragma unroll
    for (int i = 0; i < 2 / kTerms; ++i) now_[i] = i < rows_ ? scale_sum_[i * row_blocks_] : ScaleSum{0.0f, 0};
    ++scale_sum_;
#pragma unroll
    for (int s = 0; s < kSmallStrips; ++s) sum_[s][0] = sum_[s][1] = sum_[s][2] = sum_[s][3] = 0;
  }

  __device__ void Multiply(int strip, const std::uint32_t (&state)[8], const uint4& codes) {
    std::uint32_t p[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) p[j] = Mul1Product(state[j]);
    MmaU8S8(sum_[strip], p[0], p[4], p[1], p[5], codes.x, codes.y);
    MmaU8S8(sum_[strip], p[2], p[6], p[3], p[7], codes.z, codes.w);
  }

  // int16: the columns of a row's high and low parts lie side by side.
  __device__ void EndBlock() {
#pragma unroll
    for (int s = 0; s < kSmallStrips; ++s) {
#pragma unroll
      for (int i = 0; i < 4; i += kTerms) {
        const ScaleSum& row = now_[kTerms == 2 ? 0 : i & 1];
        // int16: the high sum times 256 may leave int32, the result does not; so modulo 2^32.
        const unsigned sum = kTerms == 2 ? static_cast<unsigned>(sum_[s][i]) * 256u + static_cast<unsigned>(sum_[s][i + kTerms - 1]) : static_cast<unsigned>(sum_[s][i]);
        const int exact = static_cast<int>(sum - 510u * static_cast<unsigned>(row.sum));
        y_[s][i] = contract::Fma(__int2float_rn(exact), row.scale, y_[s][i]);
      }
    }
  }

  __device__ float Result(int strip, int i) const { return y_[strip][i]; }

 private:
  int sum_[kSmallStrips][4];
  float y_[kSmallStrips][4];  // [0, 1]: column g of rows 2q, 2q+1 (int16: [0], row q); [2, 3]: column g+8
  ScaleSum now_[2 / kTerms];
  const ScaleSum* scale_sum_;
  int rows_, row_blocks_;
};

// Family H: fp16 weights through MMA blocks that run on over the segment.
template <WeightForm kWeight>
class HalfSums {
 public:
  static constexpr Exl3Form kForm = Exl3Form::kHalf;

  __device__ HalfSums(const Exl3Call&, const SmallPlace&) {
#pragma unroll
    for (int s = 0; s < kSmallStrips; ++s) sum_[s][0] = sum_[s][1] = sum_[s][2] = sum_[s][3] = 0.0f;
  }
  __device__ void BeginBlock() {}
  __device__ void Multiply(int strip, const std::uint32_t (&state)[8], const uint2& codes) {
    FragmentA weights;
    weights.a[0] = DecodePair<kWeight>(state[0], state[1]);
    weights.a[1] = DecodePair<kWeight>(state[4], state[5]);
    weights.a[2] = DecodePair<kWeight>(state[2], state[3]);
    weights.a[3] = DecodePair<kWeight>(state[6], state[7]);
    MmaF16(sum_[strip], weights, codes.x, codes.y);
  }
  __device__ void EndBlock() {}
  __device__ float Result(int strip, int i) const { return sum_[strip][i]; }

 private:
  float sum_[kSmallStrips][4];
};

// The block's code rows of its segment, to shared memory; the caller commits and waits.
template <Exl3Form kForm>
__device__ void CopyCodes(const Exl3Call& call, const SmallPlace& place, std::byte* shared) {
  const int chunks = place.blocks * 8 * kCodeTileBytes<kForm> / 16, rows = call.terms() * place.tile.rows;
  const std::int64_t row_bytes = call.in / 16 * kCodeTileBytes<kForm>, to_bytes = CodeRowBytes<kForm>(MaxSegmentBlocks(call.in));
  const std::byte* from = call.codes + call.terms() * place.slot * row_bytes + place.first_block * 8 * kCodeTileBytes<kForm>;
  for (int i = static_cast<int>(threadIdx.x); i < rows * chunks; i += 32 * kSmallWarps) {
    const int row = i / chunks, chunk = i % chunks;
    CopyAsync16(shared + row * to_bytes + chunk * 16, from + row * row_bytes + chunk * 16);
  }
}

// A warp's way through its two strips: half a warp copies each, 128 inputs a step.
template <int kB2>
class StripStream {
 public:
  static constexpr int kStage = kSmallStrips * 128 * kB2;  // bytes

  __device__ StripStream(const std::uint32_t* strips, std::int64_t strip_words, std::byte* ring) {
    const int lane = threadIdx.x & 31;
    from_ = reinterpret_cast<const std::byte*>(strips + lane / 16 * strip_words) + lane % 16 * 16;
    to_ = ring + lane / 16 * (kStage / kSmallStrips) + lane % 16 * 16;
  }

  // The next 128 inputs to byte `at` of the ring.
  __device__ void Copy(int at) {
    constexpr int kChunks = 8 * kB2;  // of a strip
#pragma unroll
    for (int i = 0; i < (kChunks + 15) / 16; ++i) {
      if (16 * (i + 1) <= kChunks || 16 * i + static_cast<int>(threadIdx.x) % 16 < kChunks) CopyAsync16(to_ + at + i * 256, from_ + i * 256);
    }
    from_ += kStage / kSmallStrips;
  }

 private:
  const std::byte* from_;
  std::byte* to_;
};

template <int kB2, class Sums>
__device__ void SmallProduct(const Exl3Call& call, const SmallPlace& place, float* partial) {
  extern __shared__ uint4 shared_words[];
  auto* shared = reinterpret_cast<std::byte*>(shared_words);
  using Stream = StripStream<kB2>;
  constexpr int kLast = (kSmallStages - 1) * Stream::kStage, kTileWords = 4 * kB2;
  const int warp = threadIdx.x / 32, lane = threadIdx.x & 31, g = lane / 4, q = lane & 3;
  const std::int64_t code_row = CodeRowBytes<Sums::kForm>(MaxSegmentBlocks(call.in)), strip_words = call.in / 16 * kTileWords;
  std::byte* ring = shared + call.max_tile_rows * call.terms() * code_row + warp * kSmallStages * Stream::kStage;
  Stream stream(place.job.tiles + (place.column / 16 + kSmallStrips * warp) * strip_words + place.first_block * 8 * kTileWords, strip_words, ring);

  // Weights may be fetched while the preparation still runs; the codes come with the last of these groups.
#pragma unroll
  for (int s = 0; s < kSmallStages - 1; ++s) {
    if (s > 0) CopyCommit();
    if (s < place.blocks) stream.Copy(s * Stream::kStage);
  }
  WaitForKernelsBefore();
  CopyCodes<Sums::kForm>(call, place, shared);
  CopyCommit();
  CopyWait<0>();
  __syncthreads();

  const RunReader<kB2> reader;
  Sums sums(call, place);
  using Codes = std::conditional_t<Sums::kForm == Exl3Form::kHalf, uint2, uint4>;
  const bool has_row = g < call.terms() * place.tile.rows;
  const auto* codes = reinterpret_cast<const Codes*>(shared + g * code_row) + q;
  int now = 0, before = kLast;  // bytes into the ring
  for (int block = 0; block < place.blocks; ++block) {
    CopyWait<kSmallStages - 2>();
    __syncwarp();
    if (block + kSmallStages - 1 < place.blocks) stream.Copy(before);
    CopyCommit();
    sums.BeginBlock();
    const auto* words = reinterpret_cast<const std::uint32_t*>(ring + now);
#pragma unroll
    for (int tile = 0; tile < 8; ++tile) {
      Codes row_codes = {};
      if (has_row) row_codes = codes[tile * 4];
#pragma unroll
      for (int strip = 0; strip < kSmallStrips; ++strip) {
        std::uint32_t state[8];
        reader.States(words + (strip * 8 + tile) * kTileWords, state);
        sums.Multiply(strip, state, row_codes);
      }
    }
    sums.EndBlock();
    codes += 32;
    before = now;
    now = now == kLast ? 0 : now + Stream::kStage;
  }

#pragma unroll
  for (int strip = 0; strip < kSmallStrips; ++strip) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = Sums::kForm == Exl3Form::kInt16 ? q : 2 * q + (i & 1), column = (kSmallStrips * warp + strip) * 16 + g + (i < 2 ? 0 : 8);
      if ((Sums::kForm != Exl3Form::kInt16 || (i & 1) == 0) && row < place.tile.rows) partial[row * kExl3Columns + column] = sums.Result(strip, i);
    }
  }
}

// Runs `Product<twice the bits>` of a job.
template <class Sums>
__device__ void SmallProductOfRate(const Exl3Call& call, const SmallPlace& place, float* partial) {
  switch (place.job.bits_x2) {
    case 2: return SmallProduct<2, Sums>(call, place, partial);
    case 3: return SmallProduct<3, Sums>(call, place, partial);
    case 4: return SmallProduct<4, Sums>(call, place, partial);
    case 5: return SmallProduct<5, Sums>(call, place, partial);
    case 6: return SmallProduct<6, Sums>(call, place, partial);
    case 7: return SmallProduct<7, Sums>(call, place, partial);
    case 8: return SmallProduct<8, Sums>(call, place, partial);
    case 10: return SmallProduct<10, Sums>(call, place, partial);
    case 12: return SmallProduct<12, Sums>(call, place, partial);
    case 14: return SmallProduct<14, Sums>(call, place, partial);
    default: return SmallProduct<16, Sums>(call, place, partial);
  }
}

// True in the block that arrives last of an output's segments; what the others wrote is then visible to it.
__device__ inline bool LastToArrive(std::int32_t* arrivals, int expected) {
  __shared__ int ticket;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    ticket = atomicAdd(arrivals, 1);
    if (ticket == expected - 1) *arrivals = 0;
  }
  __syncthreads();
  if (ticket != expected - 1) return false;
  __threadfence();
  return true;
}

// Block (segment + 4 * (128 outputs), tile, part). `Product(call, place, partial)` writes the segment's sums [rows][128].
template <bool kInteger, class Product>
__device__ void SmallBlock(const Exl3Call& call, std::int64_t first_tile, Product product) {
  StartNextKernel();
  const std::int64_t index = first_tile + blockIdx.y;
  const int part = static_cast<int>(blockIdx.z), segment = static_cast<int>(blockIdx.x) % contract::kSegments;
  SmallPlace place;
  if (!call.tiles.Find(index, part, &place.tile, &place.job)) {
    WaitForKernelsBefore();  // this kernel must not end before the one before it
    return;
  }
  const std::int64_t column_block = blockIdx.x / contract::kSegments;
  const contract::SegmentRange range = contract::SegmentOf(call.in, segment);
  place.slot = call.tiles.SlotOf(index, part);
  place.first_block = range.begin / 128;
  place.blocks = static_cast<int>((range.end - range.begin) / 128);
  place.column = column_block * kExl3Columns;
  const std::int64_t output = (part * call.tiles.count + index) * (call.out / kExl3Columns) + column_block;
  const std::int64_t segment_size = call.tiles.tile_rows * kExl3Columns;
  float* partial = call.partial + output * contract::kSegments * segment_size;
  product(call, place, partial + segment * segment_size);

  if (!LastToArrive(call.arrivals + output, contract::kSegments)) return;
  const int lane = threadIdx.x & 31;
  for (int row = threadIdx.x / 32; row < place.tile.rows; row += kSmallWarps) {
    float4 s[contract::kSegments];
#pragma unroll
    for (int i = 0; i < contract::kSegments; ++i) s[i] = __ldcg(reinterpret_cast<const float4*>(partial + i * segment_size + row * kExl3Columns) + lane);
    float v[4] = {contract::FoldSegments(s[0].x, s[1].x, s[2].x, s[3].x), contract::FoldSegments(s[0].y, s[1].y, s[2].y, s[3].y),
                  contract::FoldSegments(s[0].z, s[1].z, s[2].z, s[3].z), contract::FoldSegments(s[0].w, s[1].w, s[2].w, s[3].w)};
    FinishRow<kInteger>(call, place.job, part, place.tile.begin + row, place.column, kInteger ? call.z[place.slot + row] : 0.0f, v);
  }
}

// Launches `kernel` over all tiles of the call with room for the widest rate among its jobs.
template <class Kernel>
void LaunchSmall(Kernel* kernel, const Exl3Call& call, std::int64_t code_row_bytes, int max_bits_x2, CudaStream& stream) {
  const std::size_t shared = static_cast<std::size_t>(call.max_tile_rows * call.terms() * code_row_bytes) + kSmallWarps * kSmallStages * StageBytes(max_bits_x2);
  CheckCuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)), "exl3 product: shared memory");
  constexpr std::int64_t kMaxGridY = 65535;
  for (std::int64_t begin = 0; begin < call.tiles.count; begin += kMaxGridY) {
    const dim3 grid(static_cast<unsigned>(call.out / kExl3Columns * contract::kSegments), static_cast<unsigned>(std::min(kMaxGridY, call.tiles.count - begin)),
                    static_cast<unsigned>(call.tiles.parts));
    Launch(kernel, grid, 32 * kSmallWarps, shared, stream, call, begin);
  }
  CheckLaunch("exl3 product of few rows");
}

}  // namespace lockstep::kernels
