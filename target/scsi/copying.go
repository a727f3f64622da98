package scsi

import (
	"slices"

	"softiser/internal/spc"

	"softiser/target/volume"
)

// copying is an EXTENDED COPY or WRITE USING TOKEN in execution: a volume.Copy, which the
// volumes know, on units of this target, which stay in use until its end.
type copying struct {
	*volume.Copy
	dev    *Device
	units  []*LU
	behind bool // it goes on when its command has ended
}

// newCopying makes the copy of t, which an abort of t ends.
func newCopying(t *Task) *copying {
	c := &copying{Copy: t.lu.vol.NewCopy(&t.Op), dev: t.dev, units: []*LU{t.lu}}
	c.Over = c.over
	t.lu.place.Hold() // the LUN may have been removed by now: t keeps the place, and so does its copy
	return c
}

// touch makes the copy known to a unit, which it may use until end. It reports false when
// the unit has been removed.
func (c *copying) touch(lu *LU) bool {
	if slices.Contains(c.units, lu) {
		return true
	}
	if !lu.place.Use() {
		return false
	}
	c.units = append(c.units, lu)
	c.Touch(lu.vol)
	return true
}

// end leaves the units, and tells whoever waits for that.
func (c *copying) end() {
	c.End()
	for _, lu := range c.units {
		lu.place.Unuse()
	}
}

// over reports whether there is to be no further piece: a copy that goes on behind its
// status does not keep a unit that has been removed.
func (c *copying) over() bool { return c.behind && slices.ContainsFunc(c.units, (*LU).Removed) }

// may reports whether the nexus may read or write a unit right now, as a copy manager has
// to ask for it.
func (c *copying) may(lu *LU, a volume.Access) bool {
	return c.May(lu.vol, a) && (a != volume.Writes || lu.place.Writable())
}

// copySense tells how a copy has failed.
func copySense(err error, dir volume.Direction) *spc.Sense {
	k, a := senseOf(err, dir)
	return &spc.Sense{Key: k, ASC: a}
}
