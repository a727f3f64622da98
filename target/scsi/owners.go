package scsi

import "strings"

// A registration outlives the session that made it, and so does the claim of the
// user who had proved who he is to the name that it was made under: nobody else may
// come back under that name and find its reservation waiting.

// portPrefix is what the initiator ports of one initiator begin with.
func portPrefix(initiator string) string { return strings.ToLower(initiator) + ",i," }

// RegisteredUser returns a user other than user who has registered with a logical
// unit of the device under the name of initiator. Registrations that were made
// without authentication, or by others on behalf of this initiator (SPEC_I_PT,
// REGISTER AND MOVE), belong to no user.
func (d *Device) RegisteredUser(initiator, user string) (other string, ok bool) {
	prefix := portPrefix(initiator)
	for _, lu := range *d.luns.Load() {
		for k, r := range lu.pr.Load().regs {
			if r.User != "" && r.User != user && strings.HasPrefix(k.Port, prefix) {
				return r.User, true
			}
		}
	}
	return "", false
}

// DisownRegistrations makes the registrations of an initiator nobody's. They stay,
// and so do the reservations: whoever next proves a right to the name has them.
func (d *Device) DisownRegistrations(initiator string) error {
	for _, lu := range *d.luns.Load() {
		if err := lu.disown(portPrefix(initiator)); err != nil {
			return err
		}
	}
	return nil
}

// disown forgets the users of the registrations of initiator ports with a prefix.
func (lu *LU) disown(prefix string) error {
	lu.prMu.Lock()
	defer lu.prMu.Unlock()
	var now *reservations
	for k, r := range lu.pr.Load().regs {
		if r.User == "" || !strings.HasPrefix(k.Port, prefix) {
			continue
		}
		if now == nil {
			now = lu.pr.Load().clone()
		}
		r.User = ""
		now.regs[k] = r
	}
	if now == nil {
		return nil
	}
	if err := lu.saveReservations(now); err != nil {
		return err
	}
	lu.pr.Store(now)
	return nil
}
