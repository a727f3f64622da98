package nvmf

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"softiser/internal/nvme"
	"softiser/target/portal"
)

// Check says what is wrong with what another process has handed over, files descriptors of
// all kinds, or why this one cannot go on with it. Nothing is touched.
func (h Handover) Check(k *Carried, files int) error {
	for i := range k.Controllers {
		c := &k.Controllers[i]
		if err := c.check(files); err != nil {
			return fmt.Errorf("controller %d of host %q: %w", c.ID, c.Host, err)
		}
		for j := range c.Queues {
			q := &c.Queues[j]
			if portal.Find(h.f.cfg.Portals, q.Portal) == nil {
				return fmt.Errorf("controller %d: there is no portal %q", c.ID, q.Portal)
			}
			if err := h.checkRDMA(q); err != nil {
				return fmt.Errorf("controller %d: queue %d: %w", c.ID, q.ID, err)
			}
		}
	}
	return nil
}

// check holds what another process says of a controller to the limits that this one has for
// a host; files is how many descriptors came along.
func (k *CarriedController) check(files int) error {
	switch {
	case len(k.Host) == 0 || len(k.Host) > nvme.MaxNQN || strings.ContainsRune(k.Host, 0):
		return errors.New("that is no name of a host")
	case k.ID == 0 || k.ID > nvme.MaxCntlID:
		return fmt.Errorf("its identifier is %d; want 1 to %d", k.ID, nvme.MaxCntlID)
	case k.KeepAlive < 0:
		return fmt.Errorf("its keep alive timeout is %v", k.KeepAlive)
	case k.Limit < 0 || k.Limit > maxCarriedQueues:
		return fmt.Errorf("it may have %d I/O queues", k.Limit)
	case len(k.Queues) == 0 || len(k.Queues) > maxCarriedQueues || k.Queues[0].ID != 0:
		return fmt.Errorf("%d queues; want 1 to %d, the admin queue first", len(k.Queues), maxCarriedQueues)
	case len(k.Errors) > errorEntries || uint64(len(k.Errors)) > k.Failed:
		return fmt.Errorf("%d entries in its error log; %d is the limit", len(k.Errors), errorEntries)
	}
	for id := range k.Features {
		if !plain[id] {
			return fmt.Errorf("feature %d is none that is kept", id)
		}
	}
	seen := map[uint16]bool{}
	for i := range k.Queues {
		q := &k.Queues[i]
		entries, kept := q.size()
		switch {
		case seen[q.ID]:
			return fmt.Errorf("queue %d comes twice", q.ID)
		case q.File < 0 || q.File >= files:
			return fmt.Errorf("queue %d: no descriptor has come with it", q.ID)
		case len(q.Events) > maxEventRequests || q.ID != 0 && len(q.Events) > 0:
			return fmt.Errorf("queue %d: %d Asynchronous Event Requests; %d is the limit", q.ID, len(q.Events), maxEventRequests)
		case q.kind() != k.Queues[0].kind():
			return fmt.Errorf("queue %d is of another kind than the admin queue", q.ID)
		case len(q.Events)+kept > 2*entries:
			return fmt.Errorf("queue %d: more commands than it has entries", q.ID)
		}
		seen[q.ID] = true
		if err := q.check(); err != nil {
			return fmt.Errorf("queue %d: %w", q.ID, err)
		}
	}
	return k.Events.check()
}

func (k *carriedEvents) check() error {
	for _, e := range slices.Concat(k.Due, k.Told) {
		if e >= eventKinds {
			return fmt.Errorf("an event of kind %d", e)
		}
	}
	switch {
	case len(k.Notices) > maxNotices:
		return fmt.Errorf("%d reservation notices; %d is the limit", len(k.Notices), maxNotices)
	case len(k.Changed) > maxNSID || !slices.IsSorted(k.Changed):
		return fmt.Errorf("a list of %d namespaces that have changed", len(k.Changed))
	case len(k.Masks) > maxNSID:
		return fmt.Errorf("%d masks for namespaces", len(k.Masks))
	}
	return nil
}

const maxCarriedQueues = 1 << 16
