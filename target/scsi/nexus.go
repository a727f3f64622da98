package scsi

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	"softiser/internal/spc"
	"softiser/target/volume"
)

// Nexus is an I_T nexus: an initiator port as seen through a target port. An
// iSCSI session is one, whatever its number of connections.
type Nexus struct {
	dev       *Device
	client    volume.Client // as volumes know it: initiator port (name,i,0xISID), target, relative port
	initiator string        // iSCSI name, lower case
	relPort   uint16
	group     *portGroup
	queries   bool

	itls atomic.Pointer[itlTable] // copy on write, under Device.mu
}

// NexusConfig names the two ends of a nexus.
type NexusConfig struct {
	Initiator string // iSCSI name of the initiator
	ISID      [6]byte
	// User is who the initiator has proved to be; "" without authentication. Its
	// registrations remember it (see Device.RegisteredUser).
	User string
	// Holder is on whose account writes have staging memory.
	Holder volume.Holder
	// RelPort is the relative target port identifier, unique within the device;
	// 0 stands for the first port. It decides the target port group.
	RelPort uint16
	// Queries says that the initiator may send the task management functions of
	// SAM-4 and later: QUERY TASK, QUERY TASK SET, QUERY ASYNCHRONOUS EVENT, I_T NEXUS
	// RESET. REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS says so to it.
	Queries bool
}

// itl is the I_T_L nexus: what a logical unit keeps for one nexus.
type itl struct {
	lu      *LU
	nexus   *Nexus
	path    *path                            // the access state through the nexus's target port
	latency atomic.Pointer[volume.Latencies] // nil until the first READ or WRITE
	pending atomic.Int32                     // len(queue), so that commands need no lock to see none
	queue   []spc.ASC                        // pending unit attentions, guarded by LU.mu
}

// itlTable is what a nexus finds its logical units by, in the order of their LUNs. Most
// nexuses have one or a few: looking through these is cheaper than hashing.
type itlTable []itlEntry

type itlEntry struct {
	lun uint16
	*itl
}

// find returns the entry of a LUN, nil when it names no unit.
func (t itlTable) find(lun uint16) *itl {
	for len(t) > 8 {
		if mid := len(t) / 2; t[mid].lun <= lun {
			t = t[mid:]
		} else {
			t = t[:mid]
		}
	}
	for i := range t {
		if t[i].lun == lun {
			return t[i].itl
		}
	}
	return nil
}

// without returns a copy that lacks a LUN.
func (t itlTable) without(lun uint16) itlTable {
	return slices.DeleteFunc(slices.Clone(t), func(e itlEntry) bool { return e.lun == lun })
}

// with returns a copy in which a LUN names i.
func (t itlTable) with(lun uint16, i *itl) itlTable {
	t = t.without(lun)
	at, _ := slices.BinarySearchFunc(t, lun, func(e itlEntry, lun uint16) int { return cmp.Compare(e.lun, lun) })
	return slices.Insert(t, at, itlEntry{lun, i})
}

// NewNexus registers a nexus, at login. Each of its logical units begins with a
// unit attention: 29/00 for an initiator port that has not been here since
// start-up, 29/07 for one that has come back.
func (d *Device) NewNexus(c NexusConfig) (*Nexus, error) {
	g, rel, err := d.alua.port(c.RelPort)
	if err != nil {
		return nil, fmt.Errorf("target %s: %w", d.cfg.Name, err)
	}
	name := strings.ToLower(c.Initiator)
	n := &Nexus{
		dev: d, initiator: name, relPort: rel, group: g, queries: c.Queries,
		client: volume.Client{ID: d.registrant(fmt.Sprintf("%s,i,0x%012x", name, c.ISID[:]), rel), User: c.User, Holder: c.Holder},
	}
	port := n.client.ID.Initiator
	d.mu.Lock()
	defer d.mu.Unlock()
	first := spc.ASCPowerOnReset
	if d.seen[port] {
		first = spc.ASCNexusLoss
	} else if len(d.seen) < 4096 {
		d.seen[port] = true
	}
	d.nexuses[n] = struct{}{}
	t := itlTable{}
	for _, lu := range d.LUs() {
		t = append(t, itlEntry{lu.lun, lu.join(n, first)})
	}
	n.itls.Store(&t)
	return n, nil
}

// setLocked gives the nexus its side of logical unit k, or takes it away.
func (n *Nexus) setLocked(k uint16, lu *LU) {
	t := *n.itls.Load()
	if lu == nil {
		t = t.without(k)
	} else {
		t = t.with(k, lu.join(n, spc.ASCInquiryChanged))
	}
	n.itls.Store(&t)
}

// join makes the I_T_L nexus of n, which begins with unit attention a: no command
// of n is carried out before its initiator has been told that the unit is new to it.
func (lu *LU) join(n *Nexus, a spc.ASC) *itl {
	i := &itl{lu: lu, nexus: n, path: &lu.paths[n.group.index]}
	lu.mu.Lock()
	i.add(a)
	lu.itls[n] = i
	lu.mu.Unlock()
	return i
}

// CloseNexus ends a nexus: its tasks are aborted (each still ends with Respond),
// its RESERVE reservations and prevent-removal states go. Persistent
// registrations stay.
func (d *Device) CloseNexus(n *Nexus) {
	d.mu.Lock()
	delete(d.nexuses, n)
	t := *n.itls.Load()
	d.mu.Unlock()
	for _, i := range t {
		lu := i.lu
		lu.loseNexus(n, nil)
		lu.mu.Lock()
		if lu.itls[n] == i.itl { // a nexus may be closed again
			lu.past.Add(i.latency.Load())
			delete(lu.itls, n)
		}
		lu.mu.Unlock()
	}
	for _, lu := range *d.leaving.Load() {
		lu.loseNexus(n, nil)
	}
}

// registrant names an initiator port as it is seen through a port of this device.
func (d *Device) registrant(initiatorPort string, rel uint16) volume.Registrant {
	return volume.Registrant{Initiator: initiatorPort, Target: d.cfg.Name, Port: rel}
}
