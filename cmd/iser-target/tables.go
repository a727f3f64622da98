package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/dustin/go-humanize/english"

	"softiser/config"
	"softiser/internal/iscsi"
	"softiser/target"
	"softiser/target/admin"
	"softiser/target/scsi"
	"softiser/target/snapshots"
	"softiser/target/volume"
)

// The tables fit a terminal of 80 columns: what may be long, the names of targets
// and initiators, stands on lines of its own or at the end of one.

func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

func newTable(out io.Writer) *tabwriter.Writer { return tabwriter.NewWriter(out, 0, 0, 2, ' ', 0) }

// printGroups writes the groups of volumes that move between nodes.
func printGroups(out io.Writer, l []target.GroupStatus) {
	for _, g := range l {
		fmt.Fprintf(out, "\ngroup %s is %s, fenced by %s\n  volumes %s\n", g.Name, g.State, g.Fencing, strings.Join(g.Volumes, ", "))
		if g.Error != "" {
			fmt.Fprintf(out, "  %s\n", g.Error)
		}
	}
}

// printStatus writes the status of a target as text for people.
func printStatus(out io.Writer, st *target.Status) error {
	fmt.Fprintf(out, "%s, up %s; logins %d, refused %d, broken off %d\n", st.State, st.Uptime.Round(time.Second),
		st.Logins, st.LoginsRefused, st.LoginsAborted)
	l := &st.Limits
	fmt.Fprintf(out, "sessions %d of %d (an address %d once half are there), pending %d of %d (%d)\nstaging memory %s of %s\n\n", len(st.Sessions), l.Sessions,
		l.SessionsPerAddress, st.Pending, l.PendingLogins, l.PendingPerAddress,
		config.Size(st.Staging.Used), config.Size(st.Staging.Limit))
	w := newTable(out)
	fmt.Fprintln(w, "GROUP\tACCEPTED\tGARBAGE\tSILENT\tEVICTED\tPORTAL")
	for _, p := range st.Portals {
		bound := p.Bound
		if bound == "" {
			bound = p.Listen + " (closed)"
		}
		if isRoCE(p.Listen) && p.Bound != "" {
			bound = roceScheme + bound
		}
		fmt.Fprintf(w, "%d\t%d\t%d\t%d\t%d\t%s\n", p.Group, p.Accepted, p.Garbage, p.Silent, p.Evicted+p.Turned, bound)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if err := printRoCE(out, st.RoCE); err != nil {
		return err
	}
	for i := range st.Targets {
		if err := printTarget(out, st, &st.Targets[i]); err != nil {
			return err
		}
	}
	for i := range st.Subsystems {
		if err := printSubsystem(out, st, &st.Subsystems[i]); err != nil {
			return err
		}
	}
	if err := printVolumes(out, st.Volumes); err != nil {
		return err
	}
	printGroups(out, st.Groups)
	for i := range st.Controllers {
		if c := &st.Controllers[i]; !slices.ContainsFunc(st.Subsystems, func(s target.SubsystemStatus) bool { return s.NQN == c.Subsystem }) {
			fmt.Fprintf(out, "\ndiscovery controller\n")
			printController(out, c)
		}
	}
	for i := range st.Sessions {
		if s := &st.Sessions[i]; s.Target == "" {
			fmt.Fprintf(out, "\ndiscovery session\n")
			if err := printSession(out, s); err != nil {
				return err
			}
		}
	}
	return nil
}

// printTarget writes what the status says of one iSCSI target.
func printTarget(out io.Writer, st *target.Status, t *target.TargetStatus) error {
	fmt.Fprintf(out, "\n%s", t.Name)
	if t.Auth {
		fmt.Fprint(out, "  (CHAP)")
	}
	fmt.Fprintln(out)
	if len(t.LUNs) == 0 {
		fmt.Fprintln(out, "  no LUNs")
	}
	w := newTable(out)
	headed := false
	for i := range t.LUNs {
		l := &t.LUNs[i]
		if l.Error != "" {
			continue
		}
		if !headed {
			headed = true
			fmt.Fprintln(w, "  LUN\tVOLUME\tBACKEND\tSIZE\tKIND\tCOMMANDS\tP50\tP99")
		}
		backend := target.BackendWords(l.Backend, l.ReadOnly, l.Placement, l.Leaving)
		fmt.Fprintf(w, "  %d\t%s\t%s\t%s\tread\t%d\t%s\t%s\n", l.LUN, l.Volume, backend, humanize.IBytes(uint64(l.Size)),
			l.ReadLatency.Count, l.ReadLatency.Text(l.ReadLatency.P50), l.ReadLatency.Text(l.ReadLatency.P99))
		fmt.Fprintf(w, "  \t\t\t\twrite\t%d\t%s\t%s\n", l.WriteLatency.Count,
			l.WriteLatency.Text(l.WriteLatency.P50), l.WriteLatency.Text(l.WriteLatency.P99))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for i := range t.LUNs {
		if l := &t.LUNs[i]; l.Error != "" {
			fmt.Fprintf(out, "  LUN %d, volume %s, is NOT SERVED:\n    %s\n", l.LUN, l.Volume, l.Error)
		}
	}
	for i := range t.LUNs {
		l := &t.LUNs[i]
		for _, g := range slices.Sorted(maps.Keys(l.Access)) {
			if l.Access[g] != scsi.ActiveOptimized {
				fmt.Fprintf(out, "  LUN %d is %s through portal group %d\n", l.LUN, l.Access[g], g)
			}
		}
	}
	for i := range st.Sessions {
		if s := &st.Sessions[i]; s.Target == t.Name {
			if err := printSession(out, s); err != nil {
				return err
			}
		}
	}
	return nil
}

// printSubsystem tells of a subsystem, its namespaces and the controllers of its hosts.
func printSubsystem(out io.Writer, st *target.Status, s *target.SubsystemStatus) error {
	fmt.Fprintf(out, "\n%s", s.NQN)
	if s.Auth {
		fmt.Fprint(out, "  (hosts with keys)")
	}
	fmt.Fprintln(out)
	if len(s.Namespaces) == 0 {
		fmt.Fprintln(out, "  no namespaces")
	}
	w := newTable(out)
	headed := false
	for _, n := range s.Namespaces {
		if n.Error != "" {
			continue
		}
		if !headed {
			headed = true
			fmt.Fprintln(w, "  NSID\tVOLUME\tBACKEND\tSIZE\tBLOCK")
		}
		backend := target.BackendWords(n.Backend, n.ReadOnly, n.Placement, n.Leaving)
		fmt.Fprintf(w, "  %d\t%s\t%s\t%s\t%d\n", n.NSID, n.Volume, backend, humanize.IBytes(uint64(n.Size)), n.BlockSize)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, n := range s.Namespaces {
		if n.Error != "" {
			fmt.Fprintf(out, "  namespace %d, volume %s, is NOT SERVED:\n    %s\n", n.NSID, n.Volume, n.Error)
		}
	}
	for _, n := range s.Namespaces {
		for _, g := range slices.Sorted(maps.Keys(n.Access)) {
			if n.Access[g] != volume.PathOptimized {
				fmt.Fprintf(out, "  namespace %d is %s through portal group %d\n", n.NSID, n.Access[g], g)
			}
		}
	}
	for i := range st.Controllers {
		if c := &st.Controllers[i]; c.Subsystem == s.NQN {
			printController(out, c)
		}
	}
	return nil
}

func printController(out io.Writer, c *target.ControllerStatus) {
	state, proved, keepAlive := "ready", "", "no keep alive"
	if !c.Ready {
		state = "not ready"
	}
	if c.Proved {
		proved = ", authenticated"
	}
	if c.TLS {
		proved += ", TLS " + c.TLSKey
	}
	if c.KeepAlive > 0 {
		keepAlive = "keep alive " + c.KeepAlive.String()
	}
	fmt.Fprintf(out, "  controller %d\n    %s\n    host ID %s\n", c.ID, iscsi.Printable(c.Host), c.HostID)
	fmt.Fprintf(out, "    %s from %s for %s, %s\n", c.Transport, c.Address, time.Since(c.Since).Round(time.Second), state)
	fmt.Fprintf(out, "    %s%s\n", c.Connection, proved)
	if c.Proofs+c.FailedProofs > 0 {
		fmt.Fprintf(out, "    authentications: %d with %s, %d failed\n", c.Proofs, cmp.Or(c.ProvedBy, "none"), c.FailedProofs)
	}
	fmt.Fprintf(out, "    %s, %s outstanding, %s\n", english.Plural(c.Queues, "I/O queue", ""), english.Plural(c.Outstanding, "command", ""), keepAlive)
	fmt.Fprintf(out, "    read %s, %s; write %d, %s; failed %d\n", commands(c.Reads), humanize.IBytes(c.ReadBytes), c.Writes, humanize.IBytes(c.WriteBytes), c.Failed)
}

// printVolumes tells what all LUNs and namespaces of a volume have done together.
func printVolumes(out io.Writer, volumes []target.VolumeStatus) error {
	if len(volumes) == 0 {
		return nil
	}
	fmt.Fprintln(out)
	w := newTable(out)
	fmt.Fprintln(w, "VOLUME\tSIZE\tPLACES\tREADS\tBYTES\tWRITES\tBYTES")
	for _, v := range volumes {
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%s\t%d\t%s\n", v.Name, humanize.IBytes(uint64(v.Size)), len(v.Served),
			v.Stats.Reads, humanize.IBytes(v.Stats.ReadBytes), v.Stats.Writes, humanize.IBytes(v.Stats.WriteBytes))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, v := range volumes {
		if v.Reservation != nil {
			printReservation(out, v.Name, v.Reservation)
		}
		if v.Snapshots != nil {
			printSnapshots(out, v.Name, v.Snapshots)
		}
	}
	return nil
}

func printSnapshots(out io.Writer, volume string, s *snapshots.Status) {
	fmt.Fprintf(out, "  %s: a snapshot every %s, %d of %d kept", volume, s.Every, s.Kept, s.Keep)
	if s.Last != "" {
		fmt.Fprintf(out, ", the last %s", s.Last)
	}
	if !s.Next.IsZero() {
		fmt.Fprintf(out, ", the next at %s", s.Next.UTC().Format(time.RFC3339))
	}
	fmt.Fprintln(out)
	if s.Waiting != "" {
		fmt.Fprintf(out, "    waiting: %s\n", s.Waiting)
	}
	if s.Error != "" {
		fmt.Fprintf(out, "    FAILED (%d so far): %s\n", s.Failed, s.Error)
	}
}

func printReservation(out io.Writer, volume string, r *target.ReservationStatus) {
	what := "registrations, no reservation"
	if r.Type != "" {
		what = "reserved, " + r.Type
	}
	fmt.Fprintf(out, "  %s: %s\n", volume, what)
	for _, k := range r.Registrants {
		holder := ""
		if k.Holder {
			holder = ", holds it"
		}
		fmt.Fprintf(out, "    key %s by %s%s\n      %s\n", k.Key, k.Wire, holder, iscsi.Printable(k.Initiator))
	}
}

// commands is a number of them.
func commands(n uint64) string {
	return fmt.Sprintf("%d %s", n, english.PluralWord(int(n), "command", ""))
}

func printSession(out io.Writer, s *target.SessionStatus) error {
	fmt.Fprintf(out, "  TSIH %d  %s\n", s.TSIH, iscsi.Printable(s.Initiator))
	fmt.Fprintf(out, "    %s from %s for %s, %s\n", s.Transport, s.Remote, s.Age.Round(time.Second), s.State)
	fmt.Fprintf(out, "    %d of %d commands outstanding, %s copied\n", s.Outstanding, s.Window, humanize.IBytes(s.BytesCopied))
	w := newTable(out)
	for _, k := range []struct {
		name  string
		n     uint64
		bytes uint64
		l     *scsi.Latency
	}{{"read", s.Reads, s.BytesOut, &s.ReadLatency}, {"write", s.Writes, s.BytesIn, &s.WriteLatency}} {
		fmt.Fprintf(w, "    %s\t%s\t%s\tp50 %s\tp99 %s\n", k.name, commands(k.n), humanize.IBytes(k.bytes), k.l.Text(k.l.P50), k.l.Text(k.l.P99))
	}
	return w.Flush()
}

// printSessions lists sessions: a line of a table each, and below it who talks to
// which target.
func printSessions(out io.Writer, list []target.SessionStatus) error {
	if len(list) == 0 {
		return nil
	}
	var rows bytes.Buffer
	w := newTable(&rows)
	fmt.Fprintln(w, "TSIH\tTRANSPORT\tFROM\tAGE\tBUSY\tSTATE")
	for _, s := range list {
		fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%d/%d\t%s\n", s.TSIH, s.Transport, s.Remote, s.Age.Round(time.Second), s.Outstanding, s.Window, s.State)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	lines := strings.SplitAfter(rows.String(), "\n")
	fmt.Fprint(out, lines[0])
	for i, s := range list {
		tgt := s.Target
		if tgt == "" {
			tgt = "(discovery)"
		}
		fmt.Fprintf(out, "%s      %s -> %s\n", lines[i+1], iscsi.Printable(s.Initiator), iscsi.Printable(tgt))
	}
	return nil
}

// printChanges lists what a reload did, or would do.
func printChanges(out io.Writer, changes []admin.Change) {
	if len(changes) == 0 {
		fmt.Fprintln(out, "nothing differs")
	}
	for _, c := range changes {
		fmt.Fprintf(out, "%-8s %s\n", c.Action, c.Object)
		if c.Error != "" {
			fmt.Fprintf(out, "         not done: %s\n", c.Error)
		}
	}
}
