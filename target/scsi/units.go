package scsi

import (
	"fmt"
	"sync"
)

// Units are the logical units of several devices, as far as they must know each
// other. A unit has a task set, reservations, exclusive block ranges and files of
// its own, so two of them on one volume keep nothing from each other: under
// multipath, which takes units with one designator for one disk, a reservation
// through one target would not hold through another, and two COMPARE AND WRITE could
// both succeed. Several units on one volume are therefore only allowed as long as
// none of them can write. See ADR 55.
type Units struct {
	mu  sync.Mutex
	all []*LU // guarded by mu
}

// take enters lu, or says which unit stands against it. It also decides whether the
// files that lu.id.key names are lu's: of several units on one volume they belong to
// the first.
func (u *Units) take(lu *LU) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	volume, writes := lu.volumeID(), lu.canWrite()
	keeps := lu.dev.cfg.StateDir != ""
	for _, o := range u.all {
		same := volume != "" && volume == o.volumeID()
		if !same && lu.id.key != o.id.key {
			continue
		}
		where := fmt.Sprintf("LUN %d of target %s", o.lun, o.dev.cfg.Name)
		switch {
		case !same:
			return fmt.Errorf("%s has the same identifier (NAA %s): initiators would take the two volumes for one; give one of them another", where, lu.id.key)
		case writes || o.canWrite():
			if o.gone.Load() {
				return fmt.Errorf("the volume was %s, which has been removed but still has %d commands in execution; try again when they have ended", where, o.users.Load())
			}
			return fmt.Errorf("the volume is %s already. A volume that can be written has one LUN, because reservations and atomic commands of one LUN do not count for another. "+
				"For several paths give that target several portals; for further readers serve a snapshot, or make every LUN of the volume read-only", where)
		}
		keeps = keeps && (!o.keeps || lu.id.key != o.id.key)
	}
	lu.keeps = keeps
	u.all = append(u.all, lu)
	return nil
}

// give takes lu out again.
func (u *Units) give(lu *LU) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for i, o := range u.all {
		if o == lu {
			u.all = append(u.all[:i], u.all[i+1:]...)
			return
		}
	}
}

// volumeID returns the stable identity of the volume, "" where it has none.
func (lu *LU) volumeID() string { return lu.geo().info.ID }

// canWrite reports whether some initiator may change the volume through lu.
func (lu *LU) canWrite() bool { return lu.vol != nil && !lu.cfg.ReadOnly && !lu.geo().info.ReadOnly }
