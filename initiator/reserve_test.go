package initiator

import (
	"context"
	"encoding/binary"
	"errors"
	"reflect"
	"testing"

	"softiser/initiator/blockio"
	"softiser/internal/iscsi"
	"softiser/internal/spc"
)

// A target without READ FULL STATUS and REPORT CAPABILITIES tells keys; the key of the
// reservation tells the holder. What meets a unit attention is sent again.
func TestReservationsOfOldTargets(t *testing.T) {
	bubble(t, func(t *testing.T, ft *fakeTarget) {
		l := dialLUN(t, ft.config())
		typ := spc.PRWriteExclusive
		sense := spc.Sense{Key: spc.KeyIllegalRequest, ASC: spc.ASCInvalidFieldInCDB}
		n := answers(ft, spc.OpPersistIn, func(n int, c *fakeDM, p *iscsi.PDU) bool {
			var b []byte
			be := binary.BigEndian
			switch sa := p.BHS.SCSICommand().CDB()[1] & 0x1F; {
			case n == 1:
				c.check(p, spc.Sense{Key: spc.KeyUnitAttention, ASC: spc.ASCReservPreempted})
				return true
			case sa == spc.SAPrinReadRes:
				b = append(be.AppendUint64(be.AppendUint32(be.AppendUint32(b, 7), 16), 0xabc), 0, 0, 0, 0, 0, byte(typ), 0, 0)
			case sa == spc.SAPrinReadKeys:
				b = be.AppendUint64(be.AppendUint64(be.AppendUint32(be.AppendUint32(b, 7), 16), 0xdef), 0xabc)
			default:
				c.check(p, sense)
				return true
			}
			c.reply(p, b)
			return true
		})
		got, err := l.Reservations(context.Background())
		want := &blockio.Reservations{Generation: 7, Type: blockio.WriteExclusive, Registrants: []blockio.Registrant{{Key: 0xdef}, {Key: 0xabc, Holder: true}}}
		if err != nil || !reflect.DeepEqual(got, want) || n() != 5 {
			t.Errorf("%+v, %v, %d commands; want %+v", got, err, n(), want)
		}
		typ = spc.PRExclusiveAccessAllRegistr
		if got, err = l.Reservations(context.Background()); err != nil || !got.Registrants[0].Holder || !got.Registrants[1].Holder {
			t.Errorf("%+v, %v", got, err)
		}
		// Another error is not taken for a command that is not there.
		sense = spc.Sense{Key: spc.KeyHardware, ASC: spc.ASCInternalFailure}
		var se *spc.SenseError
		if got, err = l.Reservations(context.Background()); !errors.As(err, &se) || se.Sense.Key != spc.KeyHardware {
			t.Errorf("%+v, %v", got, err)
		}
		letGo(ft)
	})
}

// A unit attention for every command is not answered for ever, and a conflict is named.
func TestReservationsRefused(t *testing.T) {
	bubble(t, func(t *testing.T, ft *fakeTarget) {
		l := dialLUN(t, ft.config())
		n := answers(ft, spc.OpPersistOut, func(n int, c *fakeDM, p *iscsi.PDU) bool {
			if p.BHS.SCSICommand().CDB()[1]&0x1F == spc.SAProutClear {
				c.status(p, spc.StatusReservationConflict, nil, 0)
				return true
			}
			c.check(p, spc.Sense{Key: spc.KeyUnitAttention, ASC: spc.ASCReservPreempted})
			return true
		})
		var se *spc.SenseError
		if err := l.Register(context.Background(), blockio.Registration{NewKey: 1}); !errors.As(err, &se) || n() != maxAgain+1 {
			t.Errorf("%v after %d commands", err, n())
		}
		if err := l.ClearReservations(context.Background(), 1); !errors.Is(err, ErrReservation) {
			t.Error(err)
		}
		if err := l.Reserve(context.Background(), 1, 99); !errors.Is(err, ErrInvalid) {
			t.Error(err)
		}
		letGo(ft)
	})
}
