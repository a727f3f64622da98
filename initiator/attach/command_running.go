package attach

import (
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"

	"softiser/initiator/connflags"
	"softiser/internal/handover"
	"softiser/internal/iscsi"
)

// The commands for attachments that other processes serve.

// runUpgrade has the process of an attachment replaced.
func (c *command) runUpgrade(ctx context.Context, out io.Writer, key string) error {
	binary, err := handover.BinaryFromHere(c.binary)
	if err != nil {
		return err
	}
	up, err := AskUpgrade(ctx, c.opt.Dir, connflags.Names(key), binary, c.patience)
	switch {
	case err != nil:
		return err
	case c.json:
		up.Carried, up.Closed = append([]string{}, up.Carried...), append([]string{}, up.Closed...) // lists, also where there is nothing
		return printJSON(out, up)
	}
	fmt.Fprintf(out, "process %d has taken over from %d; the pause was %v\n", up.New, up.Old, up.Pause.Round(100*time.Microsecond))
	for _, l := range []struct {
		title string
		lines []string
	}{{"carried:", up.Carried}, {"closed:", up.Closed}} {
		if len(l.lines) > 0 {
			fmt.Fprintf(out, "%s\n  %s\n", l.title, strings.Join(l.lines, "\n  "))
		}
	}
	return nil
}

// runList prints the attachments that are alive, and why records could not be read. That there
// is none goes to notes: standard output is the table's.
func (c *command) runList(out, notes io.Writer) error {
	live, err := List(c.opt.Dir)
	if err != nil {
		return err
	}
	if c.json {
		if live == nil {
			live = []*Record{}
		}
		return printJSON(out, live)
	}
	var reasons []string
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	if len(live) == 0 {
		fmt.Fprintf(notes, "nothing is attached (records are looked for in %s)\n", c.opt.Dir)
	} else {
		fmt.Fprintln(w, "PROCESS\tDEVICE\tSIZE\tSTATE\tVOLUME")
	}
	for _, r := range live {
		dev := r.Device
		if dev == "" {
			dev = r.Socket
		}
		state := r.State
		if state != stateConnected && !r.dead() {
			state += " for " + time.Since(r.Since).Round(time.Second).String()
		}
		fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\n", r.PID, dev, humanize.IBytes(uint64(r.Size)), state, r.URL)
		if r.Reason != "" {
			reasons = append(reasons, fmt.Sprintf("%s: %s", dev, r.Reason))
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, reason := range reasons {
		fmt.Fprintln(out, iscsi.PrintableLines(reason))
	}
	return nil
}

// runDetach ends the attachment of a volume or device, and waits until its process has
// gone.
func (c *command) runDetach(ctx context.Context, out io.Writer, key string) error {
	key = connflags.Names(key) // as the record has it
	// The device is written back, requests finish, those of clients that have been cut, what they wrote is flushed, and
	// the session logs out; each is bounded by the timeout.
	limit := 4*c.timeout + 10*time.Second
	if c.force {
		limit = c.timeout
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	r, err := Detach(ctx, c.opt.Dir, key, c.force)
	switch {
	case err != nil:
		return err
	case c.json && r == nil:
		return printJSON(out, struct {
			Detached bool `json:"detached"`
		}{})
	case c.json:
		return printJSON(out, struct {
			Detached bool    `json:"detached"`
			Record   *Record `json:"attachment"`
		}{true, r})
	case r == nil:
		live, err := List(c.opt.Dir)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "%s is not attached; attached in %s: %s\n", key, c.opt.Dir, urlsOf(live))
	case r.dead():
		fmt.Fprintf(out, "%s is detached; %s\n", r.URL, r.Reason)
	default:
		fmt.Fprintf(out, "%s is detached\n", r.URL)
	}
	return nil
}

// urlsOf are the volumes of attachments, in a line.
func urlsOf(live []*Record) string {
	if len(live) == 0 {
		return "nothing"
	}
	urls := make([]string, len(live))
	for i, r := range live {
		urls[i] = r.URL
	}
	return strings.Join(urls, ", ")
}
