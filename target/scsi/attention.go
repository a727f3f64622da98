package scsi

import "softiser/internal/spc"

// maxPending bounds the unit attentions of one I_T_L nexus; SPC-4 lets a device
// server drop what it cannot keep.
const maxPending = 16

// attention establishes a unit attention for every nexus of this place that match accepts
// (nil: all). Resets supersede what was pending.
func (lu *LU) attention(a spc.ASC, match func(*Nexus) bool) {
	lu.mu.Lock()
	defer lu.mu.Unlock()
	for n, i := range lu.itls {
		if match == nil || match(n) {
			i.add(a)
		}
	}
}

// add queues a. Preconditions: lu.mu is held.
func (i *itl) add(a spc.ASC) {
	if a>>8 == 0x29 {
		i.queue = i.queue[:0]
	}
	for _, q := range i.queue {
		if q == a {
			return
		}
	}
	if len(i.queue) < maxPending {
		i.queue = append(i.queue, a)
	}
	i.pending.Store(int32(len(i.queue)))
}

// take removes and returns the oldest unit attention.
func (i *itl) take() (spc.ASC, bool) {
	i.lu.mu.Lock()
	defer i.lu.mu.Unlock()
	if len(i.queue) == 0 {
		return 0, false
	}
	a := i.queue[0]
	i.queue = append(i.queue[:0], i.queue[1:]...)
	i.pending.Store(int32(len(i.queue)))
	return a, true
}

// clear removes one kind of unit attention, which its nexus has learnt in
// another way.
func (i *itl) clear(a spc.ASC) {
	i.lu.mu.Lock()
	defer i.lu.mu.Unlock()
	for k, q := range i.queue {
		if q == a {
			i.queue = append(i.queue[:k], i.queue[k+1:]...)
			break
		}
	}
	i.pending.Store(int32(len(i.queue)))
}
