package volume

import (
	"slices"
	"sync/atomic"
)

// places is the part of a volume that knows where it is served. Both change under Registry.mu.
type places struct {
	all  atomic.Pointer[[]*Place] // copy on write; never empty once the volume is in the registry
	live int                      // of them: not removed; guarded by Registry.mu
}

// add and remove change where the volume is served; remove reports false for the last place, which stays.
func (l *places) add(p *Place) {
	all := append(slices.Clone(*l.all.Load()), p)
	l.all.Store(&all)
	l.live++
}

func (l *places) remove(p *Place) bool {
	all := slices.DeleteFunc(slices.Clone(*l.all.Load()), func(x *Place) bool { return x == p })
	if len(all) == 0 {
		return false
	}
	l.all.Store(&all)
	return true
}

// first is the place that stands for the volume in messages.
func (l *places) first() *Place { return (*l.all.Load())[0] }

// writable reports whether one of them lets initiators write.
func (l *places) writable() bool {
	return slices.ContainsFunc(*l.all.Load(), func(p *Place) bool { return !p.readOnly })
}

// notify tells every face of an event.
func (l *places) notify(e Event) {
	for _, p := range *l.all.Load() {
		p.face.Notify(e)
	}
}
