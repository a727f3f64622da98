package statuspage

import (
	"cmp"
	"fmt"
	"html/template"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/dustin/go-humanize"

	"softiser/target"
	"softiser/target/scsi"
	"softiser/target/volume"
)

const (
	// rowLimit is how many rows a table has at most: a page is to be read.
	rowLimit = 200
	// nameLimit is more than a name of iSCSI (223 bytes) or of NVMe has, in runes.
	nameLimit = 256
)

// words are what the template says things with.
var words = template.FuncMap{
	"name":     name,
	"bytes":    func(n any) string { return humanize.IBytes(unsigned(n)) },
	"count":    func(n any) string { return humanize.Comma(int64(unsigned(n))) },
	"age":      func(d time.Duration) string { return d.Round(time.Second).String() },
	"since":    func(t time.Time) string { return time.Since(t).Round(time.Second).String() },
	"p50":      func(l volume.Latency) string { return l.Text(l.P50) },
	"p99":      func(l volume.Latency) string { return l.Text(l.P99) },
	"rows":     func(n int) int { return min(n, rowLimit) },
	"beyond":   func(n int) int { return max(n-rowLimit, 0) },
	"errors":   func(s volume.Stats) uint64 { return s.ReadErrors + s.WriteErrors + s.VerifyErrors },
	"kind":     target.BackendWords,
	"lunPaths": func(l target.LUNStatus) []string { return paths(l.Access, scsi.ActiveOptimized) },
	"nsPaths":  func(n target.NamespaceStatus) []string { return paths(n.Access, volume.PathOptimized) },
}

func unsigned(n any) uint64 {
	switch n := n.(type) {
	case int:
		return uint64(max(n, 0))
	case int64:
		return uint64(max(n, 0))
	case uint64:
		return n
	}
	return 0
}

// name is a text of somebody else's, or one that may have such in it: nothing in it is
// invisible or turns the direction of what follows, and it is no longer than names are.
func name(s string) string {
	var b strings.Builder
	n := 0
	for _, r := range s { // what is not UTF-8 is U+FFFD
		if n++; n > nameLimit {
			b.WriteRune('…')
			break
		}
		if !unicode.IsPrint(r) {
			r = unicode.ReplacementChar
		}
		b.WriteRune(r)
	}
	return b.String()
}

// view is a status as the page has it.
type view struct {
	*target.Status
	Version    string
	Unserved   []unserved
	Transports []transport
	Reserved   bool // somebody is registered with a volume
}

// unserved is what is configured and not there.
type unserved struct{ Where, Why string }

// transport is what one kind of connection carries.
type transport struct {
	Name               string
	Sessions           int // or controllers
	Connections        int
	Reads, Writes      uint64 // commands
	Read, Written      uint64 // bytes
	Failed, Terminates uint64
}

// newView prepares a status for the page: what is not served and why, and which tables have rows.
func newView(st *target.Status, version string) *view {
	v := &view{Status: st, Version: version}
	for where, why := range st.Unserved() {
		v.Unserved = append(v.Unserved, unserved{where, why})
	}
	for _, g := range st.Groups {
		if g.Error != "" {
			v.Unserved = append(v.Unserved, unserved{"group " + g.Name + " (" + g.State + ")", g.Error})
		}
	}
	if r := st.Reload; r != nil && !r.OK {
		v.Unserved = append(v.Unserved, unserved{"the configuration file", cmp.Or(r.Error, "not all of it is in force")})
	}
	v.Reserved = slices.ContainsFunc(st.Volumes, func(x target.VolumeStatus) bool { return x.Reservation != nil })
	terminates := map[string]uint64{}
	for _, r := range st.RDMA {
		terminates[r.Transport] = r.TerminatesIn + r.TerminatesOut
	}
	for _, t := range st.ISCSI {
		v.Transports = append(v.Transports, transport{Name: t.Name, Sessions: t.Sessions, Connections: t.Connections,
			Reads: t.Reads, Writes: t.Writes, Read: t.BytesOut, Written: t.BytesIn, Failed: t.Failed, Terminates: terminates[t.Name]})
	}
	controllers := map[string]int{}
	for _, c := range st.Controllers {
		controllers[c.Transport]++
	}
	for _, t := range st.NVMe {
		v.Transports = append(v.Transports, transport{Name: t.Name, Sessions: controllers[t.Name], Connections: t.Connections,
			Reads: t.Reads, Writes: t.Writes, Read: t.ReadBytes, Written: t.WriteBytes, Failed: t.Failed, Terminates: terminates[t.Name]})
	}
	return v
}

// paths says through which portal groups a place is not to be reached as well as can be.
func paths[S fmt.Stringer](access map[uint16]S, best S) []string {
	var l []string
	for _, g := range slices.Sorted(maps.Keys(access)) {
		if s := access[g].String(); s != best.String() {
			l = append(l, fmt.Sprintf("%s through group %d", s, g))
		}
	}
	return l
}
