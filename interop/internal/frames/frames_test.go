package frames

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"softiser/internal/await"
	"softiser/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// Packets of Linux's rxe: a SEND of one byte, an acknowledgement over IPv4, one over IPv6.
const (
	send4 = "45000030a953400040117d550a0900020a090001" + "d5f312b7001c0000" + "0430ffff0000001180d3231c" + "41000000" + "c52ebe7b"
	ack4  = "450000305db840004011c8f00a0900010a090002" + "d5f312b7001c0000" + "1100ffff0000001100d3231c" + "1f000002" + "23be0db1"
	ack6  = "60000000001c1140fd000009000000000000000000000001fd000009000000000000000000000002" + "d3ab12b7001c0000" + "1100ffff0000001100400f79" + "1f000001" + "ee9a5bec"
)

// ether is a frame with a packet, and with Ethernet's own pad.
func ether(t *testing.T, ip string, change func(b []byte)) []byte {
	b, err := hex.DecodeString("525400000001525400000002" + map[byte]string{'4': "0800", '6': "86dd"}[ip[0]] + ip)
	if err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(b)
	}
	return append(b, make([]byte, max(0, 60-len(b)))...)
}

// sealed gives a frame whose packet was changed the ICRC that it must have.
func sealed(change func(b []byte)) func(b []byte) {
	return func(b []byte) {
		change(b)
		p, _ := parse(b)
		binary.LittleEndian.PutUint32(p.body[len(p.body)-icrcLen:], p.icrc())
	}
}

const bth = etherLen + ip4Len + udpLen

func TestCheck(t *testing.T) {
	for _, ip := range []string{send4, ack4, ack6} {
		p, ok := parse(ether(t, ip, nil))
		if err := p.check(false); !ok || err != nil {
			t.Errorf("%v, %v: %s", ok, err, ip)
		}
	}
	set := func(at int, x byte) func([]byte) { return func(b []byte) { b[at] = x } }
	for _, tt := range []struct {
		change func([]byte)
		want   string // with a packet of ours; "": nothing is wrong
	}{
		{set(bth+12, 'B'), "ICRC"}, {set(etherLen+5, 7), "ICRC"}, {set(etherLen+3, 0x2f), "bytes in UDP"}, {set(etherLen+ip4Len+5, 0x20), "UDP says"},
		{set(etherLen+1, 3), "identification 43347"}, // TOS, TTL and checksum are not covered
		{set(etherLen+8, 1), "identification 43347"},
		{sealed(set(etherLen+4, 0)), ""},
		{sealed(func(b []byte) { b[etherLen+4], b[etherLen+5] = 0, 128 }), "identification 128"},
		{sealed(func(b []byte) { b[etherLen+4], b[etherLen+6] = 0, 0 }), "flags"},
		{sealed(set(bth+1, 0x31)), "version 1"}, {sealed(set(bth+2, 0x7f)), "P_Key"}, {sealed(set(bth+8, 0x81)), "reserved"}, {sealed(set(bth+4, 0x01)), "reserved"},
		{sealed(set(bth+15, 9)), "identification 43347"},
		{sealed(func(b []byte) { b[etherLen+4], b[bth+15] = 0, 9 }), "pad"},
	} {
		p, ok := parse(ether(t, send4, func(b []byte) {
			if tt.change(b); tt.want == "" || tt.want == "pad" {
				b[etherLen+5] = 0
				sealed(func([]byte) {})(b)
			}
		}))
		err := p.check(true)
		if !ok || (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%v, want %q", err, tt.want)
		}
	}
	for what, b := range map[string][]byte{
		"short": make([]byte, 20), "ARP": append([]byte("123456123456\x08\x06"), make([]byte, 46)...),
		"options":  ether(t, send4, func(b []byte) { b[etherLen] = 0x46 }),
		"TCP":      ether(t, send4, func(b []byte) { b[etherLen+9] = 6 }),
		"DNS":      ether(t, send4, func(b []byte) { b[etherLen+ip4Len+3] = 53 }),
		"TCP of 6": ether(t, ack6, func(b []byte) { b[etherLen+6] = 6 }),
		"cut":      ether(t, send4, func(b []byte) { b[etherLen+2], b[etherLen+3] = 0, 22 }),
	} {
		if _, ok := parse(b); ok {
			t.Errorf("%s is taken for RoCE", what)
		}
	}
}

// ends are a wire between two ends of the test's: frames, as of a tap, and a stream.
func ends(t *testing.T) (w *Wire, tap, guest *os.File) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	w, guest, err = New(os.NewFile(uintptr(pair[0]), "tap"))
	if err != nil {
		t.Fatal(err)
	}
	if tap, err = polled(os.NewFile(uintptr(pair[1]), "other end")); err != nil {
		t.Fatal(err)
	}
	if guest, err = polled(guest); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close(); tap.Close(); guest.Close() })
	return w, tap, guest
}

func write(t *testing.T, f *os.File, b []byte) {
	if _, err := f.Write(b); err != nil {
		t.Fatal(err)
	}
}

// number is a packet that says in its payload which one it is.
func number(t *testing.T, n int) []byte {
	return ether(t, send4, sealed(func(b []byte) {
		b[etherLen+4], b[etherLen+5], b[bth+1] = 0, byte(n%3), 0
		binary.BigEndian.PutUint32(b[bth+12:], uint32(n))
	}))
}

// TestWire: frames pass both ways, whole, in order; what is wrong with one is told.
func TestWire(t *testing.T) {
	w, tap, guest := ends(t)
	const count = 50
	for i := range count {
		f := number(t, i)
		write(t, tap, f)
		var b [2000]byte
		if _, err := io.ReadFull(guest, b[:4+len(f)]); err != nil || binary.BigEndian.Uint32(b[:]) != uint32(len(f)) || !bytes.Equal(b[4:4+len(f)], f) {
			t.Fatalf("%v: %x", err, b[:4+len(f)])
		}
		// Two frames in three writes.
		s := binary.BigEndian.AppendUint32(nil, uint32(len(f)))
		s = append(append(append(s, f...), s...), f...)
		for _, part := range [][]byte{s[:3], s[3:70], s[70:]} {
			write(t, guest, part)
		}
		for range 2 {
			if n, err := tap.Read(b[:]); err != nil || !bytes.Equal(b[:n], f) {
				t.Fatalf("%v: %x", err, b[:n])
			}
		}
	}
	ours, theirs, err := w.Counts()
	if err != nil || ours.Seen != count || theirs.Seen != 2*count || ours.Joined != count-count/3-1 {
		t.Errorf("%+v, %+v, %v", ours, theirs, err)
	}
	write(t, tap, ether(t, send4, nil)) // rxe's identification is not ours
	var b [200]byte
	if _, err := io.ReadFull(guest, b[:4+62]); err != nil {
		t.Fatal(err)
	}
	if _, _, err := w.Counts(); err == nil || !strings.Contains(err.Error(), "to the guest: identification 43347") {
		t.Error(err)
	}
}

// TestFaults: what happens is by the seed alone, and everything that was not lost comes.
func TestFaults(t *testing.T) {
	const count = 2000
	run := func(f Faults) (got []int, damaged int, c Counts) {
		w, tap, guest := ends(t)
		w.Fault(f, 7)
		done := make(chan struct{})
		go func() {
			defer close(done)
			for i := range count {
				if _, err := tap.Write(number(t, i)); err != nil {
					t.Error(err)
				}
			}
		}()
		r := &stream{f: guest}
		b := make([]byte, maxFrame)
		for begun := time.Now(); c.Seen < count || len(got) < count-c.Lost+c.Twice; {
			_ = guest.SetReadDeadline(time.Now().Add(20 * time.Millisecond)) // the last ones may be lost
			n, err := r.read(b)
			c, _, _ = w.Counts()
			if errors.Is(err, os.ErrDeadlineExceeded) && time.Since(begun) < await.Deadline {
				continue
			}
			if err != nil {
				t.Error(err)
				break
			}
			p, _ := parse(b[:n])
			if p.check(true) != nil {
				damaged++
			}
			got = append(got, int(binary.BigEndian.Uint32(p.body[bthLen:])))
		}
		<-done
		return got, damaged, c
	}
	got, damaged, c := run(Faults{Lost: 0.03, Twice: 0.03, Late: 0.03})
	if damaged != 0 || len(got) != count-c.Lost+c.Twice || c.Lost < 30 || c.Twice < 30 || c.Late < 30 {
		t.Errorf("%d of %d have come, %d damaged: %+v", len(got), count, damaged, c)
	}
	back := 0
	for i := range got[1:] {
		if d := got[i] - got[i+1]; d > 0 {
			back++
			if d > mostLate+2 {
				t.Errorf("%d after %d", got[i+1], got[i])
			}
		}
	}
	if back < c.Late/2 {
		t.Errorf("%d have been overtaken, %d were late", back, c.Late)
	}
	if _, _, again := run(Faults{Lost: 0.03, Twice: 0.03, Late: 0.03}); again != c {
		t.Errorf("%+v, then %+v", c, again)
	}
	// The byte that the ICRC does not cover and the header that changes leave some whole.
	if got, damaged, c := run(Faults{Damaged: 0.1}); len(got) != count || damaged < c.Damaged*8/10 || c.Damaged < 150 || c.Lost != 0 {
		t.Errorf("%d came, %d damaged: %+v", len(got), damaged, c)
	}
}
