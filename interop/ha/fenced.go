package main

import (
	"context"
	"errors"
	"fmt"

	"softiser/initiator/blockio"
)

// fencedHost is a host that another one has fenced, as fence_scsi does: registered, and
// preempted under a reservation for registrants. Whichever node serves, it is refused.
type fencedHost struct{}

const (
	holderKey, victimKey = 0xa, 0xb
	holderISID           = "--isid=80a1b2c30001"
	victimISID           = "--isid=80a1b2c30002"
	fencedURL            = "iscsi://" + portal + "/" + iqn + "/1"
)

// reserved opens the volume with the reservations as one of both hosts.
func reserved(ctx context.Context, isid string, f func(blockio.Volume, blockio.Reserver) error) error {
	v, err := open(ctx, fencedURL, append(patient, isid, "--initiator-name=iqn.2026-11.softiser:fencing")...)
	if err != nil {
		return err
	}
	defer v.Close()
	r, ok := v.(blockio.Reserver)
	if !ok {
		return errors.New("no reservations over " + fencedURL)
	}
	return f(v, r)
}

// fence registers both hosts, reserves, and has the holder preempt the victim.
func (fencedHost) fence(ctx context.Context) error {
	err := reserved(ctx, victimISID, func(_ blockio.Volume, r blockio.Reserver) error {
		return r.Register(ctx, blockio.Registration{NewKey: victimKey, Persist: true})
	})
	if err != nil {
		return fmt.Errorf("registering a host: %w", err)
	}
	return reserved(ctx, holderISID, func(_ blockio.Volume, r blockio.Reserver) error {
		if err := r.Register(ctx, blockio.Registration{NewKey: holderKey, Persist: true}); err != nil {
			return fmt.Errorf("registering a host: %w", err)
		}
		if err := r.Reserve(ctx, holderKey, blockio.WriteExclusiveRegistrants); err != nil {
			return fmt.Errorf("reserving: %w", err)
		}
		if err := r.Preempt(ctx, blockio.Preemption{Key: holderKey, Victim: victimKey, Type: blockio.WriteExclusiveRegistrants, Abort: true}); err != nil {
			return fmt.Errorf("preempting: %w", err)
		}
		return nil
	})
}

// check has both hosts write: the holder may, the victim may not.
func (fencedHost) check(ctx context.Context) error {
	write := func(v blockio.Volume) error {
		return v.Do(ctx, &blockio.Request{Op: blockio.OpWrite, Buf: make([]byte, blockSize)})
	}
	err := reserved(ctx, victimISID, func(v blockio.Volume, _ blockio.Reserver) error { return write(v) })
	switch {
	case err == nil:
		return errors.New("a host that was fenced by PREEMPT AND ABORT has written")
	case !errors.Is(err, blockio.ErrReservation):
		return fmt.Errorf("the write of a fenced host: %w", err)
	}
	return reserved(ctx, holderISID, func(v blockio.Volume, r blockio.Reserver) error {
		now, err := r.Reservations(ctx)
		if err != nil {
			return err
		}
		if now.Type != blockio.WriteExclusiveRegistrants || len(now.Registrants) != 1 || now.Registrants[0].Key != holderKey || !now.Registrants[0].Holder {
			return fmt.Errorf("the reservations are no longer what they were: %+v", *now)
		}
		if err := write(v); err != nil {
			return fmt.Errorf("the write of the holder of the reservation: %w", err)
		}
		return nil
	})
}
