package thin

import (
	"fmt"

	"softiser/blockdev"
)

// change runs f as one transaction and sets the pool's transaction id with it.
// A change that fails leaves the metadata in memory undefined: the pool is
// read-only until it is reopened.
func (p *Pool) change(id uint64, f func() error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	// Everything before is its own transaction.
	if err := p.commitLocked(); err != nil {
		return err
	}
	if err := p.roomLocked(0); err != nil {
		return err
	}
	was := p.sb
	if err := f(); err != nil {
		if p.changed {
			p.cond.fail(fmt.Errorf("thin pool change failed half-way, the pool is read-only until it is reopened: %w", err))
			p.sb = was
		}
		return err
	}
	p.sb.transaction = id
	p.changed = true
	return p.commitLocked()
}

// Transaction is the id that the last change set.
func (p *Pool) Transaction() uint64 {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.sb.transaction
}

func (p *Pool) absentLocked(dev uint64) error {
	if dev > maxDevice {
		return fmt.Errorf("thin device id %d is too large", dev)
	}
	v, err := p.top.lookup(p.sb.mapping, dev)
	if err == nil && v != nil {
		err = fmt.Errorf("%d: %w", dev, ErrExists)
	}
	return err
}

// Create makes an empty device and sets the transaction id.
func (p *Pool) Create(dev, transaction uint64) error {
	return p.change(transaction, func() error {
		if err := p.absentLocked(dev); err != nil {
			return err
		}
		p.changed = true
		root, err := p.maps.empty()
		if err != nil {
			return err
		}
		return p.addLocked(dev, root, details{transaction: p.sb.transaction, created: p.sb.time, snapped: p.sb.time})
	})
}

func (p *Pool) addLocked(dev, root uint64, d details) (err error) {
	if p.sb.mapping, err = p.top.insert(p.sb.mapping, dev, u64(root)); err != nil {
		return err
	}
	p.sb.details, err = p.det.insert(p.sb.details, dev, d.bytes())
	return err
}

// Snapshot makes dev a snapshot of origin. No write lease on an open origin
// may be out (swap.Freeze).
func (p *Pool) Snapshot(dev, origin, transaction uint64) error {
	return p.change(transaction, func() error {
		if err := p.absentLocked(dev); err != nil {
			return err
		}
		v, err := p.top.lookup(p.sb.mapping, origin)
		if err != nil || v == nil {
			return orNoDevice(err, origin)
		}
		root := le.Uint64(v)
		d, err := p.detailsLocked(origin)
		if err != nil {
			return err
		}
		if p.sb.time == maxTime {
			return fmt.Errorf("thin pool has taken %d snapshots in its life, which is all that its format can tell apart: copy its volumes to a new pool", maxTime)
		}
		p.changed = true
		if err := p.blocks.counts.inc(root); err != nil {
			return err
		}
		p.sb.time++
		d.snapped = p.sb.time
		if o := p.devs[origin]; o != nil {
			o.det.snapped = p.sb.time
		}
		if p.sb.details, err = p.det.insert(p.sb.details, origin, d.bytes()); err != nil {
			return err
		}
		return p.addLocked(dev, root, details{mapped: d.mapped, transaction: p.sb.transaction, created: p.sb.time, snapped: p.sb.time})
	})
}

func orNoDevice(err error, dev uint64) error {
	if err != nil {
		return err
	}
	return fmt.Errorf("%d: %w", dev, ErrNoDevice)
}

func (p *Pool) detailsLocked(dev uint64) (details, error) {
	if d := p.devs[dev]; d != nil {
		return d.det, nil
	}
	v, err := p.det.lookup(p.sb.details, dev)
	if err != nil || v == nil {
		return details{}, orNoDevice(err, dev)
	}
	return parseDetails(v), nil
}

// Delete removes a device; it must not be open.
func (p *Pool) Delete(dev, transaction uint64) error {
	return p.change(transaction, func() error {
		if p.devs[dev] != nil {
			return blockdev.ErrInUse
		}
		root, found, err := p.top.remove(p.sb.mapping, dev)
		if err != nil || !found {
			p.changed = err != nil
			return orNoDevice(err, dev)
		}
		p.changed = true
		p.sb.mapping = root
		p.sb.details, _, err = p.det.remove(p.sb.details, dev)
		p.freedLocked()
		return err
	})
}

// SetTransaction changes the transaction id alone.
func (p *Pool) SetTransaction(id uint64) error { return p.change(id, func() error { return nil }) }

// Devices lists the ids of all devices.
func (p *Pool) Devices() ([]uint64, error) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	var out []uint64
	err := p.top.walk(p.sb.mapping, 0, func(k uint64, _ []byte) bool { out = append(out, k); return true })
	return out, err
}

// Mapped is how many bytes of a device are allocated.
func (p *Pool) Mapped(dev uint64) (int64, error) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	d, err := p.detailsLocked(dev)
	return int64(d.mapped) * p.chunk, err
}
