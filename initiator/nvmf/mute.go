package nvmf

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"softiser/initiator/internal/silence"
	"softiser/internal/nvme"
)

// mute watches whether the controller says anything while commands are outstanding.
type mute struct {
	a *Association

	mu       sync.Mutex    // guards the rest
	watch    silence.Watch // of this association
	patience silence.Patience
	pinging  bool      // a command is under way that stands for a ping
	probing  bool      // a goroutine has a second connection
	live     time.Time // since when there is this association
}

// began takes note of a new association. Its connections count what they hear from nothing
// on, and may come to the figure of those before.
func (m *mute) began() {
	m.mu.Lock()
	m.live, m.watch = time.Now(), silence.Watch{}
	m.mu.Unlock()
}

func (c *Config) silence() silence.Times {
	return silence.Times{Ping: c.SilencePing, Probe: c.SilenceProbe}
}

// hears returns what changes with every byte that comes over any queue, and whether commands
// are outstanding.
func (m *mute) hears() (heard uint64, waiting bool) {
	for _, q := range m.a.queues() {
		q.mu.Lock()
		if q.tr != nil {
			heard += q.tr.Stats().ReceiveCalls
		}
		waiting = waiting || q.id != 0 && q.sent > 0
		q.mu.Unlock()
	}
	return heard, waiting
}

// lookLocked returns what is to be done, and the times that are kept.
func (m *mute) lookLocked(t silence.Times, now time.Duration, heard uint64, waiting bool) (silence.Times, silence.Action) {
	t = m.patience.Of(t)
	return t, m.watch.Look(t, now, heard, waiting)
}

// look finds out whether the controller is mute, pings it, and has it probed. It is called
// while the association is live.
func (m *mute) look(kato time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	heard, waiting := m.hears()
	t, do := m.lookLocked(m.a.cfg.silence(), m.a.pulse.age(), heard, waiting)
	switch do {
	case silence.Ping:
		if !m.pinging {
			m.pinging = true
			m.a.wg.Go(func() { m.askForLife(kato) })
		}
	case silence.Probe:
		if !m.probing {
			m.probing = true
			m.a.wg.Go(func() { m.probe(t) })
		}
	}
}

// askForLife sends a Keep Alive, or where there is none a command that is answered as well.
// It returns when that has an answer, or the connection has ended.
func (m *mute) askForLife(kato time.Duration) {
	a := m.a
	set, name := func(s *nvme.SQE) { s.Init(nvme.AdminKeepAlive, 0) }, "Keep Alive"
	if kato == 0 {
		set, name = func(s *nvme.SQE) { s.NewPropertyGet(nvme.PropCSTS) }, "Property Get"
	}
	_, err := a.admin.do(a.ctx, set, nil, name)
	if err == nil {
		a.mu.Lock()
		a.pings++
		a.mu.Unlock()
	}
	m.mu.Lock()
	m.pinging = false
	m.mu.Unlock()
}

// probe tries a second connection, and gives the association up when that is answered while
// its own are still mute: another controller has taken this one's place, and does not know
// of them.
func (m *mute) probe(t silence.Times) {
	a := m.a
	begun, losses := time.Now(), a.losses.Load()
	heard, _ := m.hears()
	confirmed := silence.Confirm(a.ctx, t, func(ctx context.Context, dial time.Duration) bool {
		return a.cfg.answers(ctx, a.cfg.Transport, dial)
	}, func() bool {
		now, waiting := m.hears()
		return waiting && now == heard && a.losses.Load() == losses
	})
	m.mu.Lock()
	m.probing = false
	if confirmed {
		m.patience.GivenUp(t, begun.Sub(m.live))
	}
	m.mu.Unlock()
	if confirmed {
		a.breakOff(fmt.Errorf("nvmf: the controller has been mute for %v, though its port takes new connections", (t.Probe + time.Since(begun)).Round(time.Millisecond)))
	}
}

// attempt makes an attempt at a new association, which is given up when it is not answered
// while others are.
func (m *mute) attempt(establish func(context.Context) error) error {
	a := m.a
	m.mu.Lock()
	t := m.patience.Of(a.cfg.silence())
	m.mu.Unlock()
	err := silence.Attempt(a.ctx, t, establish, func(ctx context.Context, dial time.Duration) bool {
		return a.cfg.answers(ctx, a.cfg.Transport, dial)
	})
	if errors.Is(err, silence.ErrMute) {
		m.mu.Lock()
		m.patience.GivenUp(t, 0)
		m.mu.Unlock()
	}
	return err
}
