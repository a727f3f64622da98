package nvmf_test

import (
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

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
