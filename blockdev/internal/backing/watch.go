package backing

import (
	"sync"
	"time"
)

// watchEvery is how often the length of backing stores is looked at.
const watchEvery = time.Second

// The watcher is one goroutine for all open volumes; it exists while there are
// any. One look per volume and second is what noticing a resize or a
// truncation costs. Each look has a goroutine of its own: storage that does not answer,
// or a volume that is being closed for long, holds up the looks at no other one.
var watcher struct {
	mu      sync.Mutex // guards what follows; taken inside Volume.resizeMu
	volumes map[*Volume]struct{}
	stop    chan struct{}
}

func watch(v *Volume) {
	w := &watcher
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.volumes == nil {
		w.volumes = map[*Volume]struct{}{}
	}
	w.volumes[v] = struct{}{}
	if w.stop == nil {
		w.stop = make(chan struct{})
		go runWatcher(w.stop)
	}
}

func unwatch(v *Volume) {
	w := &watcher
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.volumes, v)
	if len(w.volumes) == 0 && w.stop != nil {
		close(w.stop)
		w.stop = nil
	}
}

// runWatcher is the watcher's goroutine.
func runWatcher(stop <-chan struct{}) {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	var list []*Volume
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
		}
		watcher.mu.Lock()
		list = list[:0]
		for v := range watcher.volumes {
			list = append(list, v)
		}
		watcher.mu.Unlock()
		for _, v := range list {
			if v.looked.CompareAndSwap(false, true) {
				go func() {
					defer v.looked.Store(false)
					v.poll()
				}()
			}
		}
		clear(list)
	}
}
