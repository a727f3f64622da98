package scsi

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"softiser/internal/spc"

	"softiser/blockdev"
	"softiser/blockdev/faulty"
)

func logSense(pc, page, sub byte, pointer, alloc uint16) []byte {
	b := []byte{byte(spc.OpLogSense), 0, pc<<6 | page, sub, 0}
	b = binary.BigEndian.AppendUint16(b, pointer)
	return append(binary.BigEndian.AppendUint16(b, alloc), 0)
}

func logSelect4(flags, pc, page, sub byte, n uint16) []byte {
	b := []byte{byte(spc.OpLogSelect), flags, pc<<6 | page, sub, 0, 0, 0}
	return append(binary.BigEndian.AppendUint16(b, n), 0)
}

// logValues fetches a page and takes it apart.
func (r *rig) logValues(page byte) map[uint16][]byte {
	r.t.Helper()
	b := r.do(logSense(1, page, 0, 0, 1024), nil, 1024).good().data
	if len(b) < 4 || b[0] != 0x80|page || b[1] != 0 || int(binary.BigEndian.Uint16(b[2:])) != len(b)-4 {
		r.t.Fatalf("page %02x: % x", page, b)
	}
	m, last := map[uint16][]byte{}, -1
	for b = b[4:]; len(b) > 0; {
		code, n := int(binary.BigEndian.Uint16(b)), int(b[3])
		if code <= last || n > len(b)-4 || b[2] != logCounter && b[2] != logList {
			r.t.Fatalf("page %02x: parameter % x", page, b)
		}
		m[uint16(code)] = b[4 : 4+n]
		last, b = code, b[4+n:]
	}
	return m
}

func (r *rig) logCounter(page byte, code uint16) uint64 {
	r.t.Helper()
	v := r.logValues(page)[code]
	if len(v) != 8 {
		r.t.Fatalf("page %02x, parameter %04x: % x", page, code, v)
	}
	return binary.BigEndian.Uint64(v)
}

func TestSupportedLogPages(t *testing.T) {
	r := newRig(t, Config{}, LUConfig{Volume: newPooled(t)})
	r.nx = r.nx[:2]
	pages := r.do(logSense(1, 0, 0, 0, 255), nil, 255).good().data
	if want := []byte{0, 0, 0, 8, 0, 2, 3, 5, 0x0C, 0x10, 0x19, 0x2F}; !bytes.Equal(pages, want) {
		t.Errorf("% x, want % x", pages, want)
	}
	// Each page of the list of pages and subpages is there, and no others.
	all := r.do(logSense(1, 0, 0xFF, 0, 255), nil, 255).good().data
	if all[0] != 0x40 || all[1] != 0xFF || int(binary.BigEndian.Uint16(all[2:])) != len(all)-4 {
		t.Errorf("% x", all)
	}
	has := map[[2]byte]bool{}
	for d := all[4:]; len(d) > 0; d = d[2:] {
		has[[2]byte{d[0], d[1]}] = true
	}
	for page := range byte(0x40) {
		for _, sub := range []byte{0, 1, 2, 0xFE, 0xFF} {
			got := r.do(logSense(1, page, sub, 0, 1024), nil, 1024)
			if !has[[2]byte{page, sub}] {
				got.illegal(spc.ASCInvalidFieldInCDB)
				continue
			}
			got.good()
			if got.data[0]&0x3F != page || got.data[1] != sub {
				t.Errorf("page %02x/%02x: % x", page, sub, got.data)
			}
			// Cut to any length it still tells the whole one.
			cut := r.do(logSense(1, page, sub, 0, 7), nil, 1024).good().data
			if !bytes.Equal(cut, got.data[:min(7, len(got.data))]) {
				t.Errorf("page %02x/%02x cut: % x", page, sub, cut)
			}
		}
	}
	if one := r.do(logSense(1, 0x19, 0xFF, 0, 255), nil, 255).good().data; !bytes.Equal(one, []byte{0x59, 0xFF, 0, 4, 0x19, 0, 0x19, 0xFF}) {
		t.Errorf("subpages of page 19: % x", one)
	}
	// Fields that are not there: SP, PPC, a pointer beyond the last parameter.
	for _, c := range []struct {
		cdb   []byte
		field uint16
	}{
		{append([]byte{0x4D, 1}, logSense(1, 0x02, 0, 0, 255)[2:]...), 1},
		{append([]byte{0x4D, 2}, logSense(1, 0x02, 0, 0, 255)[2:]...), 1},
		{logSense(1, 0x02, 0, 7, 255), 5},
		{logSense(1, 0x00, 0, 1, 255), 5},
		{logSense(0, 0x02, 0, 0, 255), 2}, // threshold values
		{logSense(2, 0x02, 0, 0, 255), 2},
		{logSense(1, 0x0D, 0, 0, 255), 2}, // no temperature is made up
		{logSense(1, 0x0D, 0xFF, 0, 255), 2},
		{logSense(1, 0x02, 1, 0, 255), 3},
	} {
		if got := r.do(c.cdb, nil, 255).illegal(spc.ASCInvalidFieldInCDB); got.sd.Field != c.field {
			t.Errorf("% x: field %d, want %d", c.cdb, got.sd.Field, c.field)
		}
	}
	// The parameter pointer leaves out what comes before.
	if b := r.do(logSense(1, 0x02, 0, 6, 255), nil, 255).good().data; len(b) != 4+12 || b[5] != 6 {
		t.Errorf("% x", b)
	}
	// Lists have no page control: it does not matter.
	for pc := range byte(4) {
		r.do(logSense(pc, 0x0C, 0, 0, 255), nil, 255).good()
		r.do(logSense(pc, 0x2F, 0, 0, 255), nil, 255).good()
	}
}

func TestErrorCounters(t *testing.T) {
	const bad = 4 << 20
	v := faulty.New(newVolume(t, 8<<20, 512), 1,
		faulty.Rule{Op: faulty.Read, Off: bad, Len: 4096, Err: blockdev.ErrMedium},
		faulty.Rule{Op: faulty.Write, Off: bad, Len: 4096, Err: blockdev.ErrMedium})
	r := newRig(t, Config{}, LUConfig{Volume: v})
	counts := func(want ...uint64) {
		t.Helper()
		var got []uint64
		for _, page := range []byte{2, 3, 5} {
			got = append(got, r.logCounter(page, 5), r.logCounter(page, 6))
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("bytes and errors of writes, reads, verifies: %v, want %v", got, want)
		}
	}
	counts(0, 0, 0, 0, 0, 0)
	r.do(spc.AppendWrite(nil, 0, 8, false), make([]byte, 4096), 0).good()
	r.do(spc.AppendRead(nil, 0, 4, false), nil, 2048).good()
	r.do(spc.AppendVerify(nil, 0, 2, 0), nil, 0).good()
	counts(4096, 0, 2048, 0, 1024, 0)
	r.do(spc.AppendRead(nil, bad/512, 1, false), nil, 512).sense(spc.KeyMedium, spc.ASCUnrecoveredRead)
	r.do(spc.AppendCompareAndWrite(nil, bad/512, 1, false), make([]byte, 1024), 0).sense(spc.KeyMedium, spc.ASCUnrecoveredRead)
	r.do(spc.AppendWrite(nil, bad/512, 1, false), make([]byte, 512), 0).sense(spc.KeyMedium, spc.ASCWriteError)
	r.do(spc.AppendVerify(nil, bad/512, 1, 0), nil, 0).sense(spc.KeyMedium, spc.ASCUnrecoveredRead)
	r.do(spc.AppendRead(nil, 1<<40, 1, false), nil, 512).illegal(spc.ASCLBAOutOfRange) // no error of the medium
	counts(4096, 1, 2048, 2, 1024, 1)
	// Copies count as well.
	lu := r.dev.lookup(0)
	unit := spc.AppendCopyTarget(nil, spc.Designator{CodeSet: spc.CodeSetBinary, Type: spc.DesignatorNAA, ID: lu.vol.Identity().NAA}, 512)
	list := copyList(1, unit, spc.CopySegment{Type: spc.CopyBlockToBlock, Blocks: 8, SrcLBA: bad / 512})
	r.do(xcopy(list), list, 0).sense(spc.KeyCopyAborted, spc.ASCUnrecoveredRead)
	counts(4096, 1, 2048, 3, 1024, 1)
	// Default values are zero, until LOG SELECT makes the values so.
	if b := r.do(logSense(3, 0x03, 0, 6, 255), nil, 255).good().data; !allZero(b[8:16]) {
		t.Errorf("default values: % x", b)
	}
	r.do(logSelect4(2, 1, 0x03, 0, 0), nil, 0).good()
	counts(4096, 1, 0, 0, 1024, 1)
	r.do(spc.AppendRead(nil, 0, 1, false), nil, 512).good()
	counts(4096, 1, 512, 0, 1024, 1)
	if s := r.dev.lookup(0).Stats(); s.ReadBytes != 2048+512 {
		t.Errorf("LOG SELECT has changed the target's own counters: %+v", s)
	}
	r.do(logSelect4(0, 3, 0x02, 0xFF, 0), nil, 0).good() // default cumulative values
	counts(0, 0, 512, 0, 1024, 1)
	r.do(logSelect4(0, 1, 0, 0, 0), nil, 0).good() // no change
	counts(0, 0, 512, 0, 1024, 1)
	r.do(logSelect4(2, 1, 0, 0, 0), nil, 0).good() // all pages
	counts(0, 0, 0, 0, 0, 0)
	if b := r.logValues(0x19)[1]; !allZero(b) {
		t.Errorf("general statistics after a reset: % x", b)
	}
}

func TestLogSelectRefused(t *testing.T) {
	r := newRig(t, Config{})
	for _, c := range []struct {
		cdb   []byte
		field uint16
	}{
		{logSelect4(1, 1, 0, 0, 0), 1},    // SP
		{logSelect4(2, 1, 0, 0, 8), 1},    // PCR with a list
		{logSelect4(0, 1, 2, 0, 8), 2},    // a list names its own pages
		{logSelect4(2, 1, 0x10, 0, 0), 2}, // results of tests are not reset
		{logSelect4(2, 1, 0x0D, 0, 0), 2}, // no such page
		{logSelect4(2, 1, 0x02, 1, 0), 3}, // no such subpage
	} {
		if got := r.do(c.cdb, make([]byte, 8), 0).illegal(spc.ASCInvalidFieldInCDB); got.sd.Field != c.field {
			t.Errorf("% x: field %d, want %d", c.cdb, got.sd.Field, c.field)
		}
	}
	for _, c := range []struct {
		list  []byte
		field int // -1: the length is wrong, -2: nothing is
	}{
		{[]byte{2, 0, 0}, -1},
		{[]byte{2, 0, 0, 1}, -1},
		{[]byte{2, 0, 0, 0}, -2},
		{[]byte{2, 0, 0, 0, 0x0D, 0, 0, 0}, 4},
		{[]byte{2, 1, 0, 0}, 1},
		{[]byte{3, 0, 0, 0, 2, 0, 0, 12, 0, 6, 0, 8, 0, 0, 0, 0, 0, 0, 0, 9}, 8},
	} {
		got := r.do(logSelect4(0, 1, 0, 0, uint16(len(c.list))), c.list, 0)
		switch {
		case c.field == -2:
			got.good()
		case c.field == -1:
			got.illegal(spc.ASCParameterListLength)
		default:
			if got.illegal(spc.ASCInvalidFieldInParam); int(got.sd.Field) != c.field {
				t.Errorf("% x: field %d, want %d", c.list, got.sd.Field, c.field)
			}
		}
	}
}

func TestSpaceLog(t *testing.T) {
	v := newPooled(t)
	r := newRig(t, Config{}, LUConfig{Volume: v})
	v.use(100*mib + 1)
	m := r.logValues(0x0C)
	if want := []byte{0, 0, 0x0F, 0x9B, 2, 0, 0, 0}; !bytes.Equal(m[1], want) { // 4096 - 101
		t.Errorf("available: % x, want % x", m[1], want)
	}
	if want := []byte{0, 0, 0, 101, 2, 0, 0, 0}; !bytes.Equal(m[2], want) {
		t.Errorf("used: % x, want % x", m[2], want)
	}
}

// TestLogPagesForOthers has sg_logs, of sg3_utils, say what it reads in our pages.
func TestLogPagesForOthers(t *testing.T) {
	tool, err := exec.LookPath("sg_logs")
	if err != nil {
		t.Skip("sg_logs (of sg3-utils) is not installed")
	}
	v := newPooled(t)
	r := newRig(t, Config{}, LUConfig{Volume: v})
	v.use(100 * mib)
	r.do(spc.AppendWrite(nil, 0, 8, false), make([]byte, 4096), 0).good()
	r.do([]byte{0x1D, testForegroundShort << 5, 0, 0, 0, 0}, nil, 0).good()
	for _, c := range []struct {
		page, sub byte
		want      []string
	}{
		{0x00, 0, []string{"0x02", "Write error", "0x0c", "Logical block provisioning", "0x10", "self", "0x2f", "Informational"}},
		{0x00, 0xFF, []string{"0x02", "0x19,0xff"}},
		{0x02, 0, []string{"Total bytes processed = 4096", "Total uncorrected errors = 0"}},
		{0x0C, 0, []string{"Available LBA mapping", "count: 3996", "not dedicated to lu", "Used LBA mapping", "count: 100"}},
		{0x10, 0, []string{"foreground short", "completed without error"}},
		{0x19, 0, []string{"write commands = 1", "blocks received = 8", "idle time intervals"}},
		{0x2F, 0, []string{"asc = 0x0"}},
	} {
		b := r.do(logSense(1, c.page, c.sub, 0, 1024), nil, 1024).good().data
		name := filepath.Join(t.TempDir(), "page")
		if err := os.WriteFile(name, b, 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command(tool, "--in="+name, "--raw", fmt.Sprintf("--page=%d,%d", c.page, c.sub), "--pdt=0").CombinedOutput()
		for _, w := range c.want {
			if err != nil || !strings.Contains(strings.ToLower(string(out)), strings.ToLower(w)) {
				t.Errorf("page %02x/%02x: want %q in\n%s%v", c.page, c.sub, w, out, err)
			}
		}
	}
}

// TestStatisticsPage: times are those that the session layer observes.
func TestStatisticsPage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Config{})
		observed := func(cdb []byte, in int, took time.Duration, write bool) {
			c := r.start(r.nx[0], 0, cdb, make([]byte, 4096), in)
			<-c.done
			c.Observe(took, write)
			r.finish(c).good()
		}
		check := func(want ...uint64) {
			t.Helper()
			m := r.logValues(0x19)
			for i, w := range want {
				if got := binary.BigEndian.Uint64(m[1][8*i:]); got != w {
					t.Errorf("value %d: %d, want %d", i, got, w)
				}
			}
			if idle := binary.BigEndian.Uint64(m[2]); idle != 1e6 {
				t.Errorf("idle for %d µs", idle)
			}
			if !bytes.Equal(m[3], []byte{0, 0, 0, 6, 0, 0, 0, 1}) {
				t.Errorf("unit % x", m[3])
			}
		}
		observed(spc.AppendRead(nil, 0, 4, false), 2048, 300*time.Microsecond, false)
		observed(spc.AppendWrite(nil, 0, 8, false), 0, 200*time.Microsecond, true)
		time.Sleep(time.Second + 500*time.Microsecond)
		check(1, 1, 8, 4, 300, 200, 500, 500)
		r.do(logSelect4(2, 1, 0x19, 0, 0), nil, 0).good()
		time.Sleep(time.Second)
		check(0, 0, 0, 0, 0, 0, 0, 0)
		observed(spc.AppendRead(nil, 0, 1, false), 512, time.Millisecond, false)
		time.Sleep(time.Millisecond)
		check(1, 0, 0, 1, 1000, 0, 1000, 1000)
		r.close()
		r.nx = nil
	})
}
