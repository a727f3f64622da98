package iscsi

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"softiser/internal/fsm"
)

func init() { fsm.OnIllegal = func(err error) { panic(err) } }

// The tables are the drawings above the states.
func TestStates(t *testing.T) {
	checkMoves(t, nextTask, map[[2]taskState]bool{
		{taskFree, taskCollecting}: true, {taskFree, taskRunning}: true,
		{taskCollecting, taskRunning}: true, {taskCollecting, taskAborting}: true,
		{taskRunning, taskAborting}: true, {taskRunning, taskEnded}: true,
		{taskAborting, taskEnded}: true, {taskEnded, taskFree}: true,
	})
	checkMoves(t, nextSession, map[[2]sessionState]bool{
		{sessionActive, sessionEnding}: true, {sessionEnding, sessionEnded}: true,
	})
	checkMoves(t, nextCleanup, map[[2]cleanupState]bool{{cleanupWait, recoverable}: true})
	checkMoves(t, nextConn, map[[2]connState]bool{
		{connLogin, connFull}: true, {connLogin, connLoggedOut}: true, {connLogin, connClosing}: true, {connLogin, connClosed}: true,
		{connFull, connLoggedOut}: true, {connFull, connClosing}: true, {connFull, connClosed}: true,
		{connLoggedOut, connClosing}: true, {connLoggedOut, connClosed}: true, {connClosing, connClosed}: true,
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

// Outside of tests a transition that the table does not have ends the session, and
// changes nothing.
func TestIllegalTransition(t *testing.T) {
	told := fsm.OnIllegal
	t.Cleanup(func() { fsm.OnIllegal = told })
	var got []string
	fsm.OnIllegal = func(err error) { got = append(got, err.Error()) }
	s := serve(t, nil)
	for _, c := range []struct {
		do   func(x *session)
		want string
	}{
		{func(x *session) {
			k := &task{}
			k.via.Store(x.conns.members.conns[0])
			k.setStateLocked(taskEnded)
		}, "a task cannot go from free to ended"},
		{func(x *session) { x.setStateLocked(sessionEnded) }, "a session cannot go from active to ended"},
		{func(x *session) {
			l := &lostConn{c: x.conns.members.conns[0], state: recoverable}
			l.setStateLocked(cleanupWait)
		}, "a lost connection cannot go from recoverable to cleanup wait"},
	} {
		r := s.session()
		x := s.sessionByTSIH(r.tsih)
		got = nil
		x.mu.Lock()
		c.do(x)
		state := x.state
		x.mu.Unlock()
		if len(got) != 1 || !strings.Contains(got[0], c.want) || state != sessionActive {
			t.Errorf("told %v, want %q; session %v", got, c.want, state)
		}
		r.expectClosed()
		select {
		case <-x.done:
		case <-time.After(ioTime):
			t.Fatal("the session does not end")
		}
	}
}
