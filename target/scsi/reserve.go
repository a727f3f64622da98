package scsi

import (
	"maps"

	spc "softiser/internal/scsi"
)

// Persistent reservations (SPC-4 §5.12). A registration is the key of one I_T
// nexus; it outlives the session, so it is named by the initiator port's name
// and ISID and by the target port. The whole state is an immutable snapshot:
// commands look at it without a lock, PERSISTENT RESERVE OUT makes the next one
// under LU.prMu, saves it if it is to survive power loss, then publishes it.

// maxRegistrations bounds what initiators can make the unit remember.
const maxRegistrations = 1024

// regKey names an I_T nexus across sessions.
type regKey struct {
	Port string `json:"initiator_port"`
	Rel  uint16 `json:"target_port"`
}

type registration struct {
	Key      uint64 `json:"key"`
	AllPorts bool   `json:"all_target_ports,omitempty"`
	User     string `json:"user,omitempty"` // who had proved who he is when it was made
}

type reservations struct {
	gen    uint32 // counts registrations, clears and preempts; 0 at start-up
	regs   map[regKey]registration
	typ    spc.PRType // PRNone: registrations only
	holder regKey     // unless the type says all registrants
	aptpl  bool       // kept through power loss
}

func (n *Nexus) regKey() regKey { return regKey{n.port, n.relPort} }

func (r *reservations) clone() *reservations {
	c := *r
	c.regs = maps.Clone(r.regs)
	if c.regs == nil {
		c.regs = map[regKey]registration{}
	}
	return &c
}

// holds reports whether k holds the reservation.
func (r *reservations) holds(k regKey) bool {
	if r.typ == spc.PRNone {
		return false
	}
	if r.typ.AllRegistrants() {
		_, ok := r.regs[k]
		return ok
	}
	return r.holder == k
}

// forbids reports whether the reservation keeps k from a command of class a.
func (r *reservations) forbids(k regKey, a access) bool {
	if r.typ == spc.PRNone || a == accAlways || r.holds(k) {
		return false
	}
	_, registered := r.regs[k]
	if registered && r.typ.RegistrantsOnly() {
		return false
	}
	return a == accWrite || !r.typ.WriteExclusive()
}

// conflicts reports whether a reservation of either kind keeps t's nexus from
// the command.
func (lu *LU) conflicts(t *Task, c *command) bool {
	if h := lu.legacy.Load(); h != nil && h != t.Nexus {
		return !c.has(fNoUA) && c.op != spc.OpRelease6 && c.op != spc.OpRelease10
	}
	r := lu.pr.Load()
	return r.typ != spc.PRNone && r.forbids(t.Nexus.regKey(), c.access)
}

// keepsFrom reports whether a reservation of either kind keeps n from reading
// (accRead) or writing (accWrite) the medium.
func (lu *LU) keepsFrom(n *Nexus, a access) bool {
	if h := lu.legacy.Load(); h != nil && h != n {
		return true
	}
	return lu.pr.Load().forbids(n.regKey(), a)
}

// remove takes a registration away; the reservation goes with its holder, or
// with the last registrant. It reports whether that ended a reservation.
func (r *reservations) remove(k regKey) bool {
	held := r.holds(k)
	delete(r.regs, k)
	if held && (!r.typ.AllRegistrants() || len(r.regs) == 0) {
		r.typ, r.holder = spc.PRNone, regKey{}
		return true
	}
	return false
}

// registered returns a filter for the nexuses, other than but, that are
// registered in r.
func (r *reservations) registered(but *Nexus) func(*Nexus) bool {
	return func(n *Nexus) bool {
		_, ok := r.regs[n.regKey()]
		return ok && n != but
	}
}
