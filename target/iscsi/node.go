package iscsi

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/dustin/go-humanize/english"

	"softiser/blockdev"
	"softiser/target/portal"
	"softiser/target/scsi"
)

// node is one target: a SCSI device behind an iSCSI name.
type node struct {
	srv    *Frontend
	cfg    Target // as it was added; logins go by access
	device *scsi.Device
	// access is the target as logins and discovery see it now: Alias, Auth, ACL
	// and Redirect are read from it. UpdateTarget replaces it.
	access atomic.Pointer[Target]
	gone   bool // guarded by srv.mu: no new sessions

	adding sync.Mutex // held while a LUN is added, which may wait for storage; taken before mu

	mu   sync.Mutex
	luns []lunEntry // guarded by mu, in ascending order
}

// lunEntry is a LUN that is there.
type lunEntry struct {
	LUN
	lu      *scsi.LU
	release func() error // ends the registration of the volume's memory; nil: there is none
	ending  *lunEnding
}

// lunEnding is the end of a LUN's use of its volume: its commands end, then the volume
// is flushed. It goes on when storage takes longer than whoever asked for it waits, and
// whoever asks again waits for the rest.
type lunEnding struct {
	once sync.Once
	done chan struct{} // closed at the end
	err  error         // what went wrong; valid when done is closed
}

// session returns the negotiation settings of the target.
func (n *node) session() *SessionParams {
	if n.cfg.Session != nil {
		return n.cfg.Session
	}
	return &n.srv.cfg.Session
}

// offeredOn reports whether the target is reached through p.
func (n *node) offeredOn(p *portal.Portal) bool {
	return (len(n.cfg.Portals) == 0 || slices.Contains(n.cfg.Portals, p.Config().Group)) &&
		(len(n.cfg.Listen) == 0 || slices.Contains(n.cfg.Listen, p.Config().Listen))
}

func compareLUN(e lunEntry, lun uint16) int { return int(e.LUConfig.LUN) - int(lun) }

// lun finds a LUN by number.
func (n *node) lun(number uint16) (lunEntry, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if i, ok := slices.BinarySearchFunc(n.luns, number, compareLUN); ok {
		return n.luns[i], nil
	}
	return lunEntry{}, fmt.Errorf("target %s: there is no LUN %d", n.cfg.Name, number)
}

// list returns the LUNs in ascending order.
func (n *node) list() []lunEntry {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.luns)
}

// end ends every LUN; none waits for another. What it returns is that of lunEntry.end.
func (n *node) end(ctx context.Context) (over bool, err error) {
	list := n.list()
	overs, errs := make([]bool, len(list)), make([]error, len(list))
	var wg sync.WaitGroup
	for i := range list {
		wg.Go(func() { overs[i], errs[i] = list[i].end(ctx, n) })
	}
	wg.Wait()
	return !slices.Contains(overs, false), errors.Join(errs...)
}

// end waits until nothing uses the volume any more and it has been flushed. If ctx ends
// first it is not over, and the error says what is waited for; else it is what went wrong.
func (e *lunEntry) end(ctx context.Context, n *node) (over bool, err error) {
	x := e.ending
	x.once.Do(func() {
		go func() {
			defer close(x.done)
			x.err = errors.Join(e.lu.Close(context.WithoutCancel(ctx)), e.flush(n), e.unregister())
		}()
	})
	select {
	case <-x.done:
	case <-ctx.Done():
	}
	select {
	case <-x.done:
		return true, x.err
	default:
		return false, e.waitsFor(ctx.Err())
	}
}

// waitsFor says why the end of the LUN is not over.
func (e *lunEntry) waitsFor(why error) error {
	what := "its last flush has not ended"
	if n := e.lu.Stats().Tasks; n > 0 {
		what = english.Plural(int(n), "command still holds", "commands still hold") + " it"
	}
	return fmt.Errorf("LUN %d: volume %s does not answer: %s: %w", e.LUConfig.LUN, e.Name, what, why)
}

// flush makes everything that was written to the volume durable.
func (e *lunEntry) flush(n *node) error {
	if e.Volume == nil || e.Volume.Info().ReadOnly {
		return nil
	}
	// One that is not open here has been flushed when it was given up.
	if err := e.Volume.Flush(); err != nil && !errors.Is(err, blockdev.ErrInactive) {
		return fmt.Errorf("target %s LUN %d: flush: %w", n.cfg.Name, e.LUConfig.LUN, err)
	}
	return nil
}

// unregister ends the registration of the volume's memory.
func (e *lunEntry) unregister() error {
	if e.release == nil {
		return nil
	}
	return e.release()
}

// endNexus ends the nexus of a session, which discovery sessions do not have.
// It may be called again.
func (n *node) endNexus(x *scsi.Nexus) {
	if x != nil {
		n.device.CloseNexus(x)
	}
}
