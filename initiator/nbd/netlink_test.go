package nbd

import (
	"bytes"
	"encoding/hex"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// The bytes that nbd-client sends for the same request, in little-endian order.
func TestConnectMessage(t *testing.T) {
	if host.Uint16([]byte{1, 0}) != 1 {
		t.Skip("golden bytes are of a little-endian host")
	}
	k := KernelConfig{Index: 3, Size: 1 << 30, BlockSize: 512, Flags: 0x1, Timeout: 90 * time.Second, DeadConn: 5 * time.Second, Mark: "m1"}
	got := connectMessage(0x1c, 7, &k, []int{9, 10})
	want := strings.Join([]string{
		"88000000 1c00 0500 07000000 00000000", // header: 136 bytes, family, request+ack
		"01 01 0000",                           // CONNECT, version 1
		"0800 0100 03000000",                   // index
		"0c00 0200 0000004000000000",           // size
		"0c00 0300 0002000000000000",           // block size
		"0c00 0400 5a00000000000000",           // timeout
		"0c00 0500 0100000000000000",           // server flags
		"0c00 0800 0500000000000000",           // dead connection timeout
		"0700 0a00 6d310000",                   // backend
		"1c00 0780",                            // sockets
		"0c00 0180 0800 0100 09000000",
		"0c00 0180 0800 0100 0a000000",
	}, "")
	b, err := hex.DecodeString(strings.ReplaceAll(want, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	b[0] = byte(len(b))
	if !bytes.Equal(got, b) {
		t.Errorf("got  %x\nwant %x", got, b)
	}
	if n := host.Uint32(got); int(n) != len(got) {
		t.Errorf("length %d of %d", n, len(got))
	}
}

// The driver refuses to change a device that has a mark for whoever does not tell it.
func TestResizeMessage(t *testing.T) {
	for _, mark := range []string{"", "m1"} {
		m := resizeMessage(0x1c, 7, 3, mark, 1<<30)[nlHeader+genlHeader:]
		size, sized := findAttr(m, nbdAttrSize)
		v, ok := findAttr(m, nbdAttrBackend)
		if !sized || host.Uint64(size) != 1<<30 || ok != (mark != "") || ok && string(v) != mark+"\x00" {
			t.Errorf("%q: size % x, mark %q", mark, size, v)
		}
	}
}

// The mark of a device is in sysfs while it is connected.
func TestMarkOf(t *testing.T) {
	sys := t.TempDir()
	if err := os.MkdirAll(filepath.Join(sys, "nbd3"), 0o700); err != nil {
		t.Fatal(err)
	}
	if m := markIn(sys, "/dev/nbd3"); m != "" {
		t.Errorf("without a file: %q", m)
	}
	if err := os.WriteFile(filepath.Join(sys, "nbd3", "backend"), []byte("m1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if m := markIn(sys, "/dev/nbd3"); m != "m1" {
		t.Errorf("%q", m)
	}
}

// The driver counts whole seconds, and takes 0 for no time-out.
func TestTimeoutsAreRoundedUp(t *testing.T) {
	for _, c := range []struct {
		set  time.Duration
		want uint64 // 0: no attribute
	}{
		{0, 0}, {-1, 0}, {1, 1}, {500 * time.Millisecond, 1}, {time.Second, 1}, {time.Second + 1, 2}, {30 * time.Second, 30}, {1<<63 - 1, 9223372037},
	} {
		m := connectMessage(0x1c, 7, &KernelConfig{Index: 3, Timeout: c.set, DeadConn: c.set}, nil)
		for _, typ := range []uint16{nbdAttrTimeout, nbdAttrDeadConn} {
			v, ok := findAttr(m[nlHeader+genlHeader:], typ)
			if ok != (c.want != 0) || ok && host.Uint64(v) != c.want {
				t.Errorf("%v: attribute %d is % x, want %d", c.set, typ, v, c.want)
			}
		}
	}
}

func TestParseMessages(t *testing.T) {
	answer := newMessage(0x1c, nbdConnect, 7)
	answer.u32(nbdAttrIndex, 12)
	ack := func(errno int32, seq uint32) []byte {
		p := host.AppendUint32(nil, 36)
		p = host.AppendUint16(host.AppendUint16(p, nlError), 0)
		p = host.AppendUint32(host.AppendUint32(p, seq), 0)
		return append(host.AppendUint32(p, uint32(-errno)), make([]byte, 16)...)
	}
	index := -1
	f := func(p []byte) (err error) { index, err = indexOf(p); return err }
	if done, err := parseMessages(append(append(ack(5, 6), answer.bytes()...), ack(0, 7)...), 7, f); !done || err != nil || index != 12 {
		t.Errorf("done %v, %v, index %d", done, err, index)
	}
	if done, err := parseMessages(ack(int32(syscall.EBUSY), 7), 7, f); !done || !errors.Is(err, syscall.EBUSY) {
		t.Errorf("done %v, %v", done, err)
	}
	empty := newMessage(0x1c, nbdConnect, 7)
	if _, err := parseMessages(empty.bytes(), 7, f); !errors.Is(err, errNetlink) {
		t.Errorf("no index: %v", err)
	}
}

func FuzzParseMessages(f *testing.F) {
	m := newMessage(0x1c, nbdConnect, 7)
	m.u32(nbdAttrIndex, 12)
	f.Add(m.bytes())
	f.Add([]byte{20, 0, 0, 0, 2, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, p []byte) {
		parseMessages(p, 7, func(b []byte) error { _, err := indexOf(b); return err })
	})
}

// Without the driver the message says what to do instead.
func TestNoKernelDriver(t *testing.T) {
	d, err := ConnectKernel(KernelConfig{Index: -1, Size: 1 << 20, BlockSize: 512, Flags: FlagHasFlags})
	if err == nil {
		for _, c := range d.Conns {
			c.Close()
		}
		d.Disconnect()
		t.Skip("this kernel has the nbd driver")
	}
	if errors.Is(err, ErrNoKernel) && !strings.Contains(err.Error(), "unix socket") {
		t.Errorf("error %v", err)
	}
}

// A device that is merely open is asked for again, one that is connected is not, and nobody waits
// for ever.
func TestDeviceIsOpenElsewhere(t *testing.T) {
	for name, c := range map[string]struct {
		busy      int // how often it is
		connected bool
		want      error
		asked     func(n int) bool
	}{
		"free":           {asked: func(n int) bool { return n == 1 }},
		"for a moment":   {busy: 3, asked: func(n int) bool { return n == 4 }},
		"connected":      {busy: 3, connected: true, want: unix.EBUSY, asked: func(n int) bool { return n == 1 }},
		"without end":    {busy: math.MaxInt, want: unix.EBUSY, asked: func(n int) bool { return n > 1 && n <= 1+int(openFor/openAgain)+1 }},
		"something else": {busy: -1, want: unix.EPERM, asked: func(n int) bool { return n == 1 }},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := 0
				err := untilClosed(func() error {
					n++
					switch {
					case c.busy < 0:
						return unix.EPERM
					case n <= c.busy:
						return unix.EBUSY
					}
					return nil
				}, func() bool { return c.connected })
				if !errors.Is(err, c.want) || !c.asked(n) {
					t.Errorf("%v after %d questions, want %v", err, n, c.want)
				}
			})
		})
	}
}
