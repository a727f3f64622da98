package volume

import (
	"context"
	"errors"
	"sync/atomic"
	"time"
)

// Trace follows the commands of one volume, whichever wire they come by, while somebody
// looks: when each was at which Step, and what it has waited for. Without one a command
// loads one pointer at Admit, which is nil, and tests one of its own at each step.
//
// Its records are made with it. Commands that find none free, because nobody takes what
// has ended, are left out and counted; none ever waits.
type Trace struct {
	of      *tracing
	slower  time.Duration
	free    chan *traced
	ended   chan *traced // has room for all records
	over    chan struct{}
	leftOut atomic.Uint64
}

// traceRecords are those of a Trace: as many commands may be followed and not yet taken.
const traceRecords = 1024

// tracing is who traces a volume: the part of it that its commands look at.
type tracing struct {
	trace atomic.Pointer[Trace] // nil: nobody
}

// Step is a moment of a command's way.
type Step uint8

// Steps. A command that comes by one again (a long write, which is received in pieces) keeps
// the first time of Leased and the last one of the others.
const (
	Leased    Step = iota // it has the memory that its data goes to or comes from
	Placed                // of a write: its data is there; of a read: the transport has it
	Committed             // what it has written, copied or taken away is so in the volume, durable if it asks for that; a flush has flushed. Of writes in turn it has the time of the batch, see owed
	Answered              // its status has been given to the transport
	Released              // the transport needs nothing of it any more: the data of a read has been sent

)

// TracedCommand is a command that has been followed. Times count from Arrived; 0: it has not
// come by that step.
type TracedCommand struct {
	Arrived   time.Time `json:"arrived"`
	Wire      string    `json:"wire"` // iSCSI/TCP, iSER, NVMe/TCP, NVMe/RDMA, …
	Node      string    `json:"node"` // target, or subsystem
	Unit      uint32    `json:"unit"` // LUN, or namespace
	Initiator string    `json:"initiator"`
	Session   uint16    `json:"session"`         // TSIH, or controller
	Queue     uint16    `json:"queue,omitempty"` // NVMe
	Tag       uint32    `json:"tag"`             // initiator task tag, or command identifier
	Command   string    `json:"command"`
	LBA       uint64    `json:"lba"`
	Bytes     int64     `json:"bytes"` // 0: it names no blocks
	Status    string    `json:"status"`

	Leased    time.Duration `json:"leased_ns,omitempty"`
	Placed    time.Duration `json:"placed_ns,omitempty"`
	Committed time.Duration `json:"committed_ns,omitempty"`
	Answered  time.Duration `json:"answered_ns"`
	Released  time.Duration `json:"released_ns"`
	Waited    TraceWaits    `json:"waited"`

	// LeftOut is how many commands have been left out so far, for want of records.
	LeftOut uint64 `json:"left_out_total"`
}

// TraceWaits are what a command has waited for in its volume.
type TraceWaits struct {
	Order  time.Duration `json:"order_ns,omitempty"` // older ones that go first, a freeze
	QoS    time.Duration `json:"qos_ns,omitempty"`
	Range  time.Duration `json:"range_ns,omitempty"`  // blocks that others hold, or a rewrite
	Memory time.Duration `json:"memory_ns,omitempty"` // a share of the staging memory
	Worker time.Duration `json:"worker_ns,omitempty"`
}

var (
	errTraced = errors.New("somebody else traces this volume")
	// ErrVolumeGone ends the trace of a volume whose last place has been removed.
	ErrVolumeGone = errors.New("the volume has been removed")
)

// Trace begins to follow commands, those that come from now on and take no less than
// slower until they are answered. The caller calls Next until Stop.
func (s *tracing) Trace(slower time.Duration) (*Trace, error) {
	t := &Trace{
		of: s, slower: slower, over: make(chan struct{}),
		free: make(chan *traced, traceRecords), ended: make(chan *traced, traceRecords),
	}
	for range traceRecords {
		t.free <- &traced{trace: t}
	}
	if !s.trace.CompareAndSwap(nil, t) {
		return nil, errTraced
	}
	return t, nil
}

// Stop ends the trace. Commands that are under way drop it as they end.
func (t *Trace) Stop() { t.of.trace.CompareAndSwap(t, nil) }

// endTrace tells whoever traces the volume that it is gone.
func (s *tracing) endTrace() {
	if t := s.trace.Swap(nil); t != nil {
		close(t.over)
	}
}

// Next waits for a command that has ended.
func (t *Trace) Next(ctx context.Context) (c TracedCommand, err error) {
	select {
	case r := <-t.ended:
		c = r.TracedCommand
		t.free <- r
		return c, nil
	case <-ctx.Done():
		return c, ctx.Err()
	case <-t.over:
		return c, ErrVolumeGone
	}
}

// Waiting reports whether Next has something at once.
func (t *Trace) Waiting() bool { return len(t.ended) > 0 }

// traced is the record of a command under way. It belongs to whoever has the command.
type traced struct {
	TracedCommand
	trace   *Trace
	in      State
	entered time.Time // in
}

// begin follows o, if a record is free. No locks are held.
func (t *Trace) begin(o *Op) {
	select {
	case r := <-t.free:
		r.TracedCommand, r.in = TracedCommand{}, Idle
		if o.req.Describe(&r.TracedCommand); r.Arrived.IsZero() {
			r.Arrived = time.Now()
		}
		o.traced = r
	default:
		t.leftOut.Add(1)
	}
}

// at notes that the command comes by a step.
func (r *traced) at(s Step) {
	d := max(time.Since(r.Arrived), 1)
	switch s {
	case Leased:
		if r.Leased == 0 {
			r.Leased = d
		}
	case Placed:
		r.Placed = d
	case Committed:
		r.Committed = d
	case Answered:
		r.Answered = d
	case Released:
		r.Released = d
	}
}

// pass notes that the command goes to another state.
func (r *traced) pass(s State) {
	now := time.Now()
	switch w := now.Sub(r.entered); r.in {
	case Dormant:
		r.Waited.Order += w
	case Queued:
		r.Waited.Worker += w
	case Throttled:
		r.Waited.QoS += w
	case Blocked:
		r.Waited.Range += w
	case Staging:
		r.Waited.Memory += w
	}
	r.in, r.entered = s, now
}

// finish gives the record to whoever takes it, or back when nobody wants to see the command.
func (r *traced) finish() {
	t := r.trace
	if r.Answered == 0 || r.Answered < t.slower { // it has entered another volume, or is fast
		t.free <- r
		return
	}
	r.at(Released)
	r.LeftOut = t.leftOut.Load()
	t.ended <- r
}

// Stamp notes that the command comes by a step, if it is followed.
func (o *Op) Stamp(s Step) {
	if o.traced != nil {
		o.traced.at(s)
	}
}

// Traced reports whether the command is followed, so that its status has to be said.
func (o *Op) Traced() bool { return o.traced != nil }

// Tell notes the status that the command is answered with. Preconditions: it is traced.
func (o *Op) Tell(status string) {
	o.traced.Status = status
	o.traced.at(Answered)
}

// TraceRefused follows a command that ends without having been admitted.
func (s *tracing) TraceRefused(o *Op) {
	if t := s.trace.Load(); t != nil {
		t.begin(o)
	}
}
