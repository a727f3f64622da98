package lvm

import (
	"bytes"
	"context"
	"slices"

	"softiser/blockdev"
	"softiser/lvm/thin"
)

// merged sorts extents and joins those that touch or overlap.
func merged(es []blockdev.Extent) []blockdev.Extent {
	slices.SortFunc(es, func(a, b blockdev.Extent) int {
		switch {
		case a.Off < b.Off:
			return -1
		case a.Off > b.Off:
			return 1
		}
		return 0
	})
	var out []blockdev.Extent
	for _, e := range es {
		if k := len(out); k > 0 && e.Off <= out[k-1].Off+out[k-1].Len {
			out[k-1].Len = max(out[k-1].Len, e.Off+e.Len-out[k-1].Off)
			continue
		}
		out = append(out, e)
	}
	return out
}

const exactGrain = 4096

// exact compares two devices within the given ranges, and returns those where
// their contents really differ, in pieces of 4 KiB: a chunk is copied out as a
// whole, so most of it may be the same.
func exact(ctx context.Context, a, b blockdev.Device, es []blockdev.Extent) ([]thin.Change, error) {
	var out []thin.Change
	pa, pb := make([]byte, 256<<10), make([]byte, 256<<10)
	for _, e := range es {
		for off, left := e.Off, e.Len; left > 0; {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			n := min(int64(len(pa)), left)
			if _, err := a.ReadAt(pa[:n], off); err != nil {
				return nil, err
			}
			if _, err := b.ReadAt(pb[:n], off); err != nil {
				return nil, err
			}
			for i := int64(0); i < n; i += exactGrain {
				k := min(exactGrain, n-i)
				if bytes.Equal(pa[i:i+k], pb[i:i+k]) {
					continue
				}
				if j := len(out); j > 0 && out[j-1].Off+out[j-1].Len == off+i {
					out[j-1].Len += k
				} else {
					out = append(out, thin.Change{Off: off + i, Len: k, Data: true})
				}
			}
			off, left = off+n, left-n
		}
	}
	return out, nil
}
