package nvmf_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"softiser/blockdev"
	"softiser/blockdev/faulty"
	"softiser/internal/iscsi"
	"softiser/internal/nvme"
	"softiser/target"
	"softiser/target/nvmf"
)

// Nobody has to be let in to be refused: what he can have written to the log has a bound, and
// says nothing to the terminal of whoever reads it.
func TestLogIsLimited(t *testing.T) {
	core, lines := observer.New(zapcore.InfoLevel)
	r := open(t, func(c *target.Config, _ *nvmf.SubsystemConfig) { c.Log = zap.New(core) })
	began := time.Now()
	const tries = 500
	q := dial(t, r.addr)
	for range tries {
		d := nvme.ConnectData{CntlID: nvme.CntlIDDynamic, Subsystem: "nqn.\x1b[2J", Host: "x\u009b1m\u202e\n"}
		if _, err := q.connect(0, d, 0); err == nil {
			t.Fatal("Connect to a subsystem that is not there")
		}
	}
	h := r.attach("x\u009b1m", 10, 0)
	for range tries {
		dial(t, r.addr).close()
	}
	h.close()
	n, most := 0, 2*(10+1+int(time.Since(began)/time.Second))
	for _, l := range lines.All() {
		if l.Message == "NVMe: Connect refused" || l.Message == "NVMe: the connection ended before Connect" {
			n++
		}
		for k, v := range l.ContextMap() {
			if text, ok := v.(string); ok && iscsi.Printable(text) != text {
				t.Errorf("%s: %s=%q reached the log", l.Message, k, text)
			}
		}
	}
	if n == 0 || n > most {
		t.Errorf("%d lines, want 1 to %d", n, most)
	}
}

// What a volume cannot do for a host the log tells, with its cause, and of many such commands a few. What the
// host itself has asked for is none of that.
func TestFaultsAreLogged(t *testing.T) {
	core, lines := observer.New(zapcore.InfoLevel)
	var dev *faulty.Device
	r := open(t, func(c *target.Config, s *nvmf.SubsystemConfig) {
		c.Log = zap.New(core)
		dev = faulty.New(s.Namespaces[0].Volume, 1)
		s.Namespaces[0].Volume = dev
	})
	q := r.attach(hostNQN, 10, 1).io[0]
	if err := q.write(1<<40, pattern(512, 1)); err == nil {
		t.Error("a write behind the end")
	}
	if l := lines.FilterMessage("a volume failed a command").All(); len(l) != 0 {
		t.Errorf("logged: %v", l)
	}
	dev.SetRules(faulty.Rule{Op: faulty.Flush, Err: &blockdev.Error{Op: "fdatasync", Store: "disk", Kind: blockdev.ErrPoisoned, Cause: blockdev.ErrNoSpace}})
	began := time.Now()
	const tries = 50
	for range tries {
		var s nvme.SQE
		s.Init(nvme.OpFlush, 1)
		if _, err := q.do(s, nil, nil); err == nil {
			t.Fatal("a flush that fails has succeeded")
		}
	}
	l := lines.FilterMessage("a volume failed a command").All()
	if n, most := len(l), 1+1+int(time.Since(began)/time.Second); n == 0 || n > most {
		t.Fatalf("%d lines, want 1 to %d", n, most)
	}
	if m := l[0].ContextMap(); m["subsystem"] != subNQN || m["namespace"] != uint32(1) || !strings.Contains(fmt.Sprint(m["error"]), "no space left") {
		t.Errorf("%v", m)
	}
}
