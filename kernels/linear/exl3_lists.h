// The row tiles of the host's EXL3 jobs, and the way of jobs and tiles to the kernels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/linear/exl3_cuda.h"
#include "kernels/linear/linear_cuda.h"

namespace lockstep::kernels {

// Rows of a small tile.
inline int SmallRows(Exl3Form form) { return form == Exl3Form::kInt16 ? kExl3SmallSlots / 2 : kExl3SmallSlots; }

// The tiles of some runs; of the large ones the first count_128 have more than 64 rows.
struct SplitTiles {
  std::vector<RowTile> small, large;
  std::int64_t count_128 = 0;
};

// Large tiles of up to `large_rows`, then what is left in the smallest that holds it. `small_rows`: the most that small tiles take of a run.
SplitTiles SplitRows(const std::vector<RowRun>& runs, Exl3Form form, std::int64_t small_rows, std::int64_t large_rows);
// The same for `in` inputs, with small tiles where they are worth launches of their own.
SplitTiles Split(const std::vector<RowRun>& runs, Exl3Form form, std::int32_t in);

std::int32_t MostRows(const std::vector<RowTile>& tiles);

// Jobs and tiles where the kernels find them: in the parameters if they fit, else in device memory, to which all lists of a call go in one copy.
class Lists {
 public:
  // `list` must stay where it is until Send.
  void Add(const std::vector<Exl3Job>& jobs, const std::vector<RowTile>& tiles, Exl3Tiles* list);
  // Into scratch slot kLinearJobs, if there is something to send.
  void Send(CudaStream& stream) const;

 private:
  struct Place {
    Exl3Tiles* list;
    std::size_t jobs, tiles;  // bytes
  };

  template <class T>
  std::size_t Append(const std::vector<T>& values);

  std::vector<std::byte> bytes_;
  std::vector<Place> places_;
};

}  // namespace lockstep::kernels
