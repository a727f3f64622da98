package nvmf

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"softiser/internal/nvme"
	"softiser/target/portal"
)

// mute is a transport whose host sends nothing that it is asked for.
type mute struct {
	nvme.QueueTransport
	waiting bool
	ended   chan error
}

func (m *mute) Backlog() (bool, uint64)                       { return m.waiting, 0 }
func (m *mute) Terminate(err error)                           { m.ended <- err }
func (m *mute) GetData(*nvme.Command, uint32, [][]byte) error { return nil }
func (m *mute) PutData(*nvme.Command, uint32, [][]byte, bool) {}
func (m *mute) Respond(*nvme.Command, *nvme.CQE)              {}

// watched is a queue of an m that has been let in.
func watched(m *mute, t Timeouts) *queue {
	q := &queue{fe: &Frontend{epoch: time.Now()}, conn: &portal.Conn{}, t: m, timer: time.NewTimer(time.Hour)}
	q.fe.cfg.Timeouts = t
	q.mu.Lock()
	defer q.mu.Unlock()
	q.lookLaterLocked()
	return q
}

// A host that does not send the data of a command ends its connection; one whose data comes does not.
func TestOwedData(t *testing.T) {
	for _, limit := range []time.Duration{time.Second, 30 * time.Second, -1} {
		synctest.Test(t, func(t *testing.T) {
			m := &mute{ended: make(chan error, 1)}
			q := watched(m, Timeouts{Unread: 30 * time.Second, Data: limit})
			r := &request{q: q, cmd: &nvme.Command{}}
			q.mu.Lock()
			q.requests = []*request{r, {q: q}}
			q.mu.Unlock()
			went := 0
			for range 100 { // in parts, each of which comes just in time
				r.fetch(0, func(*request) { went++ })
				time.Sleep(max(limit, time.Second) - time.Millisecond)
				r.arrived(nil)
			}
			time.Sleep(2 * time.Minute)
			synctest.Wait()
			if went != 100 || len(m.ended) > 0 {
				t.Fatalf("within %v of data: went on %d times, ended %d", limit, went, len(m.ended))
			}
			began := time.Now()
			r.fetch(0, nil)
			if limit < 0 {
				time.Sleep(time.Hour)
				synctest.Wait()
				if len(m.ended) > 0 {
					t.Error("ended without a limit")
				}
			} else if err := <-m.ended; !errors.Is(err, errOwed) {
				t.Error(err)
			} else if d := time.Since(began); d < limit || d > 2*limit {
				t.Errorf("ended after %v of %v", d, limit)
			}
			q.mu.Lock()
			q.timer.Stop()
			q.mu.Unlock()
		})
	}
}

// Looking for data more often does not end who reads slowly any sooner.
func TestUnreadHasItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &mute{ended: make(chan error, 1), waiting: true}
		watched(m, Timeouts{Unread: 30 * time.Second, Data: time.Second})
		began := time.Now()
		if err := <-m.ended; !errors.Is(err, errUnread) {
			t.Error(err)
		}
		if d := time.Since(began); d < 30*time.Second || d > 91*time.Second {
			t.Errorf("ended after %v", d)
		}
	})
}
