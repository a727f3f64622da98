package attach

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"softiser/blockdev"
	"softiser/initiator/blockio"
	"softiser/initiator/nbd"
	"softiser/internal/await"
	"softiser/internal/handover"
)

// between stands between a new process and an old one and conveys what they say, descriptors
// included, until it has seen so many messages. What is said as the very last, "yours", is
// with the new process once it has been written.
func between(t *testing.T, at, to string, messages int) {
	t.Helper()
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: at})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	go func() {
		near, err := ln.AcceptUnix()
		if err != nil {
			return
		}
		defer near.Close()
		far, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: to})
		if err != nil {
			t.Error(err)
			return
		}
		defer far.Close()
		var seen atomic.Int64
		cut := func() { near.Close(); far.Close() }
		convey := func(from, to *net.UnixConn) {
			b, oob := make([]byte, 64<<10), make([]byte, unix.CmsgSpace(4*253))
			for {
				n, on, _, _, err := from.ReadMsgUnix(b, oob)
				if err != nil || n == 0 {
					cut()
					return
				}
				yours := n == 16 && b[4] == 6
				if seen.Add(1) > int64(messages) && !yours {
					closeRights(oob[:on])
					cut()
					return
				}
				_, _, err = to.WriteMsgUnix(b[:n], oob[:on], nil)
				closeRights(oob[:on])
				if err != nil {
					cut()
					return
				}
			}
		}
		over := make(chan struct{})
		go func() { defer close(over); convey(far, near) }()
		convey(near, far)
		<-over
	}()
}

func closeRights(oob []byte) {
	all, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return
	}
	for i := range all {
		fds, err := unix.ParseUnixRights(&all[i])
		if err != nil {
			continue
		}
		for _, fd := range fds {
			syscall.Close(fd)
		}
	}
}

// The connection between the two processes is cut after each message: either nothing has
// happened and the old one goes on, or everything is the new one's.
func TestHandoverCutAtEveryStep(t *testing.T) {
	t.Parallel() // its old process, which is this one, does not end: the new one waits for that
	l := &fakeLUN{data: make([]byte, 4<<20)}
	opt := options(t, l)
	opt.TCP = "127.0.0.1:0"
	exited := make(chan int, 1)
	opt.Upgrade.Exit = func(code int) { exited <- code }
	var told atomic.Int64
	opt.OnError = func(error) { told.Add(1) }
	old, _, err := Attach(t.Context(), opt)
	if err != nil {
		t.Fatal(err)
	}
	work := startLoad(t, "unix", old.Record.Socket, 0, 8)
	over := startLoad(t, "tcp", old.Record.TCP, 8, 2)
	before, err := os.ReadFile(recordPath(opt.Dir, opt.URL))
	if err != nil {
		t.Fatal(err)
	}
	var taken *Attachment
	cuts := 0
	for ; taken == nil; cuts++ {
		if cuts > 30 {
			t.Fatal("the handover never succeeds")
		}
		next := opt
		next.Dir = t.TempDir()
		opened := false
		next.Open = func(context.Context, Nexus) (LUN, error) { opened = true; return l, nil }
		between(t, controlPath(recordPath(next.Dir, next.URL)), old.Record.Control, cuts)
		taken, err = TakeOver(t.Context(), next, "test")
		if (err == nil) != (taken != nil) {
			t.Fatal(taken, err)
		}
		if err == nil {
			break
		}
		after, rerr := os.ReadFile(recordPath(opt.Dir, opt.URL))
		if rerr != nil || string(after) != string(before) || opened {
			t.Fatalf("cut after %d messages: opened %v, %v, the record:\n%s", cuts, opened, rerr, after)
		}
		did := work.done.Load()
		await.True(t, "the load goes on in the old process", func() bool { return work.done.Load() > did+20 })
		for _, addr := range []string{old.Record.Socket, old.Record.TCP} {
			network := "unix"
			if addr == old.Record.TCP {
				network = "tcp"
			}
			c, err := net.Dial(network, addr)
			if err != nil {
				t.Fatal(err)
			}
			c.SetDeadline(time.Now().Add(30 * time.Second))
			if _, err := c.Read(make([]byte, 18)); err != nil {
				t.Fatalf("cut after %d messages: a new client: %v", cuts, err)
			}
			c.Close()
		}
	}
	if cuts < 5 || told.Load() == 0 {
		t.Errorf("%d cuts, %d complaints: the steps are not met", cuts, told.Load())
	}
	if code := <-exited; code != 0 {
		t.Error(code)
	}
	did := work.done.Load()
	await.True(t, "the load goes on in the new process", func() bool { return work.done.Load() > did+200 })
	if r, err := readRecord(recordPath(opt.Dir, opt.URL)); err != nil || r.Taken.IsZero() {
		t.Errorf("%+v, %v", r, err)
	}
	if err := errors.Join(work.end(), over.end()); err != nil {
		t.Error(err)
	}
	// The old process would have ended; here its goroutines have to.
	if err := taken.undo(); !errors.Is(err, os.ErrNotExist) { // its record is in another folder
		t.Error(err)
	}
	for _, c := range []interface{ Close() error }{old.unix, old.tcp, old.giving.control} {
		c.Close()
	}
	old.thaw()
	old.giving.others = handover.NewSuccession[Upgraded]()
	_ = old.undo()
}

// A record that cannot be written ends no attachment that has been taken over.
func TestTakeoverWithoutRecord(t *testing.T) {
	t.Parallel() // as above
	l := &fakeLUN{data: make([]byte, 1<<20)}
	opt := options(t, l)
	opt.Upgrade.Exit = func(int) {}
	old, _, err := Attach(t.Context(), opt)
	if err != nil {
		t.Fatal(err)
	}
	whole := old.record
	if old.record, err = os.Open(whole.Name()); err != nil { // it cannot be written through this one
		t.Fatal(err)
	}
	var told atomic.Int64
	opt.OnError = func(error) { told.Add(1) }
	taken, err := TakeOver(t.Context(), opt, "test")
	if err != nil || told.Load() != 1 {
		t.Fatalf("%v, %d complaints", err, told.Load())
	}
	work := startLoad(t, "unix", old.Record.Socket, 0, 2)
	if err := errors.Join(work.end(), taken.undo(), whole.Close()); err != nil {
		t.Error(err)
	}
	for _, c := range []interface{ Close() error }{old.unix, old.giving.control} {
		c.Close()
	}
	old.thaw()
	old.giving.others = handover.NewSuccession[Upgraded]()
	_ = old.undo()
}

// A state that no process of this version writes is refused, for a reason.
func TestParseState(t *testing.T) {
	opt := Options{URL: "iser://h:3260/iqn.2026-11.x:y/0", Device: "none"}
	good := handedOver{
		Record: Record{URL: opt.URL, Socket: "/run/s"}, Lock: 0, Control: 1, Unix: 2, TCP: -1,
		Volume: handedVolume{Names: []string{"naa.6"}, Info: blockdev.Info{Size: 1 << 20, BlockSize: 512},
			Cache: blockio.CarriedCache{Losses: 2, Epochs: []blockio.CarriedEpoch{{Held: 7}}}},
		NBD: nbd.Carried{Clients: []uint32{1}},
	}
	b, err := json.Marshal(&good)
	if err != nil {
		t.Fatal(err)
	}
	if s, err := parseState(b, 3, &opt); err != nil || !reflect.DeepEqual(s, &good) {
		t.Errorf("%+v, %v", s, err)
	}
	for want, bad := range map[string]func(*handedOver){
		"lock of the record": func(s *handedOver) { s.Lock = 3 }, "control socket": func(s *handedOver) { s.Control = -1 },
		"NBD socket": func(s *handedOver) { s.Unix = 1 << 30 }, "TCP": func(s *handedOver) { s.TCP = -2 },
		"blocks of 0": func(s *handedOver) { s.Volume.Info.BlockSize = 0 }, "blocks of 513": func(s *handedOver) { s.Volume.Info.BlockSize = 513 },
		"-1ns before": func(s *handedOver) { s.Volume.Wait = -1 }, "2h0m0s before": func(s *handedOver) { s.Volume.Wait = 2 * time.Hour },
		"-1 bytes": func(s *handedOver) { s.Volume.Info.Size = -1 }, "/dev/sda": func(s *handedOver) { s.Record.Device = "/dev/sda" },
		"the volume of the running": func(s *handedOver) { s.Record.URL = "iser://other" }, "--device of": func(s *handedOver) { s.Record.Device = "/dev/nbd1" },
	} {
		s := good
		bad(&s)
		b, err := json.Marshal(&s)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := parseState(b, 3, &opt); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	if _, err := parseState([]byte(`{"lock":"x"}`), 3, &opt); err == nil {
		t.Error("text in the place of a number was read")
	}
}

// Whatever comes as a state is refused, or is within its bounds.
func FuzzState(f *testing.F) {
	f.Add([]byte(`{"lock":0,"control":1,"unix":2,"tcp":-1,"volume":{"names":["naa.6"],"info":{"Size":512,"BlockSize":512},"isid":[1,2,3,4,5,6]},"record":{"url":"u"}}`))
	f.Add([]byte(`{"lock":-1,"nbd":{"clients":[1,2],"connections":[{"file":9}]}}`))
	f.Add([]byte(`{"volume":{"cache":{"epochs":[{"id":[1],"held":18446744073709551615}]}}}`))
	f.Fuzz(func(t *testing.T, in []byte) {
		s, err := parseState(in, 3, &Options{URL: "u"})
		if err != nil {
			return
		}
		for _, at := range []int{s.Lock, s.Control, s.Unix, max(s.TCP, 0)} {
			if at < 0 || at >= 3 {
				t.Errorf("descriptor %d", at)
			}
		}
		blockio.ResumeCache(s.Volume.Cache)
	})
}

// A cache is lost with what the ublk device had written, and another user has been told: the next process owes
// the device's flush an error, and the one after it, whose device has been told, does not.
func TestTakeoverOfUblkClient(t *testing.T) {
	opt := options(t, &fakeLUN{data: make([]byte, 1<<20)})
	opt.Upgrade.Exit = func(int) { t.Error("it has ended") }
	a, _, err := Attach(t.Context(), opt)
	if err != nil {
		t.Fatal(err)
	}
	defer a.undo()
	lives := [][16]byte{{1}, {2}}
	flush := func(e *blockio.Epoch, f *blockio.Flusher) error { b := e.Begin(f); return b.End(true) }
	e, other := a.nexus.Cache.Enter(lives[0]), a.nexus.Cache.NewFlusher()
	a.client = a.nexus.Cache.NewFlusher()
	e.Wrote(nil)
	e, lost := e.Look(lives[1])
	if err := flush(e, other); !lost || !errors.Is(err, blockio.ErrCacheLost) {
		t.Fatalf("lost %v, the other user's flush: %v", lost, err)
	}
	next := func() (*Attachment, error) { // what another process would go on with, which does not want to
		c, err := dialControl(t.Context(), a.Record.Control, wordTakeover)
		if err != nil {
			t.Fatal(err)
		}
		offered, err := handover.Take(c, "test", stateVersion, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		n := &taking{Taken: offered, a: newAttachment(opt)}
		err = n.prepare(recordPath(opt.Dir, opt.URL))
		offered.Refuse(errors.New("not now"))
		n.discard()
		return n.a, err
	}
	for _, want := range []error{blockio.ErrCacheLost, nil} {
		n, err := next()
		if err != nil {
			t.Fatal(err)
		}
		if err := flush(n.nexus.Cache.Enter(lives[1]), n.client); !errors.Is(err, want) {
			t.Errorf("the first flush from the device: %v, want %v", err, want)
		}
		_ = flush(e, a.client) // which has been told by then
	}
	// A process of a version before does not say of what its device has been told.
	if f := (*handedUblk)(nil).client(&reopened{nexus: a.nexus}); f == nil || f.Told() != 1 {
		t.Errorf("%+v", f)
	}
}

// A process that knows no version of ours is refused before anything has come to rest, and so
// is one that says nothing.
func TestOtherVersions(t *testing.T) {
	opt := options(t, &fakeLUN{data: make([]byte, 1<<20)})
	opt.Upgrade.Exit = func(int) { t.Error("it has ended") }
	a, _, err := Attach(t.Context(), opt)
	if err != nil {
		t.Fatal(err)
	}
	defer a.undo()
	c, err := dialControl(t.Context(), a.Record.Control, wordTakeover)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := handover.Take(c, "a later one", stateVersion+2, time.Minute); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("version %d; a later one reads", stateVersion)) {
		t.Errorf("%v", err)
	}
	for _, word := range []string{"", "nonsense", wordUpgrade + "{]", wordTakeover + "sftu\x01\x00\x00\x00\xff\xff\xff\xff\x00\x00\x00\x00"} {
		c, err := dialControl(t.Context(), a.Record.Control, word)
		if err != nil {
			t.Fatal(err)
		}
		c.CloseWrite()
		c.SetDeadline(time.Now().Add(60 * time.Second))
		for b := make([]byte, 1024); err == nil; {
			_, err = c.Read(b)
		}
		c.Close()
	}
	// It serves as before.
	l := startLoad(t, "unix", a.Record.Socket, 0, 2)
	await.True(t, "a load runs", func() bool { return l.done.Load() > 50 })
	if err := l.end(); err != nil {
		t.Error(err)
	}
}

// Until the volume is there requests wait, then they fail, and when it is there after all they
// are carried out.
func TestReopened(t *testing.T) {
	l := &fakeLUN{data: make([]byte, 1<<20)}
	var open atomic.Bool
	opt := options(t, l)
	opt.Patience = 50 * time.Millisecond
	opt.Open = func(context.Context, Nexus) (LUN, error) {
		if !open.Load() {
			return nil, errors.New("the target is away")
		}
		return l, nil
	}
	a := newAttachment(opt)
	r := newReopened(a, &handedVolume{Names: l.Names(), Info: l.Info()})
	close(r.gone)
	resized := 0
	defer r.OnResize(func(blockdev.Info) { resized++ })()
	ended := make(chan *blockio.Request, 1)
	q := &blockio.Request{Op: blockio.OpWrite, Buf: make([]byte, 512), Done: func(q *blockio.Request) { ended <- q }}
	r.SubmitBatch([]*blockio.Request{q})
	r.open()
	if <-ended; !errors.Is(q.Err, blockio.ErrSessionLost) || !strings.Contains(q.Err.Error(), "the target is away") {
		t.Errorf("it ended with %v", q.Err)
	}
	if err := r.Flush(); !errors.Is(err, blockio.ErrSessionLost) {
		t.Errorf("a flush: %v", err)
	}
	open.Store(true)
	await.True(t, "the volume is there", func() bool { return r.vol.Load() != nil })
	q.Err = nil
	r.SubmitBatch([]*blockio.Request{q})
	if <-ended; q.Err != nil {
		t.Error(q.Err)
	}
	if err := errors.Join(r.Flush(), r.Close()); err != nil || resized != 0 {
		t.Error(err, resized)
	}
	if flushes, closed := l.counts(); flushes != 1 || closed != 1 {
		t.Errorf("%d flushes, closed %d times", flushes, closed)
	}
}

// A volume that the process before had over another wire first, by which it has another first name, is the same one.
func TestReopenedOverAnotherWire(t *testing.T) {
	l := &fakeLUN{data: make([]byte, 1<<20)}
	for names, same := range map[string]bool{"naa.6 eui.1 t10.x": true, "naa.6 eui.2": false, "naa.6": false} {
		l.names = []string{"eui.1", "uuid.2"}
		w := &handedVolume{Names: strings.Fields(names), Info: l.Info()}
		if err := w.same(l); (err == nil) != same || err != nil && !errors.Is(err, errOther) {
			t.Errorf("%s: %v", names, err)
		}
	}
}

// Another volume in its place ends the attachment.
func TestReopenedIsAnother(t *testing.T) {
	l := &fakeLUN{data: make([]byte, 1<<20)}
	a := newAttachment(options(t, l))
	r := newReopened(a, &handedVolume{Names: []string{"naa.other"}, Info: l.Info()})
	close(r.gone)
	ended := make(chan *blockio.Request, 1)
	q := &blockio.Request{Op: blockio.OpRead, Buf: make([]byte, 512), Done: func(q *blockio.Request) { ended <- q }}
	r.SubmitBatch([]*blockio.Request{q})
	r.open()
	if <-ended; !errors.Is(q.Err, errOther) {
		t.Error(q.Err)
	}
	if err := <-a.lost; !errors.Is(err, errOther) {
		t.Error(err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if _, closed := l.counts(); closed != 1 {
		t.Errorf("closed %d times", closed)
	}
}

func TestSuccessorArgs(t *testing.T) {
	for in, want := range map[string]string{
		"attach --daemon iser://h/x/0":                  "attach --takeover --daemon iser://h/x/0",
		"attach --takeover --daemon iser://h/x/0":       "attach --takeover --daemon iser://h/x/0",
		"attach --takeover=true -- iser://h/x/0":        "attach --takeover -- iser://h/x/0",
		"attach iser://h/x/0 --socket /run/x --verbose": "attach --takeover iser://h/x/0 --socket /run/x --verbose",
	} {
		if got := strings.Join(successorArgs(strings.Fields(in)), " "); got != want {
			t.Errorf("%s: %s, want %s", in, got, want)
		}
	}
	if filepath.Base(controlPath("/run/attach-1.json")) != "attach-1.ctl" {
		t.Error(controlPath("/run/attach-1.json"))
	}
}

// heldAttachment is the record in dir of an attachment of url by a process pid, the file that it is kept in, and where that
// process is asked.
func heldAttachment(t *testing.T, dir, url string, pid int) (*Record, *os.File, net.Listener) {
	t.Helper()
	path := recordPath(dir, url)
	f, _, err := lockRecord(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	l, err := net.Listen("unix", controlPath(path))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	r := &Record{URL: url, PID: pid, Control: controlPath(path)}
	if err := r.write(f); err != nil {
		t.Fatal(err)
	}
	return r, f, l
}

// Who does not want to wait for an upgrade any more need not.
func TestUpgradeInterrupted(t *testing.T) {
	dir, url := t.TempDir(), "iser://h/x/0"
	_, _, l := heldAttachment(t, dir, url, os.Getpid())
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		_, err := AskUpgrade(ctx, dir, url, "", 0)
		ended <- err
	}()
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := bufio.NewReader(c).ReadString('\n'); err != nil { // it has asked, and waits
		t.Fatal(err)
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// Whoever is told that another process has taken over finds the attachment by that one's id.
func TestUpgradedIsFound(t *testing.T) {
	dir, url := t.TempDir(), "iser://h/x/0"
	r, f, l := heldAttachment(t, dir, url, 1)
	told, wrote := make(chan struct{}), make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err == nil {
			_, _ = bufio.NewReader(c).ReadString('\n')
			err = json.NewEncoder(c).Encode(Upgraded{Old: 1, New: 2})
			c.Close()
		}
		select { // the record comes behind the answer, however long the one who asked takes to read that
		case <-told:
		case <-time.After(100 * time.Millisecond):
		}
		r.PID = 2
		wrote <- errors.Join(err, r.write(f))
	}()
	up, err := AskUpgrade(t.Context(), dir, url, "", 0)
	if err != nil {
		t.Fatal(err)
	}
	found, err := Find(dir, strconv.Itoa(up.New))
	close(told)
	if err != nil || found == nil || up.New != 2 {
		t.Errorf("%+v: %+v, %v", up, found, err)
	}
	if err := <-wrote; err != nil {
		t.Error(err)
	}
}
