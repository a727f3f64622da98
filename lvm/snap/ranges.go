package snap

import (
	"slices"

	"softiser/blockdev"
)

// ranges lists the chunks with exceptions as merged extents, clipped to size.
func (st *Store) ranges(size int64) []blockdev.Extent {
	old := make([]uint64, 0, len(st.table))
	for c := range st.table {
		old = append(old, c)
	}
	slices.Sort(old)
	var out []blockdev.Extent
	for _, c := range old {
		at := int64(c) * st.chunk
		if at >= size {
			break
		}
		n := min(st.chunk, size-at)
		if k := len(out); k > 0 && out[k-1].Off+out[k-1].Len == at {
			out[k-1].Len += n
			continue
		}
		out = append(out, blockdev.Extent{Off: at, Len: n, Data: true})
	}
	return out
}
