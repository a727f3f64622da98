package attach

import (
	"context"
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"softiser/blockdev"
	"softiser/initiator/blockio"
	"softiser/initiator/multipath"
	"softiser/initiator/nbd"
	"softiser/initiator/ublk"
	"softiser/internal/handover"
)

// LUN is the part of a blockio.Volume that an attachment needs.
type LUN interface {
	nbd.LUN
	Names() []string
	Flush() error
	OnResize(func(blockdev.Info)) (cancel func())
	Close() error
}

// Nexus is by what a target knows the sessions of an attachment, and what these know of its
// cache: the same for every process that serves the attachment.
type Nexus struct {
	ISID  [6]byte // of iSCSI sessions
	Cache *blockio.Cache
	// Carried are the paths to go on with; none: there is nothing. Open takes them. Other paths
	// log in when After is closed.
	Carried []*multipath.Carried
	After   <-chan struct{}
}

// Options say how a volume is attached.
type Options struct {
	Dir         string // run directory
	URL         string // without secrets: the identity of the attachment
	Open        func(context.Context, Nexus) (LUN, error)
	ISID        [6]byte // Nexus.ISID
	Describe    string
	Export      string // NBD export name
	Socket      string // path; empty: in the run directory
	TCP         string // loopback address to listen on as well; empty: none
	Device      string // "none", "auto" (NBD where the kernel can), "/dev/nbd", "/dev/nbdN", "ublk", "/dev/ublkbN"
	Connections int    // kernel device: sockets of NBD, queues of ublk
	Depth       int    // ublk: requests of one queue under way at once; 0: the default
	// Recover has an ublk device outlive this process, for the next one that attaches the
	// volume. Nothing that the target was given by the former may then take effect any
	// more once Open has returned: iSCSI sessions with the ISID of ISID reinstate its.
	Recover bool
	// Replays tells that Open reinstates the sessions of the process before: what that was
	// doing when it ended may be done once more.
	Replays  bool
	ReadOnly bool
	OnError  func(error)  // told of errors that nobody waits for; nil: nobody is
	OnNotice func(string) // told of what takes time at the end, and of what processes before have left; nil: nobody is
	// FinishTimeout bounds what detaching waits for clients' requests and for the
	// last flush.
	FinishTimeout time.Duration
	// State says how the way to the target is, for the record: "connected", or what
	// is wrong and why. Nil: always connected. Changed, where set, gets a value when
	// it may have changed.
	State   func() (state, reason string)
	Changed <-chan struct{}
	// Time2Wait is how long the targets want nobody to log in under the same names after
	// the sessions have ended without a logout; nil: not at all.
	Time2Wait func() time.Duration
	// Patience is how long requests wait for a volume that the process before had open, and
	// this one has not opened yet; 0: for ever.
	Patience time.Duration
	Upgrade  Upgrade
}

// tellError tells of an error that nobody waits for.
func (o *Options) tellError(err error) {
	if o.OnError != nil {
		o.OnError(err)
	}
}

// notice tells of what is no error.
func (o *Options) notice(text string) {
	if o.OnNotice != nil {
		o.OnNotice(text)
	}
}

// Attachment is a volume being served.
type Attachment struct {
	Record Record

	opt    Options
	nexus  Nexus
	record *os.File // locked
	giving giving
	unwind []func() error // what undo calls
	ended  error          // what undo has met so far

	lun     LUN
	closing sync.Once
	closed  error         // what closing the volume has said
	lost    chan error    // the volume that another process had open cannot be had
	size    chan struct{} // full: the volume has had another size
	still   carrier       // the volume whose session rests; nil: it does not

	// The NBD server.
	srv       *nbd.Server
	export    *nbd.Export
	unix, tcp *handover.Listener // tcp is nil without Options.TCP
	serve     chan error         // how it has ended, of each listener
	protected bool               // the volume was read-only when it was attached

	// The kernel's device.
	ublk      *ublk.Device     // nil: there is none
	client    *blockio.Flusher // whose requests come from the ublk device; nil: there is none
	failed    <-chan error     // of an ublk device; nil: without such news
	nbd       atomic.Int32     // /dev/nbdN: nbdServed, nbdEnding or nbdGone
	parted    chan struct{}    // full: it is gone
	takenBack atomic.Bool      // what the kernel holds of it is being written back
}

func newAttachment(opt Options) *Attachment {
	a := &Attachment{
		opt: opt, nexus: Nexus{ISID: opt.ISID, Cache: new(blockio.Cache)},
		lost: make(chan error, 1), size: make(chan struct{}, 1), serve: make(chan error, 8), parted: make(chan struct{}, 1),
	}
	a.giving.init(a)
	return a
}

// Attach opens the volume and begins to serve it. When it is attached already,
// the live record is returned with Already set, and no attachment; a record that lacks what
// the options ask for is an error.
func Attach(ctx context.Context, opt Options) (_ *Attachment, held *Record, err error) {
	opt.Dir = absolute(opt.Dir) // the record tells what is there to processes that stand elsewhere
	if err := makeRunDir(opt.Dir); err != nil {
		return nil, nil, err
	}
	a := newAttachment(opt)
	defer func() {
		if err != nil {
			err = errors.Join(err, a.undo())
		}
	}()
	path := recordPath(opt.Dir, opt.URL)
	if a.record, held, err = lockRecord(path); err != nil {
		return nil, nil, err
	}
	if held != nil {
		if err := held.lacks(opt); err != nil {
			return nil, nil, err
		}
		held.Already = true
		return nil, held, nil
	}
	a.later(func() error { return a.endRecord(path) })
	if err := a.succeed(path); err != nil {
		return nil, nil, err
	}
	if a.lun, err = opt.Open(ctx, a.nexus); err != nil {
		return nil, nil, err
	}
	a.later(a.closeVolume)
	a.nexus.opened(a.lun, a.opt.tellError)
	if err := a.listen(path); err != nil {
		return nil, nil, err
	}
	if err := a.makeDevice(ctx); err != nil {
		return nil, nil, err
	}
	if err := a.giving.listen(controlPath(path)); err != nil {
		return nil, nil, err
	}
	a.fillRecord(path)
	if err := a.Record.write(a.record); err != nil {
		return nil, nil, err
	}
	a.keepRecord()
	return a, nil, nil
}

// succeed takes the place of a process that was killed, whose record is at path, if there is one.
func (a *Attachment) succeed(path string) error {
	was, err := readRecord(path)
	if err != nil {
		return nil // a new record, as a rule
	}
	if was.abandoned() {
		if err := a.leave(was); err != nil {
			return err
		}
	}
	was.PID = 0 // it may be another program's by now, and the lock would vouch for it
	if err := was.write(a.record); err != nil {
		return err
	}
	if was.waits() {
		a.nexus.Cache = was.cache()
	}
	return nil
}

// later has undo call f, before what it was given earlier.
func (a *Attachment) later(f func() error) { a.unwind = append(a.unwind, f) }

// undo gives back what Attach took, newest first.
func (a *Attachment) undo() (err error) {
	for i := len(a.unwind) - 1; i >= 0; i-- {
		err = errors.Join(err, a.unwind[i]())
		a.ended = err
	}
	a.unwind = nil
	return err
}
