package attach

import (
	"sync"

	"softiser/blockdev"
)

// follow keeps a kernel device, which has size bytes, at the size of the volume, until end is called: behind it the
// device may be taken apart. resize is never called twice at once.
func (a *Attachment) follow(size int64, resize func(int64) error) (end func()) {
	var mu sync.Mutex // guards size and ended
	ended := false
	look := func(blockdev.Info) { // several may come at once, in any order: what counts is how it is now
		mu.Lock()
		defer mu.Unlock()
		now := a.lun.Info().Size
		if ended || now == size {
			return
		}
		if err := resize(now); err != nil {
			a.opt.tellError(err)
			return
		}
		size = now
	}
	cancel := a.lun.OnResize(look)
	look(blockdev.Info{}) // it may have changed before somebody listened
	return func() {
		cancel()
		mu.Lock()
		ended = true
		mu.Unlock()
	}
}
