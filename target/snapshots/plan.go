package snapshots

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// Plan says when snapshots of a volume are taken, and how many of them are kept.
type Plan struct {
	Volume string        // what the configuration calls it
	Group  string        // volume group
	LV     string        // logical volume in it
	Every  time.Duration // from one to the next; whole seconds
	At     time.Duration // after midnight UTC: one of the times; the others follow from Every
	Keep   int           // at least 1
	Prefix string        // of the names of the snapshots
	Size   int64         // bytes of the store of a snapshot that is not thin
}

// anchor is where times are counted from: a Monday, so that weeks begin with one.
var anchor = time.Date(1970, 1, 5, 0, 0, 0, 0, time.UTC)

// due is the last time at or before now at which a snapshot was to be taken.
func (p *Plan) due(now time.Time) time.Time {
	every, from := int64(p.Every/time.Second), anchor.Add(p.At).Unix()
	past := (now.Unix() - from) % every
	if past < 0 {
		past += every
	}
	return time.Unix(now.Unix()-past, 0).UTC()
}

// nameTime is how names tell the time, UTC.
const nameTime = "20060102T150405Z"

// Name is what a snapshot is called that is taken at a time.
func (p *Plan) Name(t time.Time) string { return p.Prefix + "-" + t.UTC().Format(nameTime) }

// Taken is when a snapshot of that name has been taken; false: it has no name of this plan's.
func (p *Plan) Taken(name string) (t time.Time, ours bool) {
	stamp, ok := strings.CutPrefix(name, p.Prefix+"-")
	if !ok {
		return time.Time{}, false
	}
	t, err := time.Parse(nameTime, stamp)
	return t, err == nil && p.Name(t) == name
}

// Snapshot is one that a plan has made.
type Snapshot struct {
	Name  string
	Taken time.Time
	Held  string // why it is not to be removed, "" if nothing is in the way
}

// newest is the last of the snapshots that were taken until now. Others were taken while the
// clock was wrong.
func newest(all []Snapshot, now time.Time) (last Snapshot) {
	for _, s := range all {
		if !s.Taken.After(now) && s.Taken.After(last.Taken) {
			last = s
		}
	}
	return last
}

// surplus are those beyond keep, oldest first. One that bears a time to come is older than
// it says, as everything that is there is older than now.
func surplus(all []Snapshot, keep int, now time.Time) []Snapshot {
	all = slices.Clone(all)
	slices.SortFunc(all, func(a, b Snapshot) int {
		if x, y := a.Taken.After(now), b.Taken.After(now); x != y {
			if x {
				return -1
			}
			return 1
		}
		return cmp.Or(a.Taken.Compare(b.Taken), strings.Compare(a.Name, b.Name))
	})
	return all[:max(len(all)-keep, 0)]
}
