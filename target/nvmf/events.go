package nvmf

import (
	"slices"
	"sync"

	"softiser/internal/nvme"
	"softiser/target/volume"
)

// event is a kind of asynchronous event that a controller may report.
type event uint8

const (
	eventNamespace event = iota
	eventDiscovery
	eventReservation
	eventSanitize
	eventANA
	eventKinds
)

// eventRows tell how a kind of event is reported, and which bit of the asynchronous
// event configuration asks for it; 0: every controller is told.
var eventRows = [eventKinds]struct {
	value nvme.Event
	asked uint32
}{
	eventNamespace:   {nvme.EventNamespaceChanged, nvme.NoticeNamespace},
	eventDiscovery:   {nvme.EventDiscoveryChanged, nvme.NoticeDiscovery},
	eventReservation: {nvme.EventReservation, 0},
	eventSanitize:    {nvme.EventSanitizeDone, 0},
	eventANA:         {nvme.EventANAChanged, nvme.NoticeANA},
}

// maxEventRequests is how many Asynchronous Event Requests a controller holds.
const maxEventRequests = 4

// maxNotices bounds the reservation notices that wait to be read.
const maxNotices = 64

// events are what a controller has to tell its host: each kind once, then no more until
// its log page has been read.
//
//	silent ──report──▶ due ──a request is there──▶ told ──log page read──▶ silent
//	                    ▲                            │ report
//	                    └──── log page read ─── due again
type events struct {
	mu       sync.Mutex       // guards what follows; requests are answered without it
	requests []*request       // Asynchronous Event Requests that wait
	due      [eventKinds]bool // has happened and waits for a request
	told     [eventKinds]bool // was reported, and its log page has not been read
	config   uint32           // Asynchronous Event Configuration, as the host has set it
	changed  []uint32         // namespaces, ascending
	notices  []nvme.ReservationLog
	count    uint64            // of notices
	masks    map[uint32]uint32 // by namespace: kinds of notices that the host does not want
	closed   bool
	hushed   bool // requests are not answered
}

func (e *events) init() { e.masks = map[uint32]uint32{} }

// await keeps an Asynchronous Event Request until there is something to tell.
func (e *events) await(r *request) {
	e.mu.Lock()
	if len(e.requests) >= maxEventRequests {
		e.mu.Unlock()
		r.end(nvme.AERLimitExceeded)
		return
	}
	if e.closed {
		e.mu.Unlock()
		r.end(nvme.AbortRequested)
		return
	}
	e.requests = append(e.requests, r)
	e.mu.Unlock()
	e.answer()
}

func (e *events) waiting() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.requests)
}

// report makes an event due, if the host wants to know of it.
func (e *events) report(k event) {
	e.mu.Lock()
	row := &eventRows[k]
	if row.asked != 0 && e.config&row.asked == 0 {
		e.mu.Unlock()
		return
	}
	e.due[k] = true
	e.mu.Unlock()
	e.tell()
}

// tell answers requests with what is due, and transmits that.
func (e *events) tell() {
	if q := e.answer(); q != nil {
		q.Push()
	}
}

// answer answers requests with what is due, for those who transmit themselves what they queue. It
// returns the admin queue if there was something.
func (e *events) answer() (q *queue) {
	for {
		e.mu.Lock()
		k := e.nextLocked()
		if k == eventKinds || len(e.requests) == 0 || e.hushed {
			e.mu.Unlock()
			return q
		}
		e.due[k], e.told[k] = false, true
		r := e.requests[0]
		e.requests = slices.Delete(e.requests, 0, 1)
		e.mu.Unlock()
		r.result = uint64(eventRows[k].value)
		q = r.q
		r.end(nvme.Success)
	}
}

// nextLocked is the first event that is due and may be told; eventKinds: there is none.
func (e *events) nextLocked() event {
	for k := range eventKinds {
		if e.due[k] && !e.told[k] {
			return k
		}
	}
	return eventKinds
}

// hush has requests wait, whatever is due, until it is called again.
func (e *events) hush(on bool) {
	e.mu.Lock()
	e.hushed = on
	e.mu.Unlock()
	e.tell()
}

// read notes that the log page of an event has been read.
func (e *events) read(k event) {
	e.mu.Lock()
	e.told[k] = false
	e.mu.Unlock()
	e.answer()
}

// configure is the feature Asynchronous Event Configuration.
func (e *events) configure(v uint32) {
	e.mu.Lock()
	e.config = v
	e.mu.Unlock()
}

func (e *events) configured() uint32 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.config
}

// close ends the requests that wait; their queue has gone.
func (e *events) close() {
	e.mu.Lock()
	l := e.requests
	e.requests, e.closed = nil, true
	e.mu.Unlock()
	for _, r := range l {
		q := r.q
		r.end(nvme.AbortRequested)
		q.Push()
	}
}

// reset aborts the requests that wait: a reset of the controller leaves no command behind. What the host wants
// to know of it says anew, and of notices that have come before hears no more; an event of another kind whose
// log page has not been read is not held back any more. The admin queue is transmitted by whoever resets.
func (e *events) reset() {
	e.mu.Lock()
	l := e.requests
	e.requests, e.told, e.config = nil, [eventKinds]bool{}, 0
	for k, row := range eventRows {
		e.due[k] = e.due[k] && row.asked == 0
	}
	clear(e.masks)
	e.mu.Unlock()
	for _, r := range l {
		r.end(nvme.AbortRequested)
	}
}

// namespaceChanged reports that a namespace is another one than before: there, gone, or
// of another size.
func (e *events) namespaceChanged(id uint32) {
	e.mu.Lock()
	if i, found := slices.BinarySearch(e.changed, id); !found {
		e.changed = slices.Insert(e.changed, i, id)
	}
	e.mu.Unlock()
	e.report(eventNamespace)
}

// takeChanged returns the namespaces that have changed; retain keeps them for the next
// reader.
func (e *events) takeChanged(retain bool) []uint32 {
	e.mu.Lock()
	defer e.mu.Unlock()
	if retain {
		return slices.Clone(e.changed) // the next change may insert in front of it
	}
	l := e.changed
	e.changed = nil
	return l
}

// reservation reports what another host has done to a reservation or registration.
func (e *events) reservation(id uint32, k volume.EventKind) {
	n := nvme.ReservationLog{NSID: id}
	mask := uint32(0)
	switch k {
	case volume.RegistrationPreempted:
		n.Notice, mask = nvme.NoticeRegistrationPreempted, nvme.ResvMaskRegistrationPreempted
	case volume.ReservationReleased:
		n.Notice, mask = nvme.NoticeReservationReleased, nvme.ResvMaskReleased
	default:
		n.Notice, mask = nvme.NoticeReservationPreempted, nvme.ResvMaskPreempted
	}
	e.mu.Lock()
	if e.masks[id]&mask != 0 {
		e.mu.Unlock()
		return
	}
	if e.count++; e.count == 0 {
		e.count = 1
	}
	n.Count = e.count
	if len(e.notices) < maxNotices {
		e.notices = append(e.notices, n)
	}
	e.mu.Unlock()
	e.report(eventReservation)
}

// takeNotice returns the oldest reservation notice.
func (e *events) takeNotice(retain bool) nvme.ReservationLog {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.notices) == 0 {
		return nvme.ReservationLog{}
	}
	n := e.notices[0]
	n.Further = uint8(min(len(e.notices)-1, 255))
	if !retain {
		e.notices = slices.Delete(e.notices, 0, 1)
		e.due[eventReservation] = len(e.notices) > 0
	}
	return n
}

func (e *events) setMask(id, mask uint32) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.masks[id] = mask
}

func (e *events) mask(id uint32) uint32 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.masks[id]
}

// errorLog are a controller's last failed commands.
type errorLog struct {
	mu    sync.Mutex                    // guards what follows
	count uint64                        // of entries so far
	last  [errorEntries]nvme.ErrorEntry // a ring, by count
}

const errorEntries = 64

func (l *errorLog) add(r *request, s nvme.Status) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := nvme.ErrorEntry{
		Count: l.count + 1, SQID: r.q.id, CID: r.sqe().CID(), Status: s, Location: 0xFFFF,
		Transport: uint8(r.q.carrier()), Opcode: r.sqe().Opcode(),
	}
	if r.sqe().Opcode() != nvme.OpFabrics {
		e.NSID = r.sqe().NSID()
	}
	if r.row != nil && r.row.ranged {
		e.LBA = r.sqe().ReadWrite().SLBA()
	}
	l.last[l.count%errorEntries] = e
	l.count++
}

// page is the log page, the latest entry first.
func (l *errorLog) page() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	var b []byte
	for i := range uint64(errorEntries) {
		e := nvme.ErrorEntry{}
		if i < l.count {
			e = l.last[(l.count-1-i)%errorEntries]
		}
		b = e.AppendTo(b)
	}
	return b
}
