package iscsi

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"softiser/internal/iscsi"
)

// Initiators log in, leave commands and a reset behind that are still under way, and
// log in again: with the old connection open, closed, cut in the middle of a PDU,
// logged out, killed by the administrator. However the old session ends, the next login
// succeeds as soon as the volume has let go of its commands.
func TestLoginAfterEveryKindOfEnd(t *testing.T) {
	s := serve(t, func(c *serverConfig, tgt *Target) {
		unsolicitedAllowed(c, tgt)
		c.Limits.Commands = 16
	})
	stop := make(chan struct{})
	var gates, wg sync.WaitGroup
	gates.Go(func() { // the volume works in fits and starts
		for {
			release := s.dev.hold()
			select {
			case <-time.After(3 * time.Millisecond):
			case <-stop:
			}
			release()
			select {
			case <-time.After(time.Millisecond):
			case <-stop:
				return
			}
		}
	})
	rounds := 40
	if testing.Short() {
		rounds = 10
	}
	for n := range 4 {
		wg.Go(func() { s.comeAndGo(t, n, rounds) })
	}
	wg.Wait()
	close(stop)
	gates.Wait()
	eventually(t, "all sessions end", func() bool { return len(s.Status().Sessions) == 0 })
}

// A connection that the target has closed after a logout, and its initiator not yet,
// does not hold up that initiator's next login.
func TestLoginBesideALoggedOutConnection(t *testing.T) {
	s := serve(t, nil)
	for i := range 8 {
		old := s.second(byte(2 * i))
		if code := old.logoutReason(iscsi.LogoutSession, 0); code != iscsi.LogoutClosed {
			t.Fatalf("logout: response %d", code)
		}
		r := s.second(byte(2*i + 1))
		s.mu.Lock()
		n := len(s.conns)
		s.mu.Unlock()
		old.nc.Close()
		r.logout()
		if n > 1 {
			return
		}
		// The machine may have been busy for as long as the target waits for the close.
	}
	t.Error("the login has waited for the end of the connection")
}

// comeAndGo is one initiator of TestLoginAfterEveryKindOfEnd.
func (s *server) comeAndGo(t *testing.T, n, rounds int) {
	rnd := rand.New(rand.NewPCG(uint64(n), 17))
	var slowest time.Duration
	for range rounds {
		r := dialRaw(t, s.addr)
		r.name += fmt.Sprint(n)
		if rnd.IntN(4) == 0 { // another port of the same initiator
			r.isid[5] = byte(rnd.IntN(3))
		}
		began := time.Now()
		r.mustLogin(testIQN, "InitialR2T=No", "FirstBurstLength=16384")
		slowest = max(slowest, time.Since(began))
		for i := range 8 {
			switch rnd.IntN(5) {
			case 0:
				r.command(command{cdb: cdbRW10(0x2a, uint32(n*64), 32), write: true, edtl: 16384}) // owes its data
			case 1:
				r.command(command{cdb: cdbRW10(0x2a, uint32(n*64), 32), write: true, edtl: 16384, imm: make([]byte, 512), more: true, attr: uint8(1 + i%3)})
			default:
				heldRead(r)
			}
		}
		switch rnd.IntN(3) {
		case 0:
			r.sendTask(iscsi.LogicalUnitReset, 0, iscsi.ReservedTag, 0)
		case 1:
			r.sendTask(iscsi.AbortTask, 0, r.itt, r.cmdSN-1)
		}
		switch rnd.IntN(6) {
		case 0: // stays open: session reinstatement
		case 1:
			r.nc.Close()
		case 2:
			r.nc.Write([]byte{0x01, 0x80, 0})
			r.nc.Close()
		case 3:
			_ = s.KillSession(r.tsih) // it may be gone already
		case 4:
			var q iscsi.BHS
			l := q.NewLogoutRequest(iscsi.LogoutSession)
			l.SetImmediate(true)
			l.SetITT(r.newTag())
			l.SetCmdSN(r.cmdSN)
			r.write(&q, nil)
		case 5:
			r.sendTask(iscsi.TargetWarmReset, 0, iscsi.ReservedTag, 0)
			time.Sleep(time.Duration(rnd.IntN(3)) * time.Millisecond) // the loss meets the reset anywhere
			r.nc.Close()
		}
		if rnd.IntN(2) == 0 {
			defer r.nc.Close()
		} else {
			r.nc.Close()
		}
	}
	t.Logf("initiator %d: the slowest login took %v", n, slowest)
}
