package initiator

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"softiser/internal/fsm"
)

func init() { fsm.OnIllegal = func(err error) { panic(err) } }

// The tables are the drawings above the states.
func TestStates(t *testing.T) {
	checkMoves(t, nextSession, map[[2]State]bool{
		{StateConnecting, StateActive}: true, {StateConnecting, StateFailed}: true, {StateConnecting, StateClosed}: true,
		{StateActive, StateRecovering}: true, {StateActive, StateClosing}: true, {StateActive, StateFailed}: true,
		{StateRecovering, StateActive}: true, {StateRecovering, StateClosing}: true, {StateRecovering, StateFailed}: true,
		{StateRecovering, StateDown}: true, {StateDown, StateActive}: true, {StateDown, StateClosing}: true,
		{StateClosing, StateClosed}: true, {StateFailed, StateClosed}: true,
	})
	checkMoves(t, nextTask, map[[2]taskState]bool{
		{taskFree, taskSent}: true, {taskSent, taskFree}: true, {taskSent, taskAborting}: true, {taskSent, taskDelayed}: true,
		{taskSent, taskResend}: true, {taskAborting, taskFree}: true, {taskDelayed, taskFree}: true,
		{taskDelayed, taskResend}: true, {taskResend, taskFree}: true, {taskResend, taskSent}: true,
	})
	checkMoves(t, nextConn, map[[2]connState]bool{
		{connLogin, connEntered}: true, {connLogin, connDead}: true,
		{connEntered, connFlowing}: true, {connEntered, connDoomed}: true, {connEntered, connDead}: true,
		{connFlowing, connLeaving}: true, {connFlowing, connDoomed}: true, {connFlowing, connDead}: true,
		{connLeaving, connDoomed}: true, {connLeaving, connDead}: true, {connDoomed, connDead}: true,
	})
	checkMoves(t, nextRequest, map[[2]reqState]bool{
		{reqIdle, reqQueued}: true, {reqQueued, reqRunning}: true, {reqQueued, reqIdle}: true,
		{reqRunning, reqQueued}: true, {reqRunning, reqIdle}: true,
	})
}

func checkMoves[S interface {
	~uint8
	fmt.Stringer
}](t *testing.T, m fsm.Table[S], legal map[[2]S]bool) {
	t.Helper()
	for from := range S(len(m)) {
		for to := range S(len(m)) {
			if got := m.Has(from, to); got != legal[[2]S{from, to}] {
				t.Errorf("%T: %v to %v: %v", from, from, to, got)
			}
		}
	}
}

// Outside of tests a transition that the table does not have ends the connection, and
// changes nothing; the session recovers.
func TestIllegalTransition(t *testing.T) {
	told := fsm.OnIllegal
	t.Cleanup(func() { fsm.OnIllegal = told })
	for _, c := range []struct {
		name string
		do   func(s *Session)
		want string
	}{
		{"session", func(s *Session) { s.setState(StateConnecting) }, "a session cannot go from active to connecting"},
		{"connection", func(s *Session) { s.conn.setState(connLogin) }, "a connection cannot go from flowing to login"},
		{"slot", func(s *Session) { s.tasks.slots[0].setState(taskAborting) }, "a command slot cannot go from free to aborting"},
		{"slot freed twice", func(s *Session) { s.tasks.put(&s.tasks.slots[0]) }, "a command slot cannot go from free to free"},
		{"request", func(s *Session) { new(request).setState(s, reqRunning) }, "a request cannot go from idle to running"},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, ft *fakeTarget) {
				l := dialLUN(t, ft.config())
				var got []string
				fsm.OnIllegal = func(err error) { got = append(got, err.Error()) }
				s := l.Sessions()[0]
				s.mu.Lock()
				c.do(s)
				state := s.state
				s.unlock()
				fsm.OnIllegal = told
				if len(got) != 1 || !strings.Contains(got[0], "internal error") || !strings.HasSuffix(got[0], c.want) || state != StateActive {
					t.Errorf("%q, the session is %v", got, state)
				}
				if err := l.Do(context.Background(), &Request{Op: OpRead, Buf: make([]byte, 512)}); err != nil {
					t.Error(err)
				}
				if n := l.Stats().Losses; n != 1 {
					t.Errorf("%d connections were lost, want 1", n)
				}
			})
		})
	}
}
