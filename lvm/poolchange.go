package lvm

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"softiser/lvm/meta"
	"softiser/lvm/thin"
)

// A change of a thin pool touches two sets of metadata. As lvm2 does, the group
// is committed first, with a message that says what is to be done and a
// transaction id one higher; then the pool does it and takes that id; then the
// message goes. A pool that is opened with a message left does what is missing.
//
//	group  id n+1, message  ──►  pool does it, id n+1  ──►  group without message
//	           │ pool refuses
//	           └──────────────►  group as it was, id n
//
// The group is never more than one change ahead: the next change first brings
// both to the same id, and fails if it cannot.

// change commits next with a message, runs then if not nil, has the pool do
// what the message says, and commits without it.
func (ps *thinPools) change(next *meta.VG, pool string, m meta.Message, then func() error, why string) error {
	n := ps.act.nodes[ps.md.group.VG.LV(pool).ID] // the caller has activated it
	was := ps.md.group.VG
	seg := next.LV(pool).Segments[0]
	seg.TransactionID = n.pool.Transaction() + 1
	seg.Messages = []meta.Message{m}
	if err := ps.md.commit(next, why); err != nil {
		return err
	}
	if then != nil {
		if err := then(); err != nil {
			return err
		}
	}
	if err := ps.do(n.pool, m, seg.TransactionID); err != nil {
		if then != nil || n.pool.Err() != nil {
			return fmt.Errorf("thin pool %s: %w (it is tried again when the pool is next opened)", pool, err)
		}
		// The pool has changed nothing, so the change of the group is undone.
		back := was.Clone()
		back.Seqno = ps.md.group.VG.Seqno
		return errors.Join(fmt.Errorf("thin pool %s: %w", pool, err), ps.md.commit(back, "taking back: "+why))
	}
	last := ps.md.group.VG.Clone()
	last.LV(pool).Segments[0].Messages = nil
	return ps.md.commit(last, why)
}

// awake activates a pool for a change that follows, and sees that it is in step
// with the group. That may change the group, so it comes before the metadata is
// copied. "" is no pool.
func (ps *thinPools) awake(pool string) (done func(), err error) {
	lv := ps.md.group.VG.LV(pool)
	if lv == nil || len(lv.Segments) != 1 || lv.Segments[0].Type != meta.ThinPool {
		return func() {}, nil // not an intact pool: the caller reports that
	}
	n, err := ps.act.activate(lv)
	if err != nil {
		return nil, err
	}
	done = func() {
		if err := ps.act.deactivate(n); err != nil {
			ps.md.cfg.notice("%s/%s: %v", ps.md.group.VG.Name, pool, err)
		}
	}
	err = n.pool.Err()
	if lv := ps.md.group.VG.LV(pool); err == nil && n.pool.Transaction() != lv.Segments[0].TransactionID {
		err = ps.agree(n.pool, lv)
	}
	if err != nil {
		done()
		return nil, fmt.Errorf("thin pool %s/%s: %w", ps.md.group.VG.Name, pool, err)
	}
	return done, nil
}

// do has the pool do what a message says, and take that transaction id.
func (ps *thinPools) do(p *thin.Pool, m meta.Message, id uint64) error {
	if m.Create == "" {
		err := p.Delete(m.Delete, id)
		if errors.Is(err, thin.ErrNoDevice) {
			return p.SetTransaction(id) // the pool never made that device
		}
		return err
	}
	lv := ps.md.group.VG.LV(m.Create)
	if lv == nil || len(lv.Segments) == 0 || lv.Segments[0].Type != meta.Thin {
		return fmt.Errorf("message names %q, which is no thin volume", m.Create)
	}
	seg := lv.Segments[0]
	if o := ps.md.group.VG.LV(seg.Origin); o != nil && seg.Origin != "" {
		return p.Snapshot(seg.DeviceID, o.Segments[0].DeviceID, id)
	}
	return p.Create(seg.DeviceID, id)
}

// agree brings a pool and its group to the same transaction: it does what messages
// ask for that the pool has not done yet. What the pool refuses is taken back.
func (ps *thinPools) agree(p *thin.Pool, lv *meta.LV) error {
	seg := lv.Segments[0]
	have, want := p.Transaction(), seg.TransactionID
	if have == want && len(seg.Messages) == 0 {
		return nil
	}
	if have > want || have != want && len(seg.Messages) == 0 {
		return fmt.Errorf("pool has transaction %d, the volume group says %d: one of them is from another time; restore the other of that time (vgcfgrestore, thin_restore)", have, want)
	}
	if have+1 == want {
		var refused error
		for _, m := range seg.Messages {
			if err := ps.do(p, m, want); err != nil && refused == nil {
				refused = err
			}
		}
		if err := p.Err(); err != nil {
			return fmt.Errorf("finishing an interrupted change: %w", err)
		}
		if refused != nil {
			ps.md.cfg.notice("%s/%s: an interrupted change cannot be finished: %v", ps.md.group.VG.Name, lv.Name, refused)
		}
	}
	next := ps.md.group.VG.Clone()
	next.LV(lv.Name).Segments[0].Messages = nil
	if p.Transaction() == want {
		return ps.md.commit(next, "finishing an interrupted change of "+lv.Name)
	}
	if err := ps.takeBack(p, next, lv.Name); err != nil {
		return fmt.Errorf("pool has transaction %d, the volume group says %d: %w", have, want, err)
	}
	return ps.md.commit(next, "taking back what thin pool "+lv.Name+" never did")
}

// takeBack changes next, which is one or more changes ahead of a pool that has made
// none of them, to what the pool is: volumes that it never made leave next, and
// devices whose volumes have left next already leave the pool. Earlier programs
// let a group get ahead by more than one change.
func (ps *thinPools) takeBack(p *thin.Pool, next *meta.VG, pool string) error {
	seg := next.LV(pool).Segments[0]
	have, ahead := p.Transaction(), seg.TransactionID-p.Transaction()
	seg.TransactionID = have
	left, err := p.Devices()
	if err != nil {
		return err
	}
	var unmade []string
	for _, lv := range next.LVs {
		if len(lv.Segments) != 1 || lv.Segments[0].Type != meta.Thin || lv.Segments[0].Pool != pool {
			continue
		}
		seg := lv.Segments[0]
		if seg.TransactionID >= have {
			unmade = append(unmade, lv.Name) // a device with that id belongs to another volume
			continue
		}
		if !slices.Contains(left, seg.DeviceID) {
			return fmt.Errorf("%s has no device in the pool, and was made before: the pool's metadata is from another time", lv.Name)
		}
		left = slices.DeleteFunc(left, func(id uint64) bool { return id == seg.DeviceID })
	}
	if n := uint64(len(unmade) + len(left)); n > ahead {
		return fmt.Errorf("%d volumes and devices have no counterpart, more than failed changes explain", n)
	}
	for _, name := range unmade {
		removeThinLV(next, name)
	}
	if len(unmade) > 0 {
		ps.md.cfg.notice("%s/%s: removed %s, which the pool never made", next.Name, pool, strings.Join(unmade, ", "))
	}
	for _, id := range left {
		switch err := p.Delete(id, have); {
		case err == nil:
			ps.md.cfg.notice("%s/%s: deleted device %d, whose volume was removed", next.Name, pool, id)
		case p.Err() != nil:
			return err
		default:
			ps.md.cfg.notice("%s/%s: device %d stays, although its volume was removed: %v", next.Name, pool, id, err)
		}
	}
	return nil
}
