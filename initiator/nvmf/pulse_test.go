package nvmf

import (
	"testing"
	"testing/synctest"
	"time"
)

// What stands for a Keep Alive is the answer to a command that was sent since the last one, and
// of the same tick; not one that was sent before, however late it is answered.
func TestPulse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := pulse{start: time.Now()}
		pass := func(d time.Duration) int64 {
			time.Sleep(d) // of the bubble
			p.tick()
			return p.now.Load()
		}
		old := pass(tick)
		sent := pass(tick)
		p.begin()
		p.answered(old)
		if p.heard.Load() {
			t.Error("a command of before stands for a Keep Alive")
		}
		p.answered(sent)
		if !p.heard.Load() {
			t.Error("a command that was sent after the beat, in its tick, does not count")
		}
		pass(tick)
		p.begin()
		if p.answered(sent); p.heard.Load() {
			t.Error("it counts twice")
		}
		if p.now.Load() != int64(3*tick) || p.age() != 3*tick {
			t.Errorf("now %v, age %v, want %v", time.Duration(p.now.Load()), p.age(), 3*tick)
		}
	})
}
