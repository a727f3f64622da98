package iscsi

import (
	"bytes"
	"testing"

	"softiser/internal/iscsi"
)

// A function for one logical unit leaves WRITEs to others alone whose data is on its way.
func TestResetLeavesOtherUnitsData(t *testing.T) {
	for _, f := range []iscsi.TaskFunction{iscsi.AbortTaskSet, iscsi.LogicalUnitReset} {
		s := serve(t, unsolicitedAllowed)
		l := s.memory(t, "beside", 1<<20)
		l.LUConfig.LUN = 3
		if err := s.AddLUN(testIQN, l); err != nil {
			t.Fatal(err)
		}
		r := s.session("InitialR2T=No", "ImmediateData=Yes", "FirstBurstLength=16384")
		r.do(command{cdb: testUnitReady, lun: 3}, nil) // its unit attention
		data := pattern(4096, 3)
		begin := func(lun int) uint32 {
			return r.command(command{cdb: cdbRW10(0x2a, 0, 8), lun: lun, write: true, edtl: 4096, imm: data[:512], more: true})
		}
		begin(0)
		kept := begin(3)
		if code := r.task(f, 0, iscsi.ReservedTag, 0); code != iscsi.TaskComplete {
			t.Fatalf("%v: response %d", f, code)
		}
		r.dataOut(kept, iscsi.ReservedTag, 0, 512, data[512:], true)
		if res := r.finish(kept, nil); res.status != 0 {
			t.Errorf("%v: the WRITE to the other unit ended with %#x, % x", f, res.status, res.sense)
		}
		got := r.do(command{cdb: cdbRW10(0x28, 0, 8), lun: 3, read: true, edtl: 4096}, nil)
		if !bytes.Equal(got.data, data) {
			t.Errorf("%v: the data of the other unit is not there", f)
		}
	}
}

// A function ends commands to its unit, too, that were sent before it and wait behind an ORDERED
// WRITE to another unit whose data is on its way: none is carried out when it has been answered.
// Others that wait, and what is sent behind the function, are.
func TestResetEndsHeldCommands(t *testing.T) {
	for _, f := range []iscsi.TaskFunction{iscsi.AbortTaskSet, iscsi.ClearTaskSet, iscsi.LogicalUnitReset} {
		s := serve(t, unsolicitedAllowed)
		l := s.memory(t, "beside", 1<<20)
		l.LUConfig.LUN = 3
		if err := s.AddLUN(testIQN, l); err != nil {
			t.Fatal(err)
		}
		r := s.session("InitialR2T=No", "ImmediateData=Yes", "FirstBurstLength=16384")
		r.do(command{cdb: testUnitReady, lun: 3}, nil) // its unit attention
		data := pattern(4096, 3)
		write := func(lun int, lba uint32) uint32 {
			return r.command(command{cdb: cdbRW10(0x2a, lba, 8), lun: lun, write: true, edtl: 4096, imm: data})
		}
		ordered := r.command(command{cdb: cdbRW10(0x2a, 0, 8), lun: 3, write: true, edtl: 4096, imm: data[:512], more: true, attr: 2})
		write(0, 0)
		kept := write(3, 8)
		if code := r.task(f, 0, iscsi.ReservedTag, 0); code != iscsi.TaskComplete {
			t.Fatalf("%v: response %d", f, code)
		}
		later := write(0, 8)
		r.dataOut(ordered, iscsi.ReservedTag, 0, 512, data[512:], true)
		for _, tag := range []uint32{ordered, kept} {
			if res := r.finish(tag, nil); res.status != 0 {
				t.Errorf("%v: a WRITE to the other unit ended with %#x, % x", f, res.status, res.sense)
			}
		}
		if res := r.finish(later, nil); f == iscsi.LogicalUnitReset && res.status != 2 || f != iscsi.LogicalUnitReset && res.status != 0 { // a unit attention
			t.Errorf("%v: the WRITE behind the function ended with %#x, % x", f, res.status, res.sense)
		}
		got := r.do(command{cdb: cdbRW10(0x28, 0, 8), read: true, edtl: 4096}, nil)
		if !bytes.Equal(got.data, make([]byte, 4096)) {
			t.Errorf("%v: a command that had been ended has been carried out", f)
		}
	}
}

// QUERY TASK SET finds the tasks of its unit, and of no other.
func TestQueryTaskSetOfAnotherUnit(t *testing.T) {
	s := serve(t, unsolicitedAllowed)
	l := s.memory(t, "beside", 1<<20)
	l.LUConfig.LUN = 3
	if err := s.AddLUN(testIQN, l); err != nil {
		t.Fatal(err)
	}
	r := s.session("iSCSIProtocolLevel=2", "InitialR2T=No", "FirstBurstLength=16384")
	r.command(command{cdb: cdbRW10(0x2a, 0, 8), lun: 3, write: true, edtl: 4096, more: true})
	for lun, want := range map[int]uint8{0: iscsi.TaskComplete, 3: iscsi.TaskFunctionSucceeded} {
		if got := r.task(iscsi.QueryTaskSet, lun, iscsi.ReservedTag, 0); got != want {
			t.Errorf("LUN %d: response %d, want %d", lun, got, want)
		}
	}
}

// What ends with a session has ended when its initiator hears that the session has.
func TestLogoutReleasesFirst(t *testing.T) {
	s := serve(t, nil)
	r, other := s.session(), s.second(77)
	if res := r.do(command{cdb: []byte{0x16, 0, 0, 0, 0, 0}}, nil); res.status != 0 {
		t.Fatalf("RESERVE: %#x", res.status)
	}
	if code := r.logoutReason(iscsi.LogoutSession, 0); code != iscsi.LogoutClosed {
		t.Fatalf("logout: %d", code)
	}
	if res := other.do(command{cdb: testUnitReady}, nil); res.status != 0 {
		t.Errorf("behind the logout response: %#x, % x", res.status, res.sense)
	}
}

// There is nothing worth recovering in a discovery session.
func TestDiscoveryAtLevel0(t *testing.T) {
	s := serve(t, func(c *serverConfig, _ *Target) { c.Session.ErrorRecoveryLevel = 2 })
	r := s.dial()
	r.loginRequest(true, iscsi.StageOperational, iscsi.StageFullFeature, "InitiatorName="+r.name, "SessionType=Discovery", "ErrorRecoveryLevel=2")
	if p, keys := r.loginResponse(); p.LoginResponse().Status() != iscsi.LoginSuccess || keys["ErrorRecoveryLevel"] != "0" {
		t.Errorf("status %04x, ErrorRecoveryLevel=%s", uint16(p.LoginResponse().Status()), keys["ErrorRecoveryLevel"])
	}
}
