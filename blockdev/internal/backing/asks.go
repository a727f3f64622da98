package backing

import "sync/atomic"

// asks decides whether it is worth to ask the kernel if a page is in memory that nothing is
// known of: where many in a row were not, every eighth time. The zero value is ready.
type asks struct {
	vain atomic.Uint32 // times in a row, those without asking counted, too
}

const (
	vainMost  = 32
	vainEvery = 8
)

// worth reports whether to ask.
func (a *asks) worth() bool {
	n := a.vain.Load()
	if n < vainMost {
		return true
	}
	n = a.vain.Add(1)
	return n%vainEvery == 0
}

// was notes an answer, and returns it.
func (a *asks) was(inMemory bool) bool {
	switch n := a.vain.Load(); {
	case inMemory && n != 0:
		a.vain.Store(0)
	case !inMemory && n < vainMost:
		a.vain.Add(1)
	}
	return inMemory
}
