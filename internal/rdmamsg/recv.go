package rdmamsg

import (
	"fmt"

	"softiser/rdma"
)

// Receive buffers are posted in chunks: the first when the device is opened, the
// next whenever fewer than lowWater are left.
const (
	chunkLen = 64
	lowWater = 48
)

// chunk is a piece of memory cut into receive buffers. Its pages are touched
// only when a buffer is used.
type chunk struct {
	mem  []byte
	bufs [chunkLen]Recv
}

// Recv is one receive buffer.
type Recv struct {
	// App is what the protocol above keeps with the buffer for all times; its own. nil
	// when the buffer is used for the first time.
	App any

	d    *Device
	id   uint64
	sgl  [1]rdma.SGE
	link *Link // that counts the buffer among those that it keeps; nil: none does
	next *Recv // in Spent
}

// refill sees to it that there are receive buffers again. Those who find none while somebody
// else does wait for it here.
func (d *Device) refill() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.srq.Len() >= lowWater {
		d.srq.Arm(lowWater)
		return nil
	}
	return d.growLocked()
}

// growLocked posts another chunk of receive buffers and arms the next low-water event.
// Preconditions: d.mu is held.
func (d *Device) growLocked() error {
	if (len(d.chunks)+1)*chunkLen > d.max {
		return fmt.Errorf("%w: there are %d receive buffers already", rdma.ErrLimit, d.max)
	}
	n := d.recvLen
	c := &chunk{mem: make([]byte, chunkLen*n)}
	base := uint64(len(d.chunks) * chunkLen)
	d.chunks = append(d.chunks, c)
	t := append([]*chunk(nil), d.chunks...)
	d.table.Store(&t)
	for i := range c.bufs {
		b := &c.bufs[i]
		b.d, b.id = d, base+uint64(i)
		b.sgl[0] = rdma.SGE{Mem: c.mem[i*n : (i+1)*n : (i+1)*n], LKey: d.pd.LocalDMAKey()}
		if err := b.post(); err != nil {
			return err
		}
	}
	d.srq.Arm(lowWater)
	return nil
}

func (b *Recv) post() error { return b.d.srq.PostRecv(rdma.RecvWR{ID: b.id, SGL: b.sgl[:]}) }

// Spent are buffers that are done with, until they are posted together. The zero Spent is empty.
type Spent struct{ head *Recv }

// Put ends the use of a message. The buffer stays as it is until Free.
func (s *Spent) Put(b *Recv) { b.next, s.head = s.head, b }

// Free lets the buffers receive again.
func (s *Spent) Free() {
	if s.head == nil {
		return
	}
	q := s.head.d.srq
	q.Lock()
	for b := s.head; b != nil; {
		next := b.next
		b.next = nil
		b.uncount()
		// The queue has room for every buffer there is.
		_ = q.PostRecvLocked(&rdma.RecvWR{ID: b.id, SGL: b.sgl[:]})
		b = next
	}
	q.Unlock()
	s.head = nil
}

// Msg is the first n bytes of the buffer.
func (b *Recv) Msg(n uint32) []byte { return b.sgl[0].Mem[:n] }

// Free ends the use of the message: the buffer can receive again.
func (b *Recv) Free() {
	b.uncount()
	// The queue has room for every buffer there is.
	_ = b.post()
}

// uncount undoes Keep.
func (b *Recv) uncount() {
	if b.link == nil {
		return
	}
	b.d.out.Add(-1)
	b.link.kept.Add(-1)
	b.link = nil
}

// fewReceives is how many receive buffers every connection may hold in any case.
const fewReceives = 4

// scarce reports whether a connection must leave the receive buffer that it has just
// filled: out of them are held, more than a third, and kept of these by this
// connection, which is more than its share. Those that hold no more than theirs find
// a buffer whatever the others do.
func (d *Device) scarce(out, kept int64) bool {
	third := int64(d.max) / 3
	return out > third && kept > max(third/max(d.links.Load(), 1), fewReceives)
}

// Received returns the buffer of a receive completion, which belongs to the caller
// until Free, or Spent.Free. Whoever needs it beyond the handler of the completion calls Keep.
func (l *Link) Received(wc *rdma.WC) *Recv {
	t := *l.d.table.Load()
	return &t[wc.ID/chunkLen].bufs[wc.ID%chunkLen]
}

// Keep counts the buffer b, which the link has received into, as held until it is freed. scarce
// tells the caller to free it at once, and to do without what is in it.
func (l *Link) Keep(b *Recv) (scarce bool) {
	b.link = l
	return l.d.scarce(l.d.out.Add(1), l.kept.Add(1))
}
