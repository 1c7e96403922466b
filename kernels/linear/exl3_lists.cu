#include "kernels/linear/exl3_lists.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "kernels/device/cuda_stream.cuh"
#include "kernels/linear/linear_cuda_slots.h"

namespace lockstep::kernels {

SplitTiles SplitRows(const std::vector<RowRun>& runs, Exl3Form form, std::int64_t small_rows, std::int64_t large_rows) {
  SplitTiles split;
  std::vector<RowTile> tiles_64;
  for (const RowRun& run : runs) {
    for (std::int64_t done = 0; done < run.rows;) {
      const std::int64_t left = run.rows - done;
      const bool small = left <= small_rows;  // int16: two tiles
      const std::int64_t rows = std::min<std::int64_t>(left, small ? SmallRows(form) : large_rows);
      (small ? split.small : rows <= 64 ? tiles_64 : split.large).push_back({run.job, static_cast<std::int32_t>(rows), run.begin + done});
      done += rows;
    }
  }
  split.count_128 = static_cast<std::int64_t>(split.large.size());
  split.large.insert(split.large.end(), tiles_64.begin(), tiles_64.end());
  return split;
}

// Eight rows cost about as much in a large tile as in a small one, so a few beside many do not get launches of their own.
SplitTiles Split(const std::vector<RowRun>& runs, Exl3Form form, std::int32_t in) {
  constexpr std::size_t kMany = 4;                    // large tiles for one small
  const std::int64_t large_rows = in < 256 ? 64 : 128;  // the ring of 128 rows holds inputs of two tiles at most
  SplitTiles split = SplitRows(runs, form, kExl3SmallSlots, large_rows);
  return kMany * split.small.size() > split.large.size() ? split : SplitRows(runs, form, 0, large_rows);
}

std::int32_t MostRows(const std::vector<RowTile>& tiles) {
  std::int32_t most = 0;
  for (const RowTile& tile : tiles) most = std::max(most, tile.rows);
  return most;
}

void Lists::Add(const std::vector<Exl3Job>& jobs, const std::vector<RowTile>& tiles, Exl3Tiles* list) {
  list->count = static_cast<std::int64_t>(tiles.size());
  if (tiles.empty()) return;
  if (jobs.size() <= std::size(list->small_jobs) && tiles.size() <= std::size(list->small_tiles)) {
    std::copy(jobs.begin(), jobs.end(), list->small_jobs);
    std::copy(tiles.begin(), tiles.end(), list->small_tiles);
    return;
  }
  const std::size_t jobs_at = Append(jobs);
  places_.push_back({list, jobs_at, Append(tiles)});
}

void Lists::Send(CudaStream& stream) const {
  if (places_.empty()) return;
  const std::byte* memory = stream.Upload(kLinearJobs, bytes_.data(), bytes_.size());
  for (const Place& place : places_) {
    place.list->jobs = reinterpret_cast<const Exl3Job*>(memory + place.jobs);
    place.list->tiles = reinterpret_cast<const RowTile*>(memory + place.tiles);
  }
}

template <class T>
std::size_t Lists::Append(const std::vector<T>& values) {
  static_assert(alignof(T) <= 8 && sizeof(T) % 8 == 0);
  const std::size_t at = bytes_.size();
  bytes_.resize(at + values.size() * sizeof(T));
  std::memcpy(bytes_.data() + at, values.data(), values.size() * sizeof(T));
  return at;
}

}  // namespace lockstep::kernels
