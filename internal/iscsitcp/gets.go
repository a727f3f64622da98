package iscsitcp

import (
	"softiser/internal/iscsi"
	"softiser/internal/list"
)

// get is one running GetData of the target.
type get struct {
	x     *iscsi.Transfer // nil once it is complete or aborted
	itt   uint32
	asked uint32 // bytes covered by R2Ts so far
	got   uint32 // bytes that have arrived
	lost  []hole // asked for, and to be asked for again
	tries int    // how many holes there were
	stale []r2t  // R2Ts whose time was over before anything came: they may not have arrived
	open  int    // R2Ts outstanding
	fault bool   // the memory cannot be written
	slot  int
	node  list.Node[get] // in getTable.running
}

// hole is a range of a get that did not arrive as it was asked for.
type hole struct{ off, n uint32 }

// wanted returns the next range to be asked for, of at most most bytes.
func (g *get) wanted(most uint32) (off, n uint32, ok bool) {
	if len(g.lost) > 0 {
		h := g.lost[0]
		g.lost = g.lost[1:]
		return h.off, h.n, true
	}
	if g.asked == g.x.Len {
		return 0, 0, false
	}
	off, n = g.asked, min(most, g.x.Len-g.asked)
	g.asked += n
	return off, n, true
}

// r2t is one outstanding R2T: the range that a Target Transfer Tag stands for.
type r2t struct {
	g      *get
	ttt    uint32
	off, n uint32 // range within the transfer
	got    uint32 // of n: has arrived or been given up
	dataSN uint32
	seen   iscsi.Spans // what has arrived, with DataPDUInOrder=No
	sn     uint32      // R2TSN
	idle   bool        // nothing has come since the watch last looked
	order  uint64      // in which R2Ts were sent; see getTable.moved
	index  int
	gen    uint16
	again  bool // every generation has been used
}

// maxGen keeps tags away from the reserved one.
const maxGen = 1 << 15

// maxR2Ts is how many R2Ts of a task are outstanding at most, whatever was
// negotiated: their index has 16 bits for all tasks of a connection.
const maxR2Ts = 32

// getTable holds what the target has asked for. Guarded by Conn.mu; g.x does not
// change while Conn.placing is g.
//
// A tag is the index of its r2t and a generation, so that data for a tag that
// has been given up is told from data that nobody asked for.
type getTable struct {
	slots     []*get
	freeSlots []int
	running   list.List[get] // in the order of GetData
	r2ts      []*r2t
	freeR2Ts  []int

	sent uint64 // the order of the last R2T
	// moved is the order of the earliest R2T of which data has come since the watch last looked; 0: none has.
	moved uint64
}

// beforeAll is the order of R2Ts that have been given up.
const beforeAll = 1

// send gives an R2T its place behind all that have been sent.
func (t *getTable) send(r *r2t) {
	t.sent = max(t.sent, beforeAll) + 1
	r.order = t.sent
}

// move takes note of data of the R2T with an order.
func (t *getTable) move(order uint64) {
	if t.moved == 0 || order < t.moved {
		t.moved = order
	}
}

// waits reports whether there is still data on its way that was asked for before that of r.
func (t *getTable) waits(r *r2t) bool { return t.moved != 0 && t.moved < r.order }

func (t *getTable) add(x *iscsi.Transfer) {
	var g *get
	if n := len(t.freeSlots); n > 0 {
		g = t.slots[t.freeSlots[n-1]]
		t.freeSlots = t.freeSlots[:n-1]
	} else {
		g = &get{slot: len(t.slots)}
		t.slots = append(t.slots, g)
	}
	*g = get{x: x, itt: x.ITT, slot: g.slot}
	t.running.Push(&g.node, g)
	x.Own.Slot = g.slot
}

func (t *getTable) find(x *iscsi.Transfer) *get {
	if x.Own.Slot < 0 || x.Own.Slot >= len(t.slots) || t.slots[x.Own.Slot].x != x {
		return nil
	}
	return t.slots[x.Own.Slot]
}

// remove ends a get and retires its tags.
func (t *getTable) remove(g *get) {
	if g.open > 0 {
		for _, r := range t.r2ts {
			if r.g == g {
				t.close(r)
			}
		}
	}
	t.running.Remove(&g.node)
	g.x = nil
	t.freeSlots = append(t.freeSlots, g.slot)
}

// open makes the tag for n bytes of g at off.
func (t *getTable) open(g *get, off, n uint32) *r2t {
	var r *r2t
	if k := len(t.freeR2Ts); k > 0 {
		r = t.r2ts[t.freeR2Ts[k-1]]
		t.freeR2Ts = t.freeR2Ts[:k-1]
	} else {
		r = &r2t{index: len(t.r2ts)}
		t.r2ts = append(t.r2ts, r)
	}
	gen := r.gen%maxGen + 1
	*r = r2t{g: g, off: off, n: n, seen: r.seen[:0], index: r.index, gen: gen, again: r.again || r.gen == maxGen, ttt: uint32(gen)<<16 | uint32(r.index)}
	g.open++
	return r
}

func (t *getTable) close(r *r2t) {
	r.g.open--
	r.g = nil
	t.freeR2Ts = append(t.freeR2Ts, r.index)
}

// lookup finds a tag. stale is true for a tag that was valid once.
func (t *getTable) lookup(ttt uint32) (r *r2t, stale bool) {
	i, gen := int(ttt&0xffff), uint16(ttt>>16)
	if i >= len(t.r2ts) {
		return nil, false
	}
	r = t.r2ts[i]
	if r.g != nil && r.gen == gen {
		return r, false
	}
	return nil, gen != 0 && (gen <= r.gen || r.again && gen <= maxGen)
}

// purge ends everything and prepends it to the list of completed transfers.
func (t *getTable) purge(done *iscsi.Transfer, err error) *iscsi.Transfer {
	for g := t.running.First(); g != nil; g = t.running.First() {
		x := g.x
		if x.Err == nil {
			x.Err = err
		}
		// R2Ts without any data count as not seen by the initiator, in case that the data is asked for again.
		for _, r := range t.r2ts {
			if sn := snOf(x.Ref); r.g == g && r.got == 0 && iscsi.SerialLess(r.sn, sn.r2tSN()) {
				sn.setR2TSN(r.sn)
			}
		}
		t.remove(g)
		x.Own.Next, done = done, x
	}
	return done
}
