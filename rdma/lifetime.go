package rdma

import (
	"math"
	"sync/atomic"
)

// lifetime is how long an object lives: until it is ended, which is refused as long as others
// that were made from it use it. Where a use and the end meet, one of them is refused. The zero
// value is alive and without users.
type lifetime struct {
	users atomic.Int64 // ended: below zero
}

const ended = math.MinInt64

// use enters a user; false: the object has ended.
func (l *lifetime) use() bool {
	for {
		n := l.users.Load()
		if n < 0 {
			return false
		}
		if l.users.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// release takes a user off.
func (l *lifetime) release() { l.users.Add(-1) }

// end ends the object, unless it has users, whose number it returns. It is called again
// without effect; first says that this was the call that ended it.
func (l *lifetime) end() (users int64, first bool) {
	for {
		n := l.users.Load()
		if n != 0 {
			return max(n, 0), false
		}
		if l.users.CompareAndSwap(0, ended) {
			return 0, true
		}
	}
}

// over reports whether the object has ended.
func (l *lifetime) over() bool { return l.users.Load() < 0 }
