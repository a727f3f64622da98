package nvmf

import (
	"context"
	"errors"
	"fmt"
	"time"

	"softiser/initiator/blockio"
	"softiser/internal/nvme"
)

// The namespace as one of several paths to a volume, see Config.Path.

var _ blockio.Path = (*Namespace)(nil)

// Connected implements blockio.Path.
func (n *Namespace) Connected() (bool, error) {
	s, err := n.a.State()
	if s == StateLive {
		return true, nil
	}
	if err == nil {
		err = fmt.Errorf("the association is %v", s)
	}
	return false, err
}

// Epoch implements blockio.Path.
func (n *Namespace) Epoch() *blockio.Epoch { return n.epoch.Load() }

// Cancel implements blockio.Path.
func (n *Namespace) Cancel(r *blockio.Request, err error) {
	stateOf(r).abandon(err)
}

// maxANA bounds the asymmetric namespace access log, bytes.
const maxANA = 64 << 10

// Access reads the state of the namespace's group from the asymmetric namespace access log.
// Whether other controllers serve the namespace that log does not tell: they may.
func (n *Namespace) Access(ctx context.Context) (state blockio.Access, shared bool, err error) {
	c := n.a.controller()
	if c.ident.CMIC&nvme.ReportsANA == 0 {
		_, _, _, err := n.inspect(ctx)
		return blockio.AccessOptimized, true, err
	}
	whole := 16 + 32*uint64(c.ident.ANAGroups) + 4*uint64(c.ident.Namespaces)
	b := make([]byte, min(whole, maxANA)&^3)
	if err := n.a.readANA(ctx, c, b); err != nil {
		return blockio.AccessGone, true, err
	}
	_, groups, err := nvme.ParseANA(b)
	if err != nil {
		return blockio.AccessGone, true, err
	}
	for _, g := range groups {
		for _, id := range g.Namespaces {
			if id == n.id {
				return accessOf(g.State), true, nil
			}
		}
	}
	return blockio.AccessGone, true, fmt.Errorf("nvmf: no group of the controller has namespace %d", n.id)
}

var errANA = errors.New("nvmf: the asymmetric namespace access log changes faster than it can be read")

// readANA reads the beginning of the log, in as many commands as the controller's MDTS makes of it. They
// belong together if the change count that the log begins with is the same afterwards.
func (a *Association) readANA(ctx context.Context, c *controller, b []byte) error {
	step := int(min(int64(len(b)), c.pages(c.ident.MDTS)))
	for range generationTries {
		for at := 0; at < len(b); at += step {
			if err := a.admin.logPage(ctx, nvme.LogANA, uint64(at), b[at:min(at+step, len(b))]); err != nil {
				return err
			}
		}
		if step == len(b) {
			return nil
		}
		var count [8]byte
		if err := a.admin.logPage(ctx, nvme.LogANA, 0, count[:]); err != nil {
			return err
		}
		if count == [8]byte(b) {
			return nil
		}
	}
	return errANA
}

func accessOf(s nvme.ANAState) blockio.Access {
	switch s {
	case nvme.ANAStateOptimized:
		return blockio.AccessOptimized
	case nvme.ANAStateNonOptimized:
		return blockio.AccessNonOptimized
	case nvme.ANAStateChange:
		return blockio.AccessTransitioning
	case nvme.ANAStatePersistentLoss:
		return blockio.AccessGone
	}
	return blockio.AccessInaccessible
}

// Fence returns nil once the controller must have ended the association by itself: nothing
// of it is carried out after its keep alive timeout (Base 2.1 §3.9), as the controller has
// rounded it. That begins anew with whatever the controller has heard last, and controllers look
// at it twice in that time at worst. An association without keep alive is not fenced but by a new one.
func (n *Namespace) Fence(context.Context, []blockio.Path) error {
	if up, _ := n.Connected(); up {
		return nil
	}
	n.a.mu.Lock()
	holds, since := n.a.ctrl.holds, n.a.since
	n.a.mu.Unlock()
	if holds <= 0 {
		return errors.New("nvmf: the association had no keep alive, so it is not known when it ends")
	}
	if left := 2*holds + fenceSlack - time.Since(since); left > 0 {
		return fmt.Errorf("nvmf: the controller may keep the association for another %v", left.Round(time.Millisecond))
	}
	return nil
}

// fenceSlack is what the controller may be late: our own is with each of two looks, and clocks and
// the rounding of the timeout may add something.
const fenceSlack = 2*nvme.KeepAliveSlack + time.Second

// Reset implements blockio.Path: hosts cannot end each other's commands.
func (n *Namespace) Reset(context.Context) error {
	return errors.New("nvmf: NVMe has no reset of a namespace")
}
