package lvm

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"softiser/blockdev"
	"softiser/blockdev/open"
	"softiser/lvm/snap"
	"softiser/lvm/vg"
)

// A group goes from one process to the next as its open disks. All that it is stands on them:
// what a pool or a snapshot knows besides is written down first, and nothing changes any more
// until the group goes on here or there.
//
//	in use ──Hold──▶ held: merges stand between two steps, the metadata is locked,
//	   ▲               │   pools and snapshots have committed
//	   └────Release────┴──HandOver──▶ the disks, for Manager.Expect of the next process

// Handed is a group on its way from one process to the next.
type Handed struct {
	Name  string       `json:"name"`
	Disks []HandedDisk `json:"disks"`
}

// HandedDisk is one of its disks.
type HandedDisk struct {
	Path  string          `json:"path"` // under which it was opened
	Store blockdev.Opened `json:"store"`
	File  int             `json:"file"` // index of Store.FD on its way
}

// Discard closes the descriptors of a group that nobody opens.
func (h *Handed) Discard() {
	for i := range h.Disks {
		h.Disks[i].discard()
	}
}

func (d *HandedDisk) discard() {
	if d.Store.FD >= 0 {
		d.Store.Discard()
		d.Store.FD = -1
	}
}

// servesLocked reports whether these are all volumes of the group that are open.
func (g *Group) servesLocked(all []*Volume) bool {
	return g.opened == len(all) && !slices.ContainsFunc(all, func(v *Volume) bool { return v.g != g })
}

// settled is the error of a flush, but for that of a snapshot that is lost: of that there is nothing
// left to be written down.
func (n *node) settled(err error) error {
	if n.snap != nil && errors.Is(err, snap.ErrInvalid) {
		return nil
	}
	return err
}

// Settle writes down what pools and snapshots have in memory alone.
func (g *Group) Settle() error {
	g.mu.Lock()
	var nodes []*node
	for _, n := range g.act.nodes {
		nodes = append(nodes, n)
	}
	g.mu.Unlock()
	var errs []error
	for _, n := range nodes {
		switch {
		case n.pool != nil:
			errs = append(errs, n.pool.Commit())
		case n.snap != nil:
			errs = append(errs, n.settled(n.top.Flush()))
		}
	}
	return errors.Join(errs...)
}

// Why a group is not held.
var (
	// ErrUnsettled ends a Hold for which storage has not answered in time.
	ErrUnsettled = errors.New("its disks have not answered in time")
	errOthers    = errors.New("somebody else has a volume of it open")
)

// Hold brings the group, whose volumes in use these are, to rest until Release: nothing of it is
// written any more. Preconditions: nobody uses them. With an error it goes on; that is ErrUnsettled
// when ctx has ended, and something may still be written for a moment.
func (g *Group) Hold(ctx context.Context, all []*Volume) error {
	held := make(chan error)
	go func() {
		err := g.hold(all)
		select {
		case held <- err:
		case <-ctx.Done():
			if err == nil {
				g.Release()
			}
		}
	}()
	select {
	case err := <-held:
		return err
	case <-ctx.Done():
		return fmt.Errorf("volume group %q: %w", g.Name(), ErrUnsettled)
	}
}

func (g *Group) hold(all []*Volume) error {
	g.snaps.steps.Lock()
	err := g.Settle()
	if err == nil {
		g.mu.Lock()
		if g.servesLocked(all) {
			return nil
		}
		g.mu.Unlock()
		err = errOthers
	}
	g.snaps.steps.Unlock()
	return err
}

// Release ends what Hold has begun.
func (g *Group) Release() {
	g.mu.Unlock()
	g.snaps.steps.Unlock()
}

// Name is the name with which the group was opened.
func (g *Group) Name() string { return g.name }

// HandOver returns the disks of a group that is held, with descriptors that are the caller's.
func (g *Group) HandOver() (h Handed, err error) {
	h.Name = g.name
	for _, d := range g.disks.Disks {
		dev, ok := d.Dev.(blockdev.HandsOver)
		if !ok {
			err = fmt.Errorf("volume group %q: %s cannot go to another process", g.name, d.Path)
			break
		}
		var o blockdev.Opened
		if o, err = dev.HandOver(); err != nil {
			break
		}
		h.Disks = append(h.Disks, HandedDisk{Path: d.Path, Store: o})
	}
	if err != nil {
		h.Discard()
		return Handed{}, err
	}
	return h, nil
}

// Expect makes Open use the disks of a group that another process has handed over; they belong
// to the Manager. Preconditions: the group is not open.
func (m *Manager) Expect(h Handed) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.expected == nil {
		m.expected = map[string]*Handed{}
	}
	m.expected[h.Name] = &h
}

// Forget closes what Expect has been told of and nobody has opened.
func (m *Manager) Forget() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, h := range m.expected {
		h.Discard()
	}
	m.expected, m.lost = nil, nil
}

// adopt opens a group that another process has handed over.
func (m *Manager) adopt(h *Handed) (*Group, error) {
	ds := &Disks{cfg: m.Config}
	g, err := ds.adopt(h)
	if err != nil {
		h.Discard()
		ds.Close()
		return nil, err
	}
	return g, nil
}

func (ds *Disks) adopt(h *Handed) (*Group, error) {
	for i := range h.Disks {
		x := &h.Disks[i]
		o := x.Store
		x.Store.FD = -1 // it is the device's, whatever becomes of that
		dev, err := ds.cfg.adoptDevice(x.Path, &o)
		if err != nil {
			return nil, fmt.Errorf("opening %s: %w", x.Path, err)
		}
		d, err := vg.NewDisk(x.Path, dev)
		if err != nil {
			dev.Close()
			return nil, fmt.Errorf("opening %s: %w", x.Path, err)
		}
		ds.Disks = append(ds.Disks, d)
	}
	return ds.Group(h.Name)
}

// adoptDevice opens a disk that another process has handed over, whatever bears its name now.
func (c *Config) adoptDevice(path string, o *blockdev.Opened) (blockdev.Device, error) {
	s := open.Spec{Type: open.File, Path: path, Pool: c.Pool, Opened: o}
	var st unix.Stat_t
	if err := unix.Fstat(o.FD, &st); err == nil && st.Mode&unix.S_IFMT == unix.S_IFBLK {
		s.Type = open.Raw
	}
	if c.EpochDir != nil {
		s.EpochDir = c.EpochDir()
	}
	return open.Open(s)
}
