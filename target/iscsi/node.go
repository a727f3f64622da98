package iscsi

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

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

	mu   sync.Mutex
	luns []lunEntry // guarded by mu, in ascending order
}

// lunEntry is a LUN that is there.
type lunEntry struct {
	LUN
	lu      *scsi.LU
	release func() error // ends the registration of the volume's memory; nil: there is none
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
	return len(n.cfg.Portals) == 0 || slices.Contains(n.cfg.Portals, p.Config().Group)
}

// unregister ends the registration of every volume's memory.
func (n *node) unregister() error {
	var errs []error
	for _, e := range n.list() {
		errs = append(errs, e.unregister())
	}
	return errors.Join(errs...)
}

func (e *lunEntry) unregister() error {
	if e.release == nil {
		return nil
	}
	return e.release()
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

// flush makes everything that was written to the target's volumes durable.
func (n *node) flush() error {
	var errs []error
	for _, e := range n.list() {
		errs = append(errs, e.flush(n))
	}
	return errors.Join(errs...)
}

func (e *lunEntry) flush(n *node) error {
	if e.Volume == nil || e.Volume.Info().ReadOnly {
		return nil
	}
	if err := e.Volume.Flush(); err != nil {
		return fmt.Errorf("target %s LUN %d: flush: %w", n.cfg.Name, e.LUConfig.LUN, err)
	}
	return nil
}

// endNexus ends the nexus of a session, which discovery sessions do not have.
// It may be called again.
func (n *node) endNexus(x *scsi.Nexus) {
	if x != nil {
		n.device.CloseNexus(x)
	}
}
