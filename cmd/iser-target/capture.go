package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/dustin/go-humanize/english"
	"github.com/spf13/cobra"

	"softiser/internal/sizeflag"
	"softiser/internal/sockio"
	"softiser/internal/usage"
	"softiser/target"
	"softiser/target/admin"
)

// captureFlags say what is captured, and where to.
type captureFlags struct {
	write      string
	session    uint16
	controller uint16
	peer, next string
	bytes      sizeflag.Value
	time       time.Duration
	most       int
}

// captureCommand builds the command that writes what a connection carries to a file.
func captureCommand() *cobra.Command {
	var s socketFlag
	f := captureFlags{bytes: 64 << 20}
	cmd := &cobra.Command{
		Use: "capture", Short: "Write what a connection of a running iser-target carries to a pcap file", Args: exactly(0),
		Long: `Writes what connections over TCP send and receive from now on to a file that Wireshark and
tshark read: iSCSI, NVMe/TCP, and for iSER and NVMe/RDMA the FPDUs of iWARP. Headers of
Ethernet, IP and TCP are made up around it. What TLS carries is written without TLS. RoCE
is not captured; tcpdump sees it.

THE FILE HOLDS THE DATA THAT IS READ AND WRITTEN, and names, and what CHAP says. It is made
with mode 0600, and must not exist already.

--next waits for a connection, so that its login is in the file: for iSER, NVMe/RDMA and
NVMe/TCP tshark needs that. An NVMe host has a connection for each queue: --connections.
The capture ends after --bytes or --time, with the last of its connections, or by Ctrl-C.
Other connections are not slowed down. If the file is written too slowly for its buffer of
64 MiB, data is left out and counted: it shows as a gap in TCP's sequence numbers.

tshark takes port 3260 for iSCSI: -d tcp.port==3260,nvme-tcp for NVMe/TCP.`,
		Example: `  iser-target capture --next :3260 -w login.pcap
  iser-target capture --session 3 --time 10s -w session.pcap
  iser-target capture --peer 192.0.2.7 --bytes 1GiB -w host.pcap
  iser-target capture --next 192.0.2.1:3260 --connections 5 -w - | tshark -r - -d tcp.port==3260,nvme-tcp`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return s.with(func(c *admin.Client) error { return f.run(cmd, c) })
		},
	}
	s.add(cmd)
	fl := cmd.Flags()
	fl.StringVarP(&f.write, "write", "w", "", "file to write to; - is standard output")
	fl.Uint16Var(&f.session, "session", 0, "capture the connections of the session with this TSIH")
	fl.Uint16Var(&f.controller, "controller", 0, "capture the connections of the controller with this ID")
	fl.StringVar(&f.peer, "peer", "", "capture connections of this address, or of address:port")
	fl.StringVar(&f.next, "next", "", "capture the next connection to this portal, address:port; :port is that port of every address")
	fl.Var(&f.bytes, "bytes", "stop after capturing this many bytes")
	fl.DurationVar(&f.time, "time", time.Minute, "stop after this time")
	fl.IntVar(&f.most, "connections", 0, fmt.Sprintf("capture at most this many connections, up to %d (default 1 with --next, else %[1]d)", sockio.MaxTapped))
	for _, flags := range [][]string{{"session", "controller", "peer", "next"}} {
		cmd.MarkFlagsMutuallyExclusive(flags...)
		cmd.MarkFlagsOneRequired(flags...)
	}
	if err := cmd.MarkFlagRequired("write"); err != nil {
		panic(err) // the flag is not there
	}
	completeFlag(cmd, "session", s.sessions)
	completeFlag(cmd, "controller", s.controllers)
	return cmd
}

// request resolves the flags with what the target says of itself.
func (f *captureFlags) request(cmd *cobra.Command, st func() (target.Status, error)) (q admin.CaptureRequest, err error) {
	q = admin.CaptureRequest{Connections: sockio.MaxTapped, Bytes: int64(f.bytes), Time: f.time}
	is := cmd.Flags().Changed
	if err := f.check(is("connections")); err != nil {
		return q, err
	}
	switch {
	case is("next"):
		q.Connections, q.Next = 1, true
		if q.Portal, err = portalOf(f.next); err != nil {
			return q, err
		}
		var now target.Status
		if now, err = st(); err == nil {
			err = listened(q.Portal, now.Portals)
		}
	case is("peer"):
		var a string
		a, err = farEnd(f.peer)
		q.Peers = []string{a}
	default:
		var now target.Status
		if now, err = st(); err == nil {
			err = f.connections(&q, &now, is("session"))
		}
	}
	if is("connections") {
		q.Connections = f.most
	}
	return q, err
}

// check refuses what no target would take; most reports whether the number of connections is said.
func (f *captureFlags) check(most bool) error {
	switch {
	case f.write == "":
		return usage.Errorf("-w is empty; name a file, or - for standard output")
	case most && (f.most < 1 || f.most > sockio.MaxTapped):
		return usage.Errorf("--connections %d: want 1 to %d", f.most, sockio.MaxTapped)
	case f.bytes < 1 || f.bytes > admin.MaxCaptureBytes:
		return usage.Errorf("--bytes %d: want 1 byte to 64 GiB", f.bytes)
	case f.time <= 0 || f.time > admin.MaxCaptureTime:
		return usage.Errorf("--time %v: want up to %v", f.time, admin.MaxCaptureTime)
	}
	return nil
}

// connections are those of a session, or of a controller.
func (f *captureFlags) connections(q *admin.CaptureRequest, st *target.Status, session bool) error {
	if session {
		for _, x := range st.Sessions {
			for _, c := range x.Connections {
				if x.TSIH == f.session {
					q.Peers = append(q.Peers, c.Remote)
				}
			}
		}
		if len(q.Peers) == 0 {
			return fmt.Errorf("there is no session with TSIH %d; iser-target session list", f.session)
		}
		return nil
	}
	var of []string // subsystems: each has IDs of its own
	for _, x := range st.Controllers {
		if x.ID == f.controller {
			of = append(of, x.Subsystem)
			q.Peers = append(q.Peers, x.Remotes...)
		}
	}
	if len(of) > 1 {
		return fmt.Errorf("%d controllers have the ID %d, of %s; --peer takes the address of a connection", len(of), f.controller, strings.Join(of, ", "))
	}
	if len(of) == 0 {
		return fmt.Errorf("there is no controller with ID %d; iser-target status lists them", f.controller)
	}
	return nil
}

// portalOf reads address:port or :port.
func portalOf(s string) (string, error) {
	if strings.HasPrefix(s, ":") {
		s = "0.0.0.0" + s
	}
	a, err := netip.ParseAddrPort(s)
	if err != nil || a.Port() == 0 {
		return "", usage.Errorf("--next %q: the address and port of a portal are needed, such as 192.0.2.1:3260, [2001:db8::1]:3260 or :3260", s)
	}
	return a.String(), nil
}

// listened refuses to wait on a port that no portal over TCP has.
func listened(next string, portals []target.PortalStatus) error {
	_, port, _ := net.SplitHostPort(next)
	for _, p := range portals {
		if _, has, err := net.SplitHostPort(p.Bound); err == nil && has == port {
			return nil
		}
	}
	return fmt.Errorf("--next %s: no portal listens on port %s; iser-target status lists them", next, port)
}

// farEnd reads an address with or without a port.
func farEnd(s string) (string, error) {
	if a, err := netip.ParseAddr(strings.Trim(s, "[]")); err == nil {
		return net.JoinHostPort(a.String(), "0"), nil
	}
	a, err := netip.ParseAddrPort(s)
	if err != nil {
		return "", usage.Errorf("--peer %q: an address is needed, with or without a port, such as 192.0.2.7, 192.0.2.7:40000 or [2001:db8::7]:40000", s)
	}
	return a.String(), nil
}

// stopAgain is how often the target is asked to end a capture that it does not have.
const stopAgain = 50 * time.Millisecond

// run captures to the file, and says on standard error what it has.
func (f *captureFlags) run(cmd *cobra.Command, c *admin.Client) error {
	ctx := cmd.Context()
	q, err := f.request(cmd, func() (target.Status, error) { return c.Status(ctx) })
	if err != nil {
		return err
	}
	out, end, err := f.open(cmd)
	if err != nil {
		return err
	}
	fmt.Fprintln(cmd.ErrOrStderr(), "capturing; the file holds the data that is read and written, and names. Ctrl-C ends it.")
	// The signal ends the capture and not the request, so that the last packet is whole.
	asking, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	stop := context.AfterFunc(ctx, func() {
		last, done := context.WithTimeout(asking, 5*time.Second)
		defer done()
		for c.StopCapture(last) != nil { // it has not begun yet, or has just ended by itself: then its rest is on its way
			select {
			case <-last.Done():
				cancel()
				return
			case <-time.After(stopAgain):
			}
		}
	})
	defer stop()
	res, err := c.Capture(asking, q, out)
	if err = errors.Join(err, end()); err != nil {
		return err
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "%s, %s captured, %s left out for want of room\n", english.Plural(res.Connections, "connection", ""), humanize.IBytes(uint64(res.Bytes)), humanize.IBytes(res.Dropped))
	if res.Connections == 0 {
		return errors.New("nothing has been sent or received by such a connection")
	}
	return nil
}

// open makes the file; end closes it, and removes it if there is nothing in it.
func (f *captureFlags) open(cmd *cobra.Command) (out io.Writer, end func() error, err error) {
	if f.write == "-" {
		out = cmd.OutOrStdout()
		if usage.IsTerminal(out) {
			return nil, nil, usage.Errorf("-w -: standard output is a terminal; a pcap file is for a program")
		}
		return out, func() error { return nil }, nil
	}
	w, err := os.OpenFile(f.write, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return nil, nil, fmt.Errorf("%s exists; remove it, or name another file", f.write)
	}
	if err != nil {
		return nil, nil, err
	}
	return w, func() error {
		at, err := w.Seek(0, io.SeekCurrent)
		if err = errors.Join(err, w.Close()); err == nil && at == 0 {
			err = os.Remove(f.write)
		}
		return err
	}, nil
}
