package attach

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"softiser/blockdev"
	"softiser/initiator/blockio"
	"softiser/initiator/multipath"
	"softiser/initiator/nbd"
	"softiser/initiator/ublk"
	"softiser/internal/handover"
	"softiser/internal/unixsocket"
	"softiser/internal/usage"
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
	OnError  func(error)
	OnNotice func(string) // of what takes time at the end
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

// Attachment is a volume being served.
type Attachment struct {
	Record Record

	opt    Options
	nexus  Nexus
	lun    LUN
	srv    *nbd.Server
	export *nbd.Export
	record *os.File
	size   chan struct{} // full: the volume has had another size
	serve  chan error
	failed <-chan error // of a kernel device; nil: without such news
	lost   chan error   // the volume that another process had open cannot be had
	unwind []func() error

	unix, tcp *handover.Listener // tcp is nil without Options.TCP
	protected bool               // the volume was read-only when it was attached
	ublk      *ublk.Device       // nil: there is none
	client    *blockio.Flusher   // whose requests come from the ublk device
	closing   sync.Once
	closed    error         // what closing the volume has said
	ended     error         // what undo has met so far
	nbd       atomic.Int32  // /dev/nbdN: nbdServed, nbdEnding or nbdGone
	parted    chan struct{} // full: it is gone
	giving    giving
	takenBack atomic.Bool // the kernel's device is
	still     carrier     // the volume whose session rests; nil: it does not
}

func newAttachment(opt Options) *Attachment {
	a := &Attachment{opt: opt, nexus: Nexus{ISID: opt.ISID, Cache: new(blockio.Cache)}, serve: make(chan error, 8), lost: make(chan error, 1), size: make(chan struct{}, 1), parted: make(chan struct{}, 1)}
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
	if was, err := readRecord(path); err == nil {
		if was.abandoned() {
			if err := a.leave(was); err != nil {
				return nil, nil, err
			}
		}
		was.PID = 0 // it may be another program's by now, and the lock would vouch for it
		if err := was.write(a.record); err != nil {
			return nil, nil, err
		}
		if was.waits() {
			a.nexus.Cache = was.cache()
		}
	}
	if a.lun, err = opt.Open(ctx, a.nexus); err != nil {
		return nil, nil, err
	}
	a.later(a.closeVolume)
	a.nexus.opened(a.lun, opt.OnError)
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

// keepRecord writes the record again whenever the size or the way to the target
// changes, so that --list shows what is.
func (a *Attachment) keepRecord() {
	rec := a.Record // the caller's stays as it is
	cancel := a.lun.OnResize(func(blockdev.Info) {
		select {
		case a.size <- struct{}{}:
		default:
		}
	})
	quit, ended := make(chan struct{}), make(chan struct{})
	a.later(func() error {
		cancel()
		close(quit)
		<-ended
		return nil
	})
	go func() {
		defer close(ended)
		for {
			select {
			case <-a.size:
				rec.Size = a.lun.Info().Size
			case <-a.opt.Changed:
			case <-a.parted:
				if a.opt.OnError != nil {
					a.opt.OnError(fmt.Errorf("%s has been disconnected by somebody else; the NBD socket %s is served on, until attach --detach %s", rec.Device, rec.Socket, rec.URL))
				}
				rec.Device = ""
			case <-quit:
				return
			}
			a.giving.writing.Lock() // not while another process may be writing it
			a.noteState(&rec)
			a.noteCaches(&rec)
			if err := rec.write(a.record); err != nil && a.opt.OnError != nil {
				a.opt.OnError(err)
			}
			a.giving.writing.Unlock()
		}
	}()
}

// noteState puts the way to the target into r.
func (a *Attachment) noteState(r *Record) {
	state, reason := "connected", ""
	if a.opt.State != nil {
		state, reason = a.opt.State()
	}
	if state != r.State {
		r.Since = time.Now().Truncate(time.Second)
	}
	r.State, r.Reason = state, reason
}

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

// endRecord removes the record, in which it leaves what has gone wrong to those who have it open (Detach).
func (a *Attachment) endRecord(path string) (err error) {
	if a.ended != nil && a.Record.PID != 0 { // else it is not this process's yet
		r := a.Record
		r.Failed = a.ended.Error()
		err = r.write(a.record)
	}
	return errors.Join(err, dropRecord(path), a.record.Close())
}

// listen starts the NBD server on the unix socket, and on TCP if wanted.
func (a *Attachment) listen(record string) (err error) {
	if err := a.makeServer(); err != nil {
		return err
	}
	a.later(a.closeListeners)
	a.later(a.stop)
	sock := a.opt.Socket
	if sock == "" {
		sock = record[:len(record)-len(".json")] + ".sock"
	}
	if sock, err = filepath.Abs(sock); err != nil {
		return err
	}
	l, err := listenUnix("NBD", sock, "--socket or --run-dir")
	if err != nil {
		return err
	}
	a.unix = handover.Pausable(l)
	a.Record.Socket = sock
	if a.opt.TCP != "" {
		t, err := listenLoopback(a.opt.TCP)
		if err != nil {
			return err
		}
		a.tcp = handover.Pausable(t)
		a.Record.TCP = t.Addr().String()
	}
	a.accept()
	return nil
}

// makeServer makes the NBD server of the volume.
func (a *Attachment) makeServer() (err error) {
	a.protected = a.lun.Info().ReadOnly
	a.export = &nbd.Export{Name: a.opt.Export, Description: a.opt.Describe, ReadOnly: a.opt.ReadOnly, LUN: exported{a.lun, a}}
	a.srv, err = nbd.NewServer(nbd.Config{
		Exports: []*nbd.Export{a.export}, OnError: a.opt.OnError, MaxConns: nbd.DefaultMaxConns + a.opt.Connections, OnDisconnect: a.disconnected,
	})
	return err
}

// listeners are those of the NBD server.
func (a *Attachment) listeners() (all []*handover.Listener) {
	for _, l := range []*handover.Listener{a.unix, a.tcp} {
		if l != nil {
			all = append(all, l)
		}
	}
	return all
}

// accept serves what the listeners accept.
func (a *Attachment) accept() {
	for _, l := range a.listeners() {
		go func() { a.serve <- a.srv.Serve(l) }()
	}
}

// closeListeners comes behind stop: a Serve that has not begun yet closes its listener only
// later.
func (a *Attachment) closeListeners() error {
	for _, l := range a.listeners() {
		_ = l.Close() // closed before, as a rule
	}
	return nil
}

// listenUnix opens a socket for this user alone; what it is for and the options that place it are
// for errors.
func listenUnix(what, path, options string) (net.Listener, error) {
	l, err := unixsocket.Listen(path)
	switch {
	case err != nil && len(path) > unixsocket.MaxPath:
		return nil, fmt.Errorf("%s %w: choose a shorter %s", what, err, options)
	case err != nil:
		return nil, fmt.Errorf("%s %w", what, err)
	}
	return l, nil
}

// listenLoopback refuses addresses that others can reach: NBD here has neither
// authentication nor encryption.
func listenLoopback(addr string) (net.Listener, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, usage.Errorf("--tcp %s: %w (expected 127.0.0.1:10809)", addr, err)
	}
	if host == "" || host == "localhost" {
		host = "127.0.0.1"
	}
	if ip := net.ParseIP(host); ip == nil || !ip.IsLoopback() {
		return nil, usage.Errorf("--tcp %s: only loopback addresses are served, because NBD here has no authentication", addr)
	}
	l, err := net.Listen("tcp", net.JoinHostPort(host, port))
	if err != nil {
		return nil, fmt.Errorf("--tcp: %w", err)
	}
	return l, nil
}

// makeDevice makes the kernel device that Options.Device wants.
func (a *Attachment) makeDevice(ctx context.Context) error {
	kind, index, err := parseDevice(a.opt.Device)
	switch {
	case err != nil:
		return err
	case kind == deviceUblk:
		return a.makeUblk(ctx, index)
	}
	if err := a.checkLeft(); err != nil {
		return err
	}
	if kind == deviceNBD {
		return a.makeNBD(index)
	}
	return nil
}

// deviceKind is which driver of the kernel makes a device.
type deviceKind string

const (
	deviceNone deviceKind = ""
	deviceNBD  deviceKind = "/dev/nbd"
	deviceUblk deviceKind = "/dev/ublkb"
)

// parseDevice reads Options.Device; index is -1 where any number will do.
func parseDevice(dev string) (kind deviceKind, index int, err error) {
	switch dev {
	case "none":
		return deviceNone, -1, nil
	case "", "auto", "/dev/nbd":
		return deviceNBD, -1, nil
	case "ublk":
		return deviceUblk, -1, nil
	}
	for _, kind := range []deviceKind{deviceNBD, deviceUblk} {
		if n, ok := strings.CutPrefix(dev, string(kind)); ok {
			if i, err := strconv.Atoi(n); err == nil && i >= 0 && strconv.Itoa(i) == n {
				return kind, i, nil
			}
		}
	}
	return deviceNone, -1, fmt.Errorf("--device %s: expected auto, none, ublk, /dev/nbdN or /dev/ublkbN", dev)
}

func (a *Attachment) fillRecord(path string) {
	info := a.lun.Info()
	r := &a.Record
	r.path, r.URL, r.Volume, r.Export = path, a.opt.URL, a.opt.Describe, a.opt.Export
	r.Size, r.BlockSize, r.ReadOnly = info.Size, info.BlockSize, info.ReadOnly || a.opt.ReadOnly
	r.PID, r.Started = os.Getpid(), time.Now().Truncate(time.Second)
	a.noteState(r)
	a.noteCaches(r)
	r.URI = uriOf(r.Export, r.Socket)
}

// uriOf is how NBD clients name an export behind a socket.
func uriOf(export, sock string) string {
	return "nbd+unix:///" + escaped(export) + "?socket=" + escaped(sock)
}

// escaped is a name in any part of a URI; there are clients to which + is no space.
func escaped(name string) string {
	return strings.NewReplacer("+", "%20", "%2F", "/").Replace(url.QueryEscape(name))
}

// Wait serves until ctx ends or the server fails, then detaches: it has the kernel
// write back what it holds of the device, disconnects it, stops accepting, lets
// requests finish, and flushes the volume.
func (a *Attachment) Wait(ctx context.Context) error {
	var err error
	select {
	case <-ctx.Done():
	case err = <-a.serve:
		err = fmt.Errorf("NBD server: %w", err)
	case err = <-a.failed:
	case err = <-a.lost:
	}
	a.giving.others.End() // a takeover that has begun comes to its end; none begins any more
	return errors.Join(err, a.undo())
}

// stop shuts the server down and makes what it wrote durable.
func (a *Attachment) stop() error {
	limit := max(a.opt.FinishTimeout, time.Second)
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	down := make(chan error, 1)
	go func() { down <- a.srv.Shutdown(ctx) }()
	var err error
	select {
	case err = <-down:
		if err != nil {
			err = fmt.Errorf("connections of NBD clients did not end within %v and were cut: %w", limit, err)
		}
	case <-time.After(2 * limit):
		// Clients have been cut for so long again as they have had, and requests have memory of the server: they are with
		// a target that does not answer. Closing the volume ends them.
		_ = a.closeVolume() // it is told behind this
		return errors.Join(<-down, fmt.Errorf("requests that the target did not answer within %v were given up; what was written since the last flush may be lost", 2*limit))
	}
	if a.unwritten() {
		return err
	}
	// A flush may wait for a target that is away; closing the volume ends it then.
	flushed := make(chan error, 1)
	go func() { flushed <- a.lun.Flush() }()
	late := time.NewTimer(limit) // its own: clients that took no replies may have used up the other one
	defer late.Stop()
	look := time.NewTicker(100 * time.Millisecond)
	defer look.Stop()
	var ferr error
	for waits := true; waits; {
		if a.idle() {
			return err
		}
		select {
		case ferr = <-flushed:
			waits = false
		case <-look.C:
		case <-late.C:
			ferr, waits = fmt.Errorf("it did not end within %v", limit), false
		}
	}
	if ferr != nil && !a.idle() {
		err = errors.Join(err, fmt.Errorf("the last flush failed; what was written since the one before may be lost: %w", ferr))
	}
	return err
}

// idle reports whether nobody is there to answer a flush, and none is needed: nothing was written since the last one.
// What a process that was killed has written is not known for certain.
func (a *Attachment) idle() bool {
	if a.opt.State == nil || a.Record.Recovered || !a.nexus.Cache.Clean() {
		return false
	}
	state, _ := a.opt.State()
	return away(state)
}

// unwritten reports whether nobody could write: a volume that is read-only only now may hold what was written before.
func (a *Attachment) unwritten() bool {
	return a.export.ReadOnly || a.protected && a.lun.Info().ReadOnly
}

// closeVolume closes the volume, once.
func (a *Attachment) closeVolume() error {
	a.closing.Do(func() { a.closed = a.lun.Close() })
	return a.closed
}
