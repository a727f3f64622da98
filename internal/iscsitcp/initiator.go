package iscsitcp

import (
	"fmt"

	"softiser/internal/iscsi"
	"softiser/internal/list"
	"softiser/internal/segs"
)

// task is a SCSI command of the initiator that has buffers.
type task struct {
	itt    uint32
	lun    uint64
	bufs   *iscsi.TaskBuffers
	inLen  uint32 // bytes of bufs.In
	outLen uint32 // bytes of bufs.Out
	placed uint32 // Data-In bytes that have arrived
	dataSN uint32 // next Data-In
	r2tSN  uint32 // next R2T
	queued int    // PDUs in the transmit queue that use bufs.Out
	fault  bool   // bufs.In cannot be written
	aimed  bool   // bufs.In is what a guess is aimed at
	slot   int
	next   *task // hash chain, free list

	node list.Node[task] // in taskTable.reads
}

const taskBuckets = 128

// taskTable finds tasks by Initiator Task Tag. Guarded by Conn.mu.
type taskTable struct {
	buckets [taskBuckets]*task
	slots   []*task
	free    *task
	reads   list.List[task] // those with input that no later one has overtaken, in the order in which they were sent
	reading int             // tasks with enough input to be worth placing directly
	// direct: such tasks are about, or come and go; the receive goroutine does
	// not read ahead into their data.
	direct bool
}

func bucket(itt uint32) uint32 { return itt * 0x9e3779b1 >> 25 }

func (t *taskTable) find(itt uint32) *task {
	for k := t.buckets[bucket(itt)]; k != nil; k = k.next {
		if k.itt == itt {
			return k
		}
	}
	return nil
}

// directLen is how much data makes an extra system call cheaper than a copy.
const directLen = 4096

func (t *taskTable) add(itt uint32, b *iscsi.TaskBuffers) *task {
	k := t.free
	if k == nil {
		k = &task{slot: len(t.slots)}
		t.slots = append(t.slots, k)
	} else {
		t.free = k.next
	}
	*k = task{itt: itt, bufs: b, slot: k.slot, inLen: uint32(segs.Total(b.In)), outLen: uint32(segs.Total(b.Out))}
	if k.inLen >= directLen {
		t.reading++
	}
	t.direct = t.reading > 0
	if k.inLen > 0 {
		t.reads.Push(&k.node, k)
	}
	h := bucket(itt)
	k.next, t.buckets[h] = t.buckets[h], k
	b.Slot = k.slot
	return k
}

func (t *taskTable) remove(k *task) {
	p := &t.buckets[bucket(k.itt)]
	for *p != k {
		p = &(*p).next
	}
	*p = k.next
	if k.inLen >= directLen {
		t.reading--
	}
	t.reads.RemoveThrough(&k.node)
	k.bufs = nil
	k.next, t.free = t.free, k
}

// purge ends everything. Who waits to take a task's memory away finds that it has gone.
func (t *taskTable) purge() {
	for _, k := range t.slots {
		k.bufs = nil
	}
	*t = taskTable{}
}

// sendInitiatorLocked queues a PDU of the initiator; a SCSI Command takes its
// immediate data and its unsolicited Data-Outs with it.
func (c *Conn) sendInitiatorLocked(p *iscsi.PDU, op iscsi.Opcode) error {
	c.expStatSN = p.BHS.ExpStatSN()
	b := p.Bufs
	if op != iscsi.OpSCSICommand || b == nil {
		c.queueControlLocked(p, op)
		return nil
	}
	itt := p.BHS.ITT()
	out := uint32(segs.Total(b.Out))
	switch {
	case c.tasks.find(itt) != nil:
		return fmt.Errorf("iscsitcp: task tag %#x is in use", itt)
	case b.Unsolicited > out || b.Immediate > b.Unsolicited || b.Immediate > c.params.MaxXmitDataSegmentLength || len(p.Data) > 0:
		return fmt.Errorf("iscsitcp: %d bytes of immediate and %d of unsolicited data do not fit the %d bytes to write", b.Immediate, b.Unsolicited, out)
	}
	k := c.tasks.add(itt, b)
	k.lun = p.BHS.LUN()
	b.InLen = 0
	o := c.queueControlLocked(p, op)
	if b.Immediate > 0 {
		c.lendLocked(o, k, 0, b.Immediate)
	}
	if b.Unsolicited > b.Immediate {
		c.dataOutLocked(k, iscsi.ReservedTag, b.Immediate, b.Unsolicited-b.Immediate)
	}
	return nil
}

// lendLocked makes a range of the task's output the data of o.
func (c *Conn) lendLocked(o *outPDU, k *task, off, n uint32) {
	o.Data = segs.Of(k.bufs.Out, int(off), int(n))
	o.task, o.payload = k, true
	k.queued++
}

// dataOutLocked queues one sequence of Data-Outs.
func (c *Conn) dataOutLocked(k *task, ttt, off, n uint32) {
	for sn := uint32(0); n > 0; sn++ {
		m := min(n, c.params.MaxXmitDataSegmentLength)
		var b iscsi.BHS
		d := b.NewDataOut()
		d.SetTTT(ttt)
		if ttt != iscsi.ReservedTag {
			d.SetLUN(k.lun)
		}
		d.SetITT(k.itt)
		d.SetExpStatSN(c.expStatSN)
		d.SetDataSN(sn)
		d.SetOffset(off)
		d.SetFinal(m == n)
		o := c.tx.alloc(&b)
		o.digest = true
		c.lendLocked(o, k, off, m)
		c.tx.push(o)
		off, n = off+m, n-m
	}
}

// ReleaseTask implements iscsi.Datamover.
func (c *Conn) ReleaseTask(b *iscsi.TaskBuffers) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if b.Slot < 0 || b.Slot >= len(c.tasks.slots) {
		return
	}
	if k := c.tasks.slots[b.Slot]; k.bufs == b {
		for c.placing == k || k.aimed {
			c.cond.Wait()
		}
		if k.bufs == b {
			c.releaseLocked(k)
		}
	}
}

// releaseLocked takes a task out of the tables; afterwards nothing refers to its
// memory. PDUs that have not begun are dropped; what is left of one that has, or that
// has been offered to the socket, is copied, for the stream must stay whole.
func (c *Conn) releaseLocked(k *task) {
	b := k.bufs
	for k.queued > 0 && c.tx.Sending() {
		c.cond.Wait()
	}
	if k.bufs != b { // released by another caller while this one waited
		return
	}
	if k.queued > 0 {
		c.tx.Remove(func(p *outPDU) bool {
			switch {
			case p.task != k:
				return false
			case p.Taken() || p.bhs().Opcode() != iscsi.OpDataOut: // TLS may have sealed what the transmitter has seen
				c.stats.copied.Add(uint64(p.detach()))
				p.task = nil
				return false
			}
			return true
		})
		k.queued = 0
	}
	c.tasks.remove(k)
}
