package backing

import "sync"

// Address space behind the end of a mapping is what a volume can grow by while it is open, as what is lent must
// never move. It costs nothing else, but a process has 128 TiB of it (x86-64; arm64 mostly twice as much), which
// its volumes share: what one reserves for growing another one may need for what it holds.

const (
	roomUsual = 64 << 30 // three times the size, or this where that is more,
	roomAll   = 32 << 40 // but all volumes together no more than this,
	roomShare = 4        // and each no more than this part of what is left of it,
	roomLeast = 16 << 30 // unless three times the size is no more than this
	roomAlign = 64 << 10 // the largest page there is
)

// reserved is what the volumes of this process have for growing.
var reserved rooms

type rooms struct {
	mu  sync.Mutex
	all int64 // bytes, guarded by mu
}

// take reserves room for a store of so many bytes.
func (r *rooms) take(size int64) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	thrice := 3 * min(size, roomAll)
	n := max(min(max(thrice, roomUsual), (roomAll-r.all)/roomShare), min(thrice, roomLeast)) &^ (roomAlign - 1)
	r.all += n
	return n
}

// put gives room back.
func (r *rooms) put(n int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all -= n
}
