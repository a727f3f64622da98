package iser

import (
	"softiser/internal/iscsi"
	"softiser/internal/rdmamsg"
	"softiser/rdma"
)

// task is a SCSI command of the initiator that has buffers.
type task struct {
	itt  uint32
	bufs *iscsi.TaskBuffers
	// Windows over the memory that the target may write (In) and read (Out); nil
	// when there is none. inv is the STag that a SendInv must name.
	in, out *rdma.Window
	inv     uint32
	hasInv  bool
	inLen   uint32 // bytes of bufs.In, which is not looked at when the response comes
	slot    int
	next    *task // hash chain, free list
}

const taskBuckets = 128

// taskTable finds tasks by Initiator Task Tag. Guarded by Conn.mu.
type taskTable struct {
	buckets [taskBuckets]*task
	slots   []*task
	free    *task
}

// bucket takes the low bits, where an initiator has the number of its slot: the
// tasks of a session with few at a time stay in few cache lines.
func bucket(itt uint32) uint32 { return itt % taskBuckets }

func (t *taskTable) find(itt uint32) *task {
	for k := t.buckets[bucket(itt)]; k != nil; k = k.next {
		if k.itt == itt {
			return k
		}
	}
	return nil
}

func (t *taskTable) add(itt uint32, b *iscsi.TaskBuffers) *task {
	k := t.free
	if k == nil {
		k = &task{slot: len(t.slots)}
		t.slots = append(t.slots, k)
	} else {
		t.free = k.next
	}
	h := bucket(itt)
	*k = task{itt: itt, bufs: b, slot: k.slot, next: t.buckets[h]}
	t.buckets[h] = k
	b.Slot = k.slot
	return k
}

// release forgets a task and closes its windows, of ws: when it returns, nothing touches its
// memory. It reports whether the peer's data reached that memory whole.
func (t *taskTable) release(k *task, ws *rdmamsg.Windows) (whole bool) {
	whole = true
	for _, w := range []*rdma.Window{k.in, k.out} {
		if w != nil {
			whole = ws.Close(w) && whole
		}
	}
	p := &t.buckets[bucket(k.itt)]
	for *p != k {
		p = &(*p).next
	}
	*p = k.next
	k.bufs, k.in, k.out = nil, nil, nil
	k.next, t.free = t.free, k
	return whole
}
