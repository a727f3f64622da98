package scsi

import (
	"strings"

	"softiser/target/volume"
)

// A registration outlives the session that made it, and so does the claim of the
// user who had proved who he is to the name that it was made under: nobody else may
// come back under that name and find its reservation waiting.

// portPrefix is what the initiator ports of one initiator begin with.
func portPrefix(initiator string) string { return strings.ToLower(initiator) + ",i," }

// RegisteredUser returns a user other than user who has registered with a logical
// unit, through this target, under the name of initiator. Registrations that were made
// without authentication, or by others on behalf of this initiator (SPEC_I_PT,
// REGISTER AND MOVE), belong to no user.
func (d *Device) RegisteredUser(initiator, user string) (other string, ok bool) {
	mine := d.registrationsOf(initiator)
	for _, lu := range *d.luns.Load() {
		res := lu.vol.Reservations()
		for _, k := range res.Registrants() {
			if r, _ := res.Find(k); r.User != "" && r.User != user && mine(k) {
				return r.User, true
			}
		}
	}
	return "", false
}

// DisownRegistrations makes the registrations that an initiator has through this target
// nobody's. They stay, and so do the reservations: whoever next proves a right to the
// name has them.
func (d *Device) DisownRegistrations(initiator string) error {
	for _, lu := range *d.luns.Load() {
		if err := lu.vol.Disown(d.registrationsOf(initiator)); err != nil {
			return err
		}
	}
	return nil
}

// registrationsOf accepts the registrants that an initiator is through this target.
func (d *Device) registrationsOf(initiator string) func(volume.Registrant) bool {
	prefix := portPrefix(initiator)
	return func(k volume.Registrant) bool {
		return k.Target == d.cfg.Name && strings.HasPrefix(k.Initiator, prefix)
	}
}
