package initiator_test

import (
	"context"
	"errors"
	"testing"

	"softiser/initiator"
)

// What callers are told by type can be named by them.
func TestErrorTypes(t *testing.T) {
	s := serve(t, 1<<20, nil)
	cfg := s.config(initiator.TransportTCP)
	l := openLUN(t, cfg)
	err := l.Do(context.Background(), &initiator.Request{Op: initiator.OpCDB, CDB: []byte{0xff, 0, 0, 0, 0, 0}})
	var sense *initiator.SenseError
	if !errors.As(err, &sense) || sense.Op != 0xff || sense.Status != 2 || sense.Sense.Key != 5 || sense.Sense.ASC != 0x2000 {
		t.Errorf("an unknown operation code: %v", err)
	}
	cfg.TargetName = "iqn.2026-11.softiser:nobody"
	_, err = initiator.Open(context.Background(), cfg)
	var login *initiator.LoginError
	if !errors.As(err, &login) || !login.Remote || login.Status != 0x0203 {
		t.Errorf("an unknown target: %v", err)
	}
}
