package initiator

import (
	"context"
	"encoding/binary"
	"errors"

	"softiser/initiator/blockio"
	"softiser/internal/spc"
)

// ready asks whether commands of the medium would be carried out (TEST UNIT READY), and
// how the LUN can be reached if not.
func (u lookup) ready(ctx context.Context) (ready bool, state blockio.Access, err error) {
	_, err = u.command(ctx, spc.AppendTestUnitReady(nil), nil)
	if err == nil {
		return true, blockio.AccessOptimized, nil
	}
	var se *spc.SenseError
	if !errors.As(err, &se) || se.Sense.Key != spc.KeyNotReady {
		return false, blockio.AccessGone, err
	}
	switch se.Sense.ASC {
	case spc.ASCAccessTransition, spc.ASCBecomingReady:
		return false, blockio.AccessTransitioning, nil
	case spc.ASCAccessStandby, spc.ASCAccessUnavailable:
		return false, blockio.AccessInaccessible, nil
	case spc.ASCAccessOffline:
		return false, blockio.AccessGone, nil
	}
	return false, blockio.AccessGone, err
}

// groups asks for the state of the port group that the LUN is reached through, and
// whether another group can be used instead.
func (u lookup) groups(ctx context.Context) (state blockio.Access, shared bool, err error) {
	own, err := u.portGroup(ctx)
	if err != nil {
		return blockio.AccessGone, false, err
	}
	if own < 0 {
		return blockio.AccessOptimized, false, nil
	}
	buf := make([]byte, 4<<10)
	n, err := u.command(ctx, spc.AppendReportTargetPortGroups(nil, false, uint32(len(buf))), buf)
	var se *spc.SenseError
	switch {
	case errors.As(err, &se) && se.Sense.Key == spc.KeyIllegalRequest:
		return blockio.AccessOptimized, false, nil
	case err != nil:
		return blockio.AccessGone, false, err
	}
	groups, err := spc.ParsePortGroups(buf[:n])
	if err != nil {
		return blockio.AccessGone, false, err
	}
	for _, g := range groups {
		if int(g.ID) == own {
			state = accessOf(g.State)
		} else if accessOf(g.State).Usable() {
			shared = true
		}
	}
	return state, shared, nil
}

// portGroup returns the target port group that the LUN is reached through; -1: the target
// names none. Only a lost connection is an error: the page is not mandatory.
func (u lookup) portGroup(ctx context.Context) (int, error) {
	page, err := u.vpd(ctx, spc.VPDIdentification)
	if lostConnection(err) {
		return -1, err
	}
	group := -1
	ds, _ := spc.ParseDesignators(page)
	for _, d := range ds {
		if d.Association == spc.AssocPort && d.Type == spc.DesignatorPortGroup && len(d.ID) == 4 {
			group = int(binary.BigEndian.Uint16(d.ID[2:]))
		}
	}
	return group, nil
}

// accessOf translates an asymmetric access state (SPC-4 §6.37.2).
func accessOf(state byte) blockio.Access {
	switch state {
	case 0:
		return blockio.AccessOptimized
	case 1, 4: // LBA dependent: some of it is elsewhere
		return blockio.AccessNonOptimized
	case 0xF:
		return blockio.AccessTransitioning
	case 0xE:
		return blockio.AccessGone
	}
	return blockio.AccessInaccessible
}
