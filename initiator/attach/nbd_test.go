package attach

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"softiser/internal/await"
)

// fakeNBD is a /dev/nbdN without a driver.
type fakeNBD struct {
	conns   []net.Conn // the driver's ends
	missing error      // why the node does not appear
	ended   int        // times that it was disconnected
	left    int        // times that it was left as it is
	resized int
}

func (d *fakeNBD) WaitReady(time.Duration) error { return d.missing }
func (d *fakeNBD) Resize(int64) error            { d.resized++; return nil }
func (d *fakeNBD) Forget()                       { d.left++ }
func (d *fakeNBD) Disconnect() error {
	d.ended++
	for _, c := range d.conns {
		c.Close()
	}
	return nil
}

// socketPair is what a kernel device has in common with its server.
func socketPair(t *testing.T) (ends [2]net.Conn) {
	t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "nbd")
		if ends[i], err = net.FileConn(f); err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	t.Cleanup(func() { ends[1].Close() })
	return ends
}

// A device whose node does not appear is given back; where any way will do, the socket serves without it.
func TestNoNodeForNBD(t *testing.T) {
	missing := errors.New("no node")
	for device, want := range map[string]error{"auto": nil, "/dev/nbd": missing, "/dev/nbd77": missing} {
		a, _, err := Attach(t.Context(), options(t, &fakeLUN{data: make([]byte, 1<<20)}))
		if err != nil {
			t.Fatal(err)
		}
		a.opt.Device = device
		ends := socketPair(t)
		d := &fakeNBD{conns: ends[1:], missing: missing}
		if err := a.useNBD(d, "/dev/nbd77", 1<<20, ends[:1]); !errors.Is(err, want) || (err == nil) != (want == nil) {
			t.Errorf("%s: %v", device, err)
		}
		if d.ended != 1 || a.Record.Device != "" {
			t.Errorf("%s: disconnected %d times, the record has %q", device, d.ended, a.Record.Device)
		}
		if err := a.undo(); err != nil || d.ended != 1 {
			t.Errorf("%s: at the end: %v; disconnected %d times", device, err, d.ended)
		}
	}
}

// disc says on the driver's ends that the device is disconnected.
func (d *fakeNBD) disc(t *testing.T) {
	t.Helper()
	p := binary.BigEndian.AppendUint32(nil, 0x25609513)
	p = append(p, 0, 0, 0, 2) // NBD_CMD_DISC
	p = append(p, make([]byte, 8+8+4)...)
	for _, c := range d.conns {
		if _, err := c.Write(p); err != nil {
			t.Fatal(err)
		}
	}
}

// A device that somebody else disconnects is not this process's any more: it says so, the record has it no more, and
// what has its number later is left alone. Clients of the socket go on.
func TestDisconnectedByOthers(t *testing.T) {
	l := &fakeLUN{data: make([]byte, 1<<20)}
	opt := options(t, l)
	opt.Dir = t.TempDir()
	told := make(chan error, 8)
	opt.OnError = func(err error) { told <- err }
	a := newAttachment(opt) // Attach, with a device that there is not
	a.lun = l
	path := recordPath(opt.Dir, opt.URL)
	var err error
	if a.record, err = os.Create(path); err != nil {
		t.Fatal(err)
	}
	if err := a.listen(path); err != nil {
		t.Fatal(err)
	}
	var d fakeNBD
	var ours []net.Conn
	for range 2 {
		ends := socketPair(t)
		ours, d.conns = append(ours, ends[0]), append(d.conns, ends[1])
	}
	if err := a.useNBD(&d, "/dev/nbd77", 1<<20, ours); err != nil {
		t.Fatal(err)
	}
	a.fillRecord(path)
	if err := a.Record.write(a.record); err != nil {
		t.Fatal(err)
	}
	a.keepRecord()
	d.disc(t)
	if err := <-told; !strings.Contains(err.Error(), "/dev/nbd77") {
		t.Errorf("told %v", err)
	}
	await.True(t, "the record is without the device", func() bool {
		r, err := readRecord(path)
		return err == nil && r.Device == ""
	})
	l.resize(2 << 20)
	c := talk(t, a.Record.Socket)
	(silent{c.Conn}).ask(t, 0, 0, 512)
	if _, err := io.ReadFull(c, make([]byte, 16+512)); err != nil {
		t.Errorf("a client of the socket: %v", err)
	}
	c.Close()
	if err := a.undo(); err != nil || d.ended != 0 || d.resized != 0 || d.left != 1 || len(told) > 0 {
		t.Errorf("at the end: %v; disconnected %d times, resized %d times, left %d times; %d messages", err, d.ended, d.resized, d.left, len(told))
	}
}
