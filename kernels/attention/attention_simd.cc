// Compiled once per instruction set. One token against its keys in blocks of 64 slots, one running softmax a head;
// docs/numerics.md section 6, Attention.
#include "kernels/attention/attention_rows.h"
#include "kernels/contract/exact_math_vec.h"
#include "kernels/contract/fold.h"
#include "kernels/contract/mma_emulate.h"
#include "kernels/kv_rows/kv_pack_rows.h"

namespace lockstep::kernels::LOCKSTEP_ISA {
namespace {

using namespace lockstep::contract;

constexpr int kSlots = 64;
constexpr int kPanels = kSlots / 16;
constexpr int kGroup = kAttentionHeadGroup;

// Carves aligned arrays out of the worker's scratch; with a null base it only counts.
struct Carver {
  std::byte* base;
  std::size_t used = 0;
  template <class T>
  T* Take(std::int64_t count) {
    used = (used + 63) / 64 * 64;
    T* p = base ? reinterpret_cast<T*>(base + used) : nullptr;
    used += static_cast<std::size_t>(count) * sizeof(T);
    return p;
  }
};

struct Scratch {
  std::uint16_t* rows;        // unpacked keys [64][D]
  std::uint16_t* columns;     // one panel's bits, [D or 64][16]
  float* key_values;          // panels of 16 keys: [4][D][16]
  std::int32_t* key_exponents;  // [4][D/2][16]
  float* dim_values;          // panels of 16 dims: [D/16][64][16]
  std::int32_t* dim_exponents;  // [D/16][32][16]
  float* q_values;            // [group][D]
  std::int32_t* q_exponents;  // [group][D/2]
  float* score;               // [group][64]
  float* w_values;            // [group][64]
  std::int32_t* w_exponents;  // [group][32]
  float* out;                 // [group][D padded]
  std::size_t bytes;

  Scratch(std::byte* base, std::int64_t head_dim) {
    const std::int64_t d = (head_dim + 15) / 16 * 16;
    Carver carve{base};
    rows = carve.Take<std::uint16_t>(kSlots * d);
    columns = carve.Take<std::uint16_t>(16 * (d > kSlots ? d : kSlots));
    key_values = carve.Take<float>(kSlots * d);
    key_exponents = carve.Take<std::int32_t>(kSlots * d / 2);
    dim_values = carve.Take<float>(kSlots * d);
    dim_exponents = carve.Take<std::int32_t>(kSlots * d / 2);
    q_values = carve.Take<float>(kGroup * d);
    q_exponents = carve.Take<std::int32_t>(kGroup * d / 2);
    score = carve.Take<float>(kGroup * kSlots);
    w_values = carve.Take<float>(kGroup * kSlots);
    w_exponents = carve.Take<std::int32_t>(kGroup * kSlots / 2);
    out = carve.Take<float>(kGroup * d);
    bytes = carve.used;
  }
};

// One block of the token's list: row addresses, null where the slot is empty.
struct BlockRows {
  const RowFormat* format;
  const std::byte* row[kSlots];
};

// Keys unpacked into the panels that the products need. Empty slots become zeros.
void LoadBlock(const BlockRows& block, std::int64_t dim, std::int64_t padded, bool mma, Scratch& s) {
  for (int slot = 0; slot < kSlots; ++slot) {
    std::uint16_t* row = s.rows + slot * padded;
    if (block.row[slot]) {
      UnpackRow(*block.format, block.row[slot], row);
    } else {
      __builtin_memset(row, 0, static_cast<std::size_t>(dim) * sizeof(row[0]));
    }
    for (std::int64_t d = dim; d < padded; ++d) row[d] = 0;
  }
  if (!mma) {
    for (std::int64_t i = 0; i < kSlots * padded; i += 16) Store(LoadBF16(s.rows + i), s.key_values + i);  // [64][padded]
    return;
  }
  for (int panel = 0; panel < kPanels; ++panel) {
    for (std::int64_t d = 0; d < padded; ++d) {
      for (int i = 0; i < 16; ++i) s.columns[16 * d + i] = s.rows[(16 * panel + i) * padded + d];
    }
    DecodeMmaPanel(MmaFormat::kBF16, s.columns, padded, s.key_values + panel * padded * 16, s.key_exponents + panel * padded * 8);
  }
  for (std::int64_t d = 0; d < padded; d += 16) {
    for (int slot = 0; slot < kSlots; ++slot) __builtin_memcpy(s.columns + 16 * slot, s.rows + slot * padded + d, 32);
    DecodeMmaPanel(MmaFormat::kBF16, s.columns, kSlots, s.dim_values + d * kSlots, s.dim_exponents + d * kSlots / 2);
  }
}

// --- products --------------------------------------------------------------------------------------------------------

// c[row][lane] continues with the row's k products against the panel's columns, four rows at a time.
template <int kRows>
void AccumulateRows(Profile profile, const float* values, const std::int32_t* exponents, std::int64_t k, MmaDecoded panel, float* c,
                    std::int64_t c_stride) {
  MmaDecoded a[kRows];
  F32x16 sum[kRows];
  for (int r = 0; r < kRows; ++r) {
    a[r] = {values + r * k, exponents + r * k / 2};
    sum[r] = Load(c + r * c_stride);
  }
  MmaAccumulateLanes(profile, a, panel, k, sum);
  for (int r = 0; r < kRows; ++r) Store(sum[r], c + r * c_stride);
}

void Accumulate(Profile profile, const float* values, const std::int32_t* exponents, std::int64_t k, int rows, MmaDecoded panel, float* c,
                std::int64_t c_stride) {
  int r = 0;
  for (; r + 4 <= rows; r += 4) AccumulateRows<4>(profile, values + r * k, exponents + r * k / 2, k, panel, c + r * c_stride, c_stride);
  for (; r < rows; ++r) AccumulateRows<1>(profile, values + r * k, exponents + r * k / 2, k, panel, c + r * c_stride, c_stride);
}

void Scores(Profile profile, const Scratch& s, std::int64_t padded, int heads) {
  for (int h = 0; h < heads; ++h) {
    for (int i = 0; i < kSlots; i += 16) Store(F32x16(0.0f), s.score + h * kSlots + i);
  }
  for (int panel = 0; panel < kPanels; ++panel) {
    Accumulate(profile, s.q_values, s.q_exponents, padded, heads, {s.key_values + panel * padded * 16, s.key_exponents + panel * padded * 8},
               s.score + 16 * panel, kSlots);
  }
}

// Profile fma: 16 lanes over the channels and their fold.
void ScoresFma(const Scratch& s, std::int64_t dim, std::int64_t padded, int heads) {
  for (int h = 0; h < heads; ++h) {
    for (int slot = 0; slot < kSlots; ++slot) {
      F32x16 lanes(0.0f);
      const float *q = s.q_values + h * padded, *key = s.key_values + slot * padded;
      for (std::int64_t d = 0; d < dim; d += 16) {
        const Mask16 inside = FirstLanes(dim - d < 16 ? static_cast<int>(dim - d) : 16);
        lanes = Select(inside, Fma(Load(q + d), Load(key + d), lanes), lanes);
      }
      s.score[h * kSlots + slot] = Fold(lanes);
    }
  }
}

// out[head][dim] continues over the block's 64 weighted values.
void WeightedValues(Profile profile, const Scratch& s, std::int64_t padded, int heads) {
  for (std::int64_t d = 0; d < padded; d += 16) {
    Accumulate(profile, s.w_values, s.w_exponents, kSlots, heads, {s.dim_values + d * kSlots, s.dim_exponents + d * kSlots / 2}, s.out + d, padded);
  }
}

void WeightedValuesFma(const Scratch& s, std::int64_t padded, int heads) {
  for (int h = 0; h < heads; ++h) {
    for (std::int64_t d = 0; d < padded; d += 16) {
      F32x16 out = Load(s.out + h * padded + d);
      for (int slot = 0; slot < kSlots; ++slot) out = Fma(F32x16(s.w_values[h * kSlots + slot]), Load(s.key_values + slot * padded + d), out);
      Store(out, s.out + h * padded + d);
    }
  }
}

// --- softmax ---------------------------------------------------------------------------------------------------------

struct Running {
  float max, denominator;
};

constexpr float kNothing = -__builtin_inff();

// Scores to weights of one head; rescales what was summed before.
void Weigh(const BlockRows& block, float scale, std::int64_t padded, int head, const Scratch& s, bool mma, Running& run) {
  float* score = s.score + head * kSlots;
  float top = run.max;
  for (int slot = 0; slot < kSlots; ++slot) {
    score[slot] = block.row[slot] ? Mul(score[slot], scale) : kNothing;
    top = score[slot] > top ? score[slot] : top;
  }
  const float rescale = run.max == kNothing ? 0.0f : Exp(Sub(run.max, top));
  F32x16 weight[kPanels];
  std::uint16_t bits[kSlots];
  for (int i = 0; i < kPanels; ++i) {
    weight[i] = Exp(Sub(Load(score + 16 * i), F32x16(top)));  // empty slots: Exp(-infinity) = +0
    StoreBF16(weight[i], bits + 16 * i);
  }
  const float sum = Fold(Add(Add(weight[0], weight[2]), Add(weight[1], weight[3])));
  run.denominator = Fma(run.denominator, rescale, sum);
  run.max = top;
  if (mma) {
    DecodeMmaRow(MmaFormat::kBF16, bits, kSlots, s.w_values + head * kSlots, s.w_exponents + head * kSlots / 2);
  } else {
    for (int i = 0; i < kSlots; i += 16) Store(LoadBF16(bits + i), s.w_values + head * kSlots + i);
  }
  float* out = s.out + head * padded;
  for (std::int64_t d = 0; d < padded; d += 16) Store(Mul(Load(out + d), F32x16(rescale)), out + d);
}

struct RowAttention {
  const AttentionArgs& a;
  Profile profile;
  bool mma;
  std::int64_t t;
  int head_begin, heads;
  std::int64_t dim, padded;
  float scale;
  Scratch s;
  Running run[kGroup];

  RowAttention(const AttentionArgs& args, Profile p, std::int64_t row, int begin, int end, std::byte* scratch)
      : a(args), profile(p), mma(p != Profile::kFma), t(row), head_begin(begin), heads(end - begin), dim(args.head_dim), padded((dim + 15) / 16 * 16),
        scale(static_cast<float>(1.0 / __builtin_sqrt(static_cast<double>(args.head_dim)))), s(scratch, dim) {
    std::uint16_t* padded_row = s.columns;  // not yet in use
    for (int h = 0; h < heads; ++h) {
      __builtin_memset(padded_row, 0, static_cast<std::size_t>(padded) * 2);
      __builtin_memcpy(padded_row, a.q_THD + (t * a.heads + head_begin + h) * dim, static_cast<std::size_t>(dim) * 2);
      if (mma) {
        DecodeMmaRow(MmaFormat::kBF16, padded_row, padded, s.q_values + h * padded, s.q_exponents + h * padded / 2);
      } else {
        for (std::int64_t d = 0; d < padded; d += 16) Store(LoadBF16(padded_row + d), s.q_values + h * padded + d);
      }
      for (std::int64_t d = 0; d < padded; d += 16) Store(F32x16(0.0f), s.out + h * padded + d);
      run[h] = {kNothing, 0.0f};
    }
  }

  void Block(const BlockRows& block) {
    LoadBlock(block, dim, padded, mma, s);
    mma ? Scores(profile, s, padded, heads) : ScoresFma(s, dim, padded, heads);
    for (int h = 0; h < heads; ++h) Weigh(block, scale, padded, h, s, mma, run[h]);
    mma ? WeightedValues(profile, s, padded, heads) : WeightedValuesFma(s, padded, heads);
  }

  void Window() {
    const AttentionRow& row = a.row_T[t];
    const std::int64_t first = row.position - a.window + 1 > 0 ? row.position - a.window + 1 : 0;
    for (std::int64_t base = first / kSlots * kSlots; base <= row.position; base += kSlots) {
      BlockRows block{&a.window_format, {}};
      for (int i = 0; i < kSlots; ++i) {
        const std::int64_t p = base + i;
        block.row[i] = p >= first && p <= row.position ? row.window.Row(p) : nullptr;
      }
      Block(block);
    }
  }

  void Compressed() {
    const AttentionRow& row = a.row_T[t];
    const std::int32_t* selected = a.all_visible ? nullptr : a.selected_TK ? a.selected_TK + t * a.top_k : nullptr;
    const std::int64_t count = a.all_visible ? row.visible : selected ? a.count_T[t] : 0;
    for (std::int64_t begin = 0; begin < count; begin += kSlots) {
      BlockRows block{&a.compressed_format, {}};
      for (int i = 0; i < kSlots && begin + i < count; ++i) block.row[i] = row.compressed.Row(selected ? selected[begin + i] : begin + i);
      Block(block);
    }
  }

  void Finish() {
    for (int h = 0; h < heads; ++h) {
      const float denominator = Add(run[h].denominator, Exp(Sub(a.sink_H[head_begin + h], run[h].max)));
      std::uint16_t* out = a.out_THD + (t * a.heads + head_begin + h) * dim;
      for (std::int64_t d = 0; d < dim; d += 16) {
        StoreBF16N(Div(Load(s.out + h * padded + d), F32x16(denominator)), out + d, dim - d < 16 ? static_cast<int>(dim - d) : 16);
      }
    }
  }
};

}  // namespace

std::size_t AttentionScratchBytes(int head_dim) { return Scratch(nullptr, head_dim).bytes; }

void AttendRow(const AttentionArgs& a, Profile profile, std::int64_t t, int head_begin, int head_end, std::byte* scratch) {
  RowAttention attention(a, profile, t, head_begin, head_end, scratch);
  attention.Window();
  attention.Compressed();
  attention.Finish();
}

}  // namespace lockstep::kernels::LOCKSTEP_ISA
