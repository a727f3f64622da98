package attach

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"softiser/internal/handover"
	"softiser/internal/systemd"
)

// Another process takes the place of this one over the control socket of the attachment,
// which stands beside its record: NAME.ctl. A client says one of two words of eight bytes.
//
//	"takeover"   what follows is package handover's: the client is the new process
//	"upgrade "   what follows is a JSON line, upgradeRequest; a JSON line answers, Upgraded
type unixConn = *net.UnixConn

const (
	wordTakeover = "takeover"
	wordUpgrade  = "upgrade "
)

// wordPatience is how long a client may take to say what it wants.
const wordPatience = 5 * time.Second

// maxRequest bounds a JSON line, bytes.
const maxRequest = 64 << 10

// Upgrade is what a process needs to be replaced by another one.
type Upgrade struct {
	Args []string  // of a process that takes over
	Exit func(int) // ends this one, which touches nothing any more; nil: os.Exit
}

// upgradeRequest asks a process to start another one that takes its place.
type upgradeRequest struct {
	Binary string `json:"binary,omitempty"` // default: that of the running process, as it is now under its name
	// Patience is how long requests, and then sessions, may take to come to rest; 0: restPatience.
	Patience time.Duration `json:"patience_ns,omitempty"`
}

// limit is how long it may take until there is an answer.
func (q *upgradeRequest) limit() time.Duration { return startPatience + 2*q.Patience }

// Upgraded is what has come of it.
type Upgraded struct {
	Error   string        `json:"error,omitempty"`
	Old     int           `json:"old"` // process ids
	New     int           `json:"new"`
	Pause   time.Duration `json:"pause_ns"`
	Carried []string      `json:"carried"`
	Closed  []string      `json:"closed"`
}

// giving is the part of a process that another one takes the place of.
type giving struct {
	a       *Attachment
	exit    func(int)
	control *handover.Listener
	path    string

	patience atomic.Int64 // ns, upgradeRequest.Patience of the one that is under way

	writing sync.Mutex // guards the record's file: held while another process may write it
	others  *handover.Succession[Upgraded]
	wg      sync.WaitGroup
}

func (g *giving) init(a *Attachment) {
	g.a, g.exit = a, a.opt.Upgrade.Exit
	if g.exit == nil {
		g.exit = os.Exit
	}
	g.others = handover.NewSuccession[Upgraded]()
	g.patience.Store(int64(restPatience))
}

// controlPath is where the control socket of a record's attachment is.
func controlPath(record string) string { return strings.TrimSuffix(record, ".json") + ".ctl" }

// listen opens the control socket.
func (g *giving) listen(path string) error {
	l, err := listenUnix("control", path, "--run-dir")
	if err != nil {
		return err
	}
	g.serve(l)
	return nil
}

// acceptPause is how long serve waits when a connection could not be accepted.
const acceptPause = 50 * time.Millisecond

// serve answers who comes to the control socket until the attachment ends.
func (g *giving) serve(l net.Listener) {
	g.control = handover.Pausable(l)
	g.path = l.Addr().String()
	g.a.Record.Control = g.path
	g.wg.Go(func() {
		for {
			c, err := g.control.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil { // out of descriptors, perhaps
				time.Sleep(acceptPause)
				continue
			}
			g.wg.Go(func() { g.answer(c.(unixConn)) })
		}
	})
	g.a.later(func() error {
		g.others.End()
		err := g.control.Close()
		g.wg.Wait()
		return err
	})
}

// answer serves one client of the control socket.
func (g *giving) answer(c unixConn) {
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(wordPatience))
	var word [len(wordTakeover)]byte
	if _, err := io.ReadFull(c, word[:]); err != nil {
		return
	}
	switch string(word[:]) {
	case wordTakeover:
		g.handOver(c)
	case wordUpgrade:
		g.upgradeFor(c)
	}
}

// upgradeFor upgrades for a client.
func (g *giving) upgradeFor(c unixConn) {
	var q upgradeRequest
	if err := json.NewDecoder(io.LimitReader(c, maxRequest)).Decode(&q); err != nil {
		return
	}
	_ = c.SetDeadline(time.Now().Add(q.limit() + readyPatience))
	up, over, err := g.upgrade(q)
	if err != nil {
		up.Error = err.Error()
	}
	_ = json.NewEncoder(c).Encode(up) // it may be gone
	if err == nil {
		over()
	}
}

// upgrade starts a process that takes this one's place, and waits for what comes of it. When
// there is no error this process ends after over.
func (g *giving) upgrade(q upgradeRequest) (up Upgraded, over func(), err error) {
	if q.Patience < 0 || q.Patience > maxPatience {
		return up, nil, fmt.Errorf("--patience %v: want up to %v", q.Patience, maxPatience)
	}
	if q.Patience > 0 {
		if !g.patience.CompareAndSwap(int64(restPatience), int64(q.Patience)) {
			return up, nil, handover.ErrBusy
		}
		defer g.patience.Store(int64(restPatience))
	}
	ctx, cancel := context.WithTimeout(context.Background(), q.limit())
	defer cancel()
	return g.others.Start(ctx, handover.Program{Binary: q.Binary, Args: g.a.opt.Upgrade.Args, Told: "its messages tell"})
}

// handOver gives everything to the process at the other end of c, unless that does not want
// it; then this one goes on.
func (g *giving) handOver(c unixConn) {
	given, err := g.others.Serve(c, func() (Upgraded, bool, error) {
		up, given, err := g.give(c)
		if given {
			// systemd takes the new process for the service before it sees this one end.
			_ = systemd.Notify(fmt.Sprintf("MAINPID=%d", up.New))
		}
		return up, given, err
	})
	if given {
		g.exit(0)
		return
	}
	g.a.opt.tellError(fmt.Errorf("nothing was handed over; this process goes on: %w", err))
}

// dialControl connects to the control socket at path and says a word.
func dialControl(ctx context.Context, path, word string) (unixConn, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	if _, err := c.Write([]byte(word)); err != nil {
		c.Close()
		return nil, err
	}
	return c.(unixConn), nil
}

// AskUpgrade has the process of the attachment that key names replaced by a new one. binary is
// the program; empty: the one that runs, as it is now under its name. patience is how long requests,
// and then sessions, may take to come to rest; 0: two seconds.
func AskUpgrade(ctx context.Context, dir, key, binary string, patience time.Duration) (up Upgraded, err error) {
	r, err := Find(dir, key)
	switch {
	case err != nil:
		return up, err
	case r == nil:
		return up, fmt.Errorf("%s is not attached", key)
	case r.dead():
		return up, fmt.Errorf("%s: %s: %s", r.URL, r.Device, r.Reason)
	case r.Control == "":
		return up, fmt.Errorf("%s: process %d is of a version that cannot be replaced: attach --detach it, and attach it anew", r.URL, r.PID)
	}
	c, err := dialControl(ctx, r.Control, wordUpgrade)
	if err != nil {
		return up, err
	}
	defer c.Close()
	q := upgradeRequest{Binary: binary, Patience: patience}
	end, ok := ctx.Deadline()
	if !ok {
		end = time.Now().Add(q.limit() + 2*readyPatience)
	}
	if err := c.SetDeadline(end); err != nil {
		return up, err
	}
	defer context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })()
	if err := json.NewEncoder(c).Encode(q); err != nil {
		return up, err
	}
	if err := json.NewDecoder(io.LimitReader(c, maxRequest)).Decode(&up); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return up, fmt.Errorf("process %d has not answered: %w", r.PID, err)
	}
	if up.Error != "" {
		return up, errors.New(up.Error)
	}
	r.awaitProcess(ctx, up.New)
	return up, nil
}

// awaitProcess waits until the record is that of the process pid, which has taken over and writes it a moment later:
// until then the attachment is found by the old process's id, and not by the one that people are told. A process that
// cannot write it goes on all the same.
func (r *Record) awaitProcess(ctx context.Context, pid int) {
	for end := time.Now().Add(readyPatience); ctx.Err() == nil && time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if now, err := readRecord(r.path); err != nil || now.PID == pid || !r.alive() {
			return
		}
	}
}
