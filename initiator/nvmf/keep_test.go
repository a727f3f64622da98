package nvmf

import (
	"testing"
	"testing/synctest"
	"time"

	"softiser/internal/nvme"
)

// A controller that counts any command hears of its host within half of the time-out, whatever
// is answered meanwhile: the Keep Alive itself, and commands that were sent long ago.
func TestKeepAliveInTime(t *testing.T) {
	const kato = 2 * time.Second
	for name, tt := range map[string]struct {
		attributes uint32
		old        bool // a command of the beginning is answered in each tick
		fresh      bool // a command is sent and answered in each tick
	}{
		"idle":                          {nvme.AttrTBKAS, false, false},
		"old commands":                  {nvme.AttrTBKAS, true, false},
		"commands":                      {nvme.AttrTBKAS, false, true},
		"commands that are not counted": {0, false, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			a := &Association{pulse: pulse{start: time.Now()}}
			q := newQueue(a, 0, 4)
			k := &keeper{a: a}
			k.begin()
			answer := func(sentAt int64) {
				c := q.takeLocked()
				c.call = &call{done: make(chan struct{})}
				q.moveCommandLocked(c, cmdSent)
				c.sentAt = sentAt
				q.sent++
				q.Completed(&c.HostCommand)
			}
			pings, heard := 0, time.Duration(0)
			for now := tick; now < 20*kato; now += tick {
				time.Sleep(tick)
				a.pulse.now.Store(int64(now))
				if k.due(&controller{kato: kato, ident: &nvme.Controller{CTRATT: tt.attributes}}) {
					pings++
					heard = now
					answer(int64(now))
				}
				if tt.old {
					answer(1)
				}
				if tt.fresh {
					answer(int64(now))
					if tt.attributes != 0 {
						heard = now
					}
				}
				if silent := now - heard; silent > kato/2+tick {
					t.Fatalf("%s: the controller has heard nothing for %v", name, silent)
				}
			}
			if most := 45; pings > most || tt.fresh && tt.attributes != 0 && pings > 1 {
				t.Errorf("%s: %d Keep Alives", name, pings)
			}
		})
	}
}
