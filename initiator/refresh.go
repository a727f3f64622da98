package initiator

import (
	"context"
	"fmt"

	"softiser/blockdev"
)

// recheck makes sure that the LUN is the volume it was, with blocks of the same size, and
// takes its present size and limits. It runs before anything more is sent to it.
func (l *LUN) recheck(ctx context.Context, s *Session) error {
	id, err := lookup{s, l.wire}.identify(ctx)
	if err != nil {
		return err
	}
	if !l.id.same(&id) {
		return fmt.Errorf("%w: LUN %d was %s, now it is %s", ErrLUNChanged, l.num, l.id.Name(), id.Name())
	}
	g, err := lookup{s, l.wire}.measure(ctx, &id)
	if err != nil {
		return err
	}
	// Waiting commands were made for the old block size.
	if was, is := l.geo.Load().info.BlockSize, g.info.BlockSize; was != is {
		return fmt.Errorf("%w: LUN %d, %s, had blocks of %d bytes, now they have %d", ErrLUNChanged, l.num, id.Name(), was, is)
	}
	if l.tells(id.epoch) {
		s.mu.Lock()
		s.caches.lost(l, "the target came back without its cache")
		s.unlock()
	}
	l.take(g)
	return nil
}

// take makes g the LUN's geometry and tells who watches when the size changed.
func (l *LUN) take(g *geometry) {
	l.mu.Lock()
	old := l.geo.Swap(g)
	if old.maxSame == 0 {
		g.noSame() // WRITE SAME was tried and refused earlier
	}
	l.mu.Unlock()
	if old.info.Size == g.info.Size {
		return
	}
	s := l.paths[0]
	s.mu.Lock()
	s.event(Event{Kind: EventResized, Detail: fmt.Sprintf("LUN %d: %d → %d bytes", l.num, old.info.Size, g.info.Size)})
	s.unlock()
	l.hooks.Report(l.Info)
}

// noSame takes WRITE SAME away, and what stands on it: a WRITE SAME of 0 blocks would
// mean all of them up to the end of the medium.
func (g *geometry) noSame() {
	g.maxSame, g.sameUnmap = 0, false
	if g.trimSame {
		g.trimSame, g.info.Discard = false, false
	}
}

// withoutSame makes WriteZeroes write: the target does not know WRITE SAME.
func (l *LUN) withoutSame() {
	l.mu.Lock()
	g := *l.geo.Load()
	g.noSame()
	l.geo.Store(&g)
	l.mu.Unlock()
}

// OnResize registers f to be called after the size has changed. The returned
// function removes it.
func (l *LUN) OnResize(f func(blockdev.Info)) (cancel func()) { return l.hooks.Add(f) }
