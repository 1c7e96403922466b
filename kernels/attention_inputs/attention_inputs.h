// From an attention's projections to its queries and keys in one call. Contract: the steps of docs/numerics.md section 6 that the parts name; family F.
#pragma once

#include "kernels/compressor/compressor.h"
#include "kernels/device/stream.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/kv_rows/kv_rows.h"

namespace lockstep::kernels {

// A compressor's share: entries that the step completes, packed, and the rows that later steps pool, kept.
struct PooledRowsArgs {
  CompressorArgs compress;     // without entries: the latents are there already
  NormRopePackArgs pack;       // of the latents, one for each entry; entries that are none have nowhere to go
  StoreHistoryArgs history;    // into slots that no entry reads
};

// Rows of several kinds that do not depend on one another; what has no rows is left out. Latents that are pooled here are not defined afterwards.
struct AttentionInputsArgs {
  NormRopeArgs query;       // norm_rope, or rope alone where norm has no rows
  RopeArgs index_query;     // rope
  NormRopePackArgs window;  // norm_rope_pack
  PooledRowsArgs pooled[2];  // compress, store_history, norm_rope_pack: of entries and of index keys
  SinkhornArgs mix;          // sinkhorn, which only the end of the site waits for

  bool empty() const { return query.rope.rows + index_query.rows + window.rope.rows + OfPooled(pooled[0]) + OfPooled(pooled[1]) + mix.rows == 0; }

 private:
  static std::int64_t OfPooled(const PooledRowsArgs& p) { return p.pack.rope.rows + p.history.rows; }
};

}  // namespace lockstep::kernels
