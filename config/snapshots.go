package config

import (
	"fmt"
	"regexp"
	"strings"
	"time"
)

// Snapshots makes the target take snapshots of a logical volume at set times (UTC), and remove
// the oldest of them. Without every it takes none.
type Snapshots struct {
	Every Duration `mapstructure:"every" json:"every,omitempty"` // from one to the next, such as 15m, 1h, 1d or 1w; at least 1m
	At    string   `mapstructure:"at" json:"at,omitempty"`       // one of the times, HH:MM; empty: midnight. Weeks begin on Monday
	Keep  int      `mapstructure:"keep" json:"keep,omitempty"`   // how many are kept; older ones are removed
	Name  string   `mapstructure:"name" json:"name,omitempty"`   // prefix of the names, before the time; empty: the name of the logical volume
	Size  Size     `mapstructure:"size" json:"size,omitempty"`   // of a volume that is not thin: room for what changes while the snapshot is there
}

// Offset is At as the time since midnight.
func (s *Snapshots) Offset() time.Duration {
	t, err := time.Parse("15:04", s.At)
	if err != nil {
		return 0
	}
	return time.Duration(t.Hour())*time.Hour + time.Duration(t.Minute())*time.Minute
}

// SnapshotPrefix is what the names of the snapshots of a volume begin with.
func (v *Volume) SnapshotPrefix() string {
	if v.Snapshots.Name != "" {
		return v.Snapshots.Name
	}
	return v.LV
}

const (
	maxKept  = 4096
	maxEvery = Duration(366 * 24 * time.Hour)
	// maxPrefix leaves room for "-20261126T060000Z" in the 127 characters of LVM.
	maxPrefix = 110
)

var lvName = regexp.MustCompile(`^[A-Za-z0-9+_.][A-Za-z0-9+_.-]*$`)

// reservedNames are what LVM keeps to itself.
var reservedNames = []string{"pvmove", "snapshot"}

// checkSnapshots checks when snapshots of a volume are taken.
func checkSnapshots(r *report, key string, v *Volume) {
	s := &v.Snapshots
	if *s == (Snapshots{}) {
		return
	}
	if v.Type != VolumeLVM {
		r.add(key, "are of logical volumes; %s has type: %s", v.Name, v.Type)
		return
	}
	switch {
	case s.Every == 0:
		r.add(key+".every", "missing; how often one is taken, such as 1h")
	case s.Every.D() < time.Minute:
		r.add(key+".every", "%s is less than 1m", s.Every)
	case s.Every > maxEvery:
		r.add(key+".every", "%s is more than a year", s.Every)
	case s.Every.D()%time.Second != 0:
		r.add(key+".every", "%s is no whole number of seconds", s.Every)
	}
	if s.Keep < 1 || s.Keep > maxKept {
		r.add(key+".keep", "%d must be between 1 and %d: the number of snapshots that are kept", s.Keep, maxKept)
	}
	if _, err := time.Parse("15:04", s.At); s.At != "" && err != nil {
		r.add(key+".at", "%q is no time of the day; expected HH:MM (UTC), such as 02:30", s.At)
	}
	if problem := prefixProblem(v.SnapshotPrefix()); problem != "" && v.LV != "" {
		r.add(key+".name", "%q %s", v.SnapshotPrefix(), problem)
	}
	switch {
	case s.Size < 0:
		r.add(key+".size", "is negative")
	case s.Size != 0 && v.Pool != "":
		r.add(key+".size", "snapshots of a thin volume take their room from its pool")
	case s.Size == 0 && v.Create && v.Pool == "":
		r.add(key+".size", "missing; a snapshot of a volume that is not thin needs room for what changes while it is there, such as 1GiB")
	}
}

// prefixProblem says why names of logical volumes cannot begin so, "" if they can.
func prefixProblem(p string) string {
	if !lvName.MatchString(p) {
		return "has characters that LVM does not take in names: letters, digits, '+', '_', '.' and, not first, '-' are allowed"
	}
	if len(p) > maxPrefix {
		return fmt.Sprintf("has %d characters; with the time behind it a name has at most 127, so %d are left", len(p), maxPrefix)
	}
	for _, w := range reservedNames {
		if strings.HasPrefix(p, w) {
			return "begins with " + w + ", which LVM reserves"
		}
	}
	return ""
}

// checkSnapshotNames finds plans whose snapshots could not be told apart.
func (c *Config) checkSnapshotNames(r *report) {
	seen := map[string]string{}
	for i := range c.Volumes {
		v := &c.Volumes[i]
		if v.Snapshots == (Snapshots{}) {
			continue
		}
		key, name := fmt.Sprintf("volumes[%d].snapshots.name", i), v.VG+"/"+v.SnapshotPrefix()
		if first, ok := seen[name]; ok {
			r.add(key, "%q is already the prefix of snapshots in group %s, see %s", v.SnapshotPrefix(), v.VG, first)
		}
		seen[name] = key
	}
}
