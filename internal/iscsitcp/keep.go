package iscsitcp

import (
	"slices"
	"sync/atomic"

	"softiser/internal/iscsi"
	"softiser/internal/segs"
)

// Bounds of what a connection keeps, and of what it sends again at a time.
const (
	keepBytes  = 16 << 20 // data of READs
	keepStatus = 1024     // numbered PDUs
	keepPDUs   = 1 << 14  // records of Data-Ins whose command has been answered, or all of one command
	againPDUs  = 4096     // retransmissions in the transmit queue
)

// keeper holds what a target has sent until the initiator has acknowledged it, at
// error recovery level 1 and above. Guarded by Conn.mu.
//
//	Data-In 0 1 2 3 │ 4 5      first = 4, next = 6
//	────────────────┘          DataACK moves first on
//	  StatSN 17 18 19          ExpStatSN of any PDU drops what comes before it,
//	                           and the Data-Ins of the commands answered there
//
// Data is copied: what is sent again is what was sent, whatever has been written to
// the volume since. The copies are bounded; when there is no room the oldest
// command that has been answered loses its own, or else the new one is sent
// without. A SNACK for it is then rejected.
type keeper struct {
	room    int          // bytes that may still be kept
	memory  iscsi.Memory // of which they are reserved; nil: there is no common bound
	pdus    int          // records of Data-Ins
	closed  bool         // nothing is kept any more
	status  []keptStatus
	tasks   map[uint32]*keptTask // by ITT
	tags    map[uint32]*keptTask // by the tag of Data-Ins that ask for a DataACK
	lastTag uint32
}

// keptStatus is a numbered PDU that has not been acknowledged.
type keptStatus struct {
	sn   uint32
	when uint64 // of a SCSI Response: see iscsi.Recovery.Holds
	bhs  iscsi.BHS
	data []byte
	lost bool      // there was no room for data
	task *keptTask // of a SCSI Response
}

// answers counts the SCSI Responses that were kept.
var answers atomic.Uint64

// keptTask is a READ whose Data-Ins have not all been acknowledged. A command
// that has been answered and has no data is not here.
type keptTask struct {
	itt      uint32
	lun      uint64
	tag      uint32 // of its Data-Ins with the A bit
	snackTag uint32 // of the last R-Data SNACK
	first    uint32 // DataSN of pdus[0]; those before it have been acknowledged
	pdus     []keptPDU
	bytes    int
	answered bool
	lost     bool // data was sent that is not kept
}

// keptPDU is a Data-In.
type keptPDU struct {
	off   uint32
	data  []byte
	final bool // F
	ack   bool // A
}

func newKeeper(m iscsi.Memory) keeper {
	return keeper{room: keepBytes, memory: m, tasks: map[uint32]*keptTask{}, tags: map[uint32]*keptTask{}}
}

// take makes room for n bytes, or reports that there is none.
func (k *keeper) take(n int) bool {
	if k.closed || k.room < n || k.memory != nil && !k.memory.Reserve(n) {
		return false
	}
	k.room -= n
	return true
}

// give ends the use of n bytes.
func (k *keeper) give(n int) {
	k.room += n
	if k.memory != nil {
		k.memory.Unreserve(n)
	}
}

// close gives everything up. The keeper keeps nothing afterwards.
func (k *keeper) close() {
	k.closed = true
	for _, t := range k.tasks {
		k.drop(t)
	}
	for i := range k.status {
		k.give(len(k.status[i].data))
	}
	k.status, k.pdus = nil, 0
	clear(k.tasks)
	clear(k.tags)
}

func (k *keptTask) next() uint32 { return k.first + uint32(len(k.pdus)) }

// task finds the record of a running READ, or makes it.
func (k *keeper) task(x *iscsi.Transfer) *keptTask {
	t := k.tasks[x.ITT]
	if t != nil && !t.answered {
		return t
	}
	if t != nil { // the tag is in use again: the answer has arrived
		k.forget(t)
	}
	if k.lastTag++; k.lastTag == iscsi.ReservedTag {
		k.lastTag = 1
	}
	t = &keptTask{itt: x.ITT, lun: x.LUN, tag: k.lastTag}
	k.tasks[t.itt], k.tags[t.tag] = t, t
	return t
}

// copyOf returns a copy of the data of x that is accounted to t; nil when there is
// no room.
func (k *keeper) copyOf(t *keptTask, x *iscsi.Transfer) []byte {
	n := int(x.Len)
	for i := 0; i < len(k.status) && k.room < n; i++ {
		if old := k.status[i].task; old != nil && old.bytes > 0 {
			k.drop(old)
		}
	}
	if t.lost || !k.take(n) {
		k.drop(t)
		return nil
	}
	t.bytes += n
	b, at := make([]byte, n), 0
	for _, s := range x.Segs {
		c, ok := segs.Copy(b[at:], s)
		if !ok {
			k.drop(t)
			return nil
		}
		at += c
	}
	return b
}

// drop gives the data of t up.
func (k *keeper) drop(t *keptTask) {
	t.lost = true
	k.give(t.bytes)
	t.bytes = 0
	for i := range t.pdus {
		t.pdus[i].data = nil
	}
}

// forget ends the record of t.
func (k *keeper) forget(t *keptTask) {
	k.give(t.bytes)
	k.pdus -= len(t.pdus)
	t.bytes, t.pdus = 0, nil
	if k.tasks[t.itt] == t {
		delete(k.tasks, t.itt)
	}
	delete(k.tags, t.tag)
	for i := range k.status {
		if k.status[i].task == t {
			k.status[i].task = nil
		}
	}
}

// acked drops what the initiator acknowledges with ExpStatSN. A number that was
// not sent yet acknowledges nothing.
func (k *keeper) acked(exp uint32) {
	n := 0
	if len(k.status) > 0 {
		n = int(int32(exp - k.status[0].sn))
	}
	if n <= 0 || n > len(k.status) {
		return
	}
	k.shift(n)
}

// shift drops the n oldest numbered PDUs.
func (k *keeper) shift(n int) {
	for i := range n {
		if t := k.status[i].task; t != nil {
			k.forget(t)
		}
		k.give(len(k.status[i].data))
	}
	k.status = slices.Delete(k.status, 0, n)
}

// ackedData is a DataACK: everything before the DataSN exp has arrived.
func (k *keeper) ackedData(t *keptTask, exp uint32) {
	n := int(exp - t.first)
	for _, p := range t.pdus[:n] {
		k.give(len(p.data))
		t.bytes -= len(p.data)
	}
	k.pdus -= n
	t.pdus = slices.Delete(t.pdus, 0, n)
	t.first = exp
}

// numbered reports whether a PDU of the target takes a StatSN (RFC 7143
// §4.2.2.2); Data-In and R2T are not asked about.
func numbered(b *iscsi.BHS) bool {
	return b.Opcode() != iscsi.OpNopIn || b.ITT() != iscsi.ReservedTag
}

// sent takes note of a control PDU, which may still be changed.
func (k *keeper) sent(p *iscsi.PDU) {
	if !numbered(&p.BHS) || p.BHS.Opcode() == iscsi.OpLoginResponse || k.closed {
		return
	}
	s := keptStatus{sn: p.BHS.StatSN()}
	if s.lost = !k.take(len(p.Data)); !s.lost {
		s.data = slices.Clone(p.Data)
	}
	if p.BHS.Opcode() == iscsi.OpSCSIResponse {
		s.when = answers.Add(1)
		if t := k.tasks[p.BHS.ITT()]; t != nil && !t.answered {
			t.answered = true
			s.task = t
			s.finish(&p.BHS)
		}
	}
	s.bhs = p.BHS
	for len(k.status) == keepStatus || k.pdus > keepPDUs && len(k.status) > 0 {
		k.shift(1)
	}
	k.status = append(k.status, s)
}

// finish brings the fields of a SCSI Response up to date that depend on how its
// data was sent.
func (s *keptStatus) finish(b *iscsi.BHS) {
	if s.task != nil {
		r := b.SCSIResponse()
		r.SetExpDataSN(s.task.next())
		r.SetSNACKTag(s.task.snackTag)
	}
}

// answer finds the SCSI Response for a task among the numbered PDUs, the last one with its tag;
// -1 when there is none.
func (k *keeper) answer(itt uint32) int {
	for i := len(k.status) - 1; i >= 0; i-- {
		if b := &k.status[i].bhs; b.Opcode() == iscsi.OpSCSIResponse && b.ITT() == itt {
			return i
		}
	}
	return -1
}
